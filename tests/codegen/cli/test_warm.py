"""`coordgraph warm`: what it passes to `codegen.warm`, what it prints, and its errors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import codegen
from codegen.call.warming import Warmed
from codegen.targets.nvptx import driver
from passes.choosing import Plan
from passes.choosing.drawn_sizes import SizeRange
from tests.codegen.cli.commands import coordgraph


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Replace `codegen.warm` by a stub that builds nothing; return a list of its calls' arguments.

    Each entry is (positional arguments, keyword arguments).
    """
    found: list[Any] = []

    def warm(*args: Any, **options: Any) -> Warmed:
        found.append((args, options))
        plans = Plan((128, 128, 64)), Plan((64, 64, 64))
        return Warmed(plans[:1], (SizeRange.of(m=8),), 0.0123, {str(plans[1]): "it spills"})

    monkeypatch.setattr(driver, "unavailable", lambda: None)
    monkeypatch.setattr(codegen, "warm", warm, raising=False)
    return found


def test_options_are_passed_on(asked: list[Any]):
    done = coordgraph(
        "warm", "--range", "m=1:64, k=4096", "--transpose-b", "--dtype", "f16", "--kernels", "7"
    )
    assert done.code == 0
    ((args, options),) = asked
    assert (args, options["dtype"]) == ((), "f16")
    assert (options["m"], options["k"], "n" in options) == ((1, 64), (4096, 4096), False)
    assert (options["transpose_a"], options["transpose_b"], options["kernels"]) == (False, True, 7)
    lines = done.out.splitlines()
    assert lines[0].startswith("1 kernels for m 8, n 128 to 8192, k 128 to 8192, 1.2% slower than")
    assert lines[1:] == ["128x128x64 data-parallel", "not built: 64x64x64 data-parallel: it spills"]


@pytest.fixture
def recorded(asked: list[Any], monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Replace `codegen.warm_calls` by a stub that builds nothing; return its calls' arguments."""
    found: list[Any] = []

    class Stub:
        kinds = (Warmed((Plan((64, 64, 64)),), (SizeRange.of(m=8),), 0.0, {}, "bf16, batched"),)

        def __init__(self, **options: Any) -> None:
            found.append(options)

        def __enter__(self) -> Stub:
            return self

        def __exit__(self, *_: object) -> None:
            pass

    monkeypatch.setattr(codegen, "warm_calls", Stub, raising=False)
    return found


def program(folder: Path, text: str) -> str:
    """The path of a new Python program."""
    path = folder / "calls.py"
    path.write_text(text)
    return str(path)


def test_the_calls_of_a_program(tmp_path: Path, asked: list[Any], recorded: list[Any]):
    """The program is run as a script, and kernels of its kinds of calls are listed."""
    (tmp_path / "beside.py").write_text("NAME = 'written'")
    text = "import sys, beside, pathlib\nassert __name__ == '__main__'\n"
    text += f"pathlib.Path({str(tmp_path)!r}, beside.NAME).touch()\nsys.exit(0)"
    path = program(tmp_path, text)
    done = coordgraph("warm", path, "--range", "m=1:64", "--kernels", "7")
    assert done.code == 0
    assert (asked, recorded) == ([], [{"m": (1, 64), "kernels": 7}])
    assert (tmp_path / "written").exists()
    assert done.out.splitlines()[0].startswith("bf16, batched: 1 kernels for m 8")
    found = coordgraph("warm", path, "--json").json
    assert found["kinds"][0]["kernels"] == ["64x64x64 data-parallel"]


@pytest.mark.parametrize(
    ("text", "message"),
    [("1 / 0", "ends with ZeroDivisionError: division by zero"), ("exit(3)", "exit code 3")],
)
def test_a_program_that_fails(tmp_path: Path, recorded: list[Any], text: str, message: str):
    done = coordgraph("warm", program(tmp_path, text))
    assert done.code == 3
    assert message in done.err


def test_options_of_plain_products_do_not_go_with_a_program(tmp_path: Path, recorded: list[Any]):
    done = coordgraph("warm", program(tmp_path, ""), "--dtype", "f16", "--transpose-b")
    assert done.code == 2
    assert "--dtype, --transpose-b: options of plain products" in " ".join(done.err.split())
    assert not recorded
    done = coordgraph("warm", program(tmp_path, ""), "--ordinal", "1")
    assert "--ordinal: options of plain products" in " ".join(done.err.split())


def test_an_axis_has_one_range(asked: list[Any]):
    done = coordgraph("warm", "--range", "m=1:8,m=3")
    assert done.code == 2
    assert "--range gives m twice; write one range" in " ".join(done.err.split())
    assert not asked


def test_json(asked: list[Any]):
    found = coordgraph("warm", "--json").json
    assert found["kernels"] == ["128x128x64 data-parallel"]
    assert found["loss"] == 0.0123
    assert list(found["refused"].values()) == ["it spills"]
    assert found["seconds"] >= 0


@pytest.mark.parametrize("text", ["m=1:x", "q=5", "m", "m=1:2:3"])
def test_wrong_ranges(text: str, asked: list[Any]):
    done = coordgraph("warm", "--range", text)
    assert done.code == 2
    assert "no extent of m, n or k" in done.err
    assert "m=1:8192,n=4096,k=14336" in done.err
    assert not asked


def test_without_a_gpu(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(driver, "unavailable", lambda: "no driver.")
    done = coordgraph("warm")
    assert done.code == 4
    assert "warm needs an NVIDIA GPU, whose driver assembles the kernels: no driver;" in done.err
