"""`coordgraph export`: the files it writes, what it prints, and its errors."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from codegen.toolchain import find_ptxas
from tests.codegen.cli.commands import coordgraph

FILES = ["layer.cubin", "layer.h", "layer.c", "example.cpp", "Makefile", "launch.json"]


@pytest.mark.slow
@pytest.mark.skipif(find_ptxas() is None, reason="ptxas is not installed")
def test_a_plan_with_a_grid(tmp_path: Path):
    """Without an argument for the grid, an exported launch has the plan's number of workgroups."""
    plan = "128x128x64 stream-k{owner=last} on 66"
    done = coordgraph(
        *("export", str(tmp_path / "new"), "--name", "layer", "--target", "sm_90a"),
        *("--transpose-b", "--plan", plan, "--n", "4096", "--json"),
    )
    assert done.code == 0, done.err
    found = done.json
    assert list(found["files"]) == FILES
    assert all(Path(path).exists() for path in found["files"].values())
    assert (found["plan"], found["spill_stores"], found["warnings"]) == (plan, 0, [])
    recipe = json.loads((tmp_path / "new" / "launch.json").read_text())
    assert recipe == found["recipe"]
    assert recipe["workgroups"] == 66
    header = (tmp_path / "new" / "layer.h").read_text()
    assert "workgroups to launch; 0 for 66" in header
    assert "int64_t n;" not in header, "n is a constant"


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (
            ("--target", "cpu"),
            "no machine code for 'cpu' to export",
        ),
        (("--target", "sm_90a", "--groups", "m"), "grouped products cannot be exported"),
        (("--target", "sm_90a", "--name", "a-b"), "cannot start C identifiers"),
    ],
)
def test_refusals(words: tuple[str, ...], text: str, tmp_path: Path):
    done = coordgraph("export", str(tmp_path / "new"), "--schedule", "stream-k", *words)
    assert done.code != 0
    assert text in " ".join(done.err.split())
    assert not (tmp_path / "new").exists()
