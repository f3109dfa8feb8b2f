"""`python -m benchmarks`: every command is listed and has help, a module and examples."""

from __future__ import annotations

import doctest
import importlib
import sys
from pathlib import Path

import pytest

import benchmarks.measures
from benchmarks.__main__ import main, overview
from benchmarks.measures import MEASURES

ROOT = Path(benchmarks.measures.__file__).parents[2]
HELPERS = {"__init__", "checking_warm", "streaming"}
"""Modules of `measures` that are not commands: `chosen --streaming` and `checking` use them."""


def run(monkeypatch: pytest.MonkeyPatch, *words: str) -> None:
    monkeypatch.setattr(sys, "argv", ["benchmarks", *words])
    main()


def test_the_overview_has_one_line_for_each_measure(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    run(monkeypatch, "--help")
    assert capsys.readouterr().out == f"{overview()}\n"
    lines = [line for line in overview().splitlines() if line.startswith("  ")]
    assert [line.split()[0] for line in lines] == list(MEASURES)
    assert max(map(len, lines)) <= 100


def test_every_module_is_a_measure():
    modules = {path.stem for path in Path(benchmarks.measures.__file__).parent.glob("*.py")}
    assert {measure.module for measure in MEASURES.values()} == modules - HELPERS


@pytest.mark.parametrize("name", MEASURES)
def test_every_measure_has_help_with_an_example(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    if name == "plot":
        pytest.importorskip("matplotlib")
    with pytest.raises(SystemExit) as ended:
        run(monkeypatch, name, "--help")
    assert ended.value.code == 0
    printed = capsys.readouterr().out
    assert f"usage: python -m benchmarks {name} " in printed
    assert f"    python -m benchmarks {name}" in printed


@pytest.mark.parametrize("name", ["counters", "epilogue", "experts", "gated", "losses", "timeline"])
def test_a_measure_without_a_gpu_ends_with_the_reason(name: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("codegen.targets.nvptx.driver.unavailable", lambda: "no driver")
    with pytest.raises(SystemExit, match=r"^no GPU: no driver; run this measure on a machine with"):
        run(monkeypatch, name)


def examples() -> list[str]:
    """The modules of `benchmarks` that have examples in docstrings."""
    files = sorted((ROOT / "benchmarks").rglob("*.py"))
    return [
        ".".join(path.relative_to(ROOT).with_suffix("").parts)
        for path in files
        if ">>>" in path.read_text(encoding="utf-8")
    ]


@pytest.mark.parametrize("name", examples())
def test_examples_in_docstrings(name: str):
    found = doctest.testmod(importlib.import_module(name))
    assert found.attempted
    assert not found.failed


def test_an_unknown_measure_is_named(monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(SystemExit, match="no measure 'gem'; there are gemm, random"):
        run(monkeypatch, "gem")


def test_without_a_name_it_is_gemm(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    with pytest.raises(SystemExit):
        run(monkeypatch, "--rounds", "0")
    assert "usage: python -m benchmarks gemm" in capsys.readouterr().err
