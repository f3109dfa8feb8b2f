"""Every example command line in `--help` runs, in the order in which they are printed."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from functools import cache

import pytest
import typer.rich_utils

from codegen.cli import app
from codegen.cli.errors import ExitCode
from codegen.toolchain import find_cuobjdump, find_ptxas
from tests.codegen.cli.commands import Outcome, coordgraph
from tests.support.sampling import quick_cases

COMMANDS = tuple(
    command.name or ""
    for command in app.registered_commands
    if command.name != "calibrate"  # with a GPU it takes minutes, and replaces the user's constants
)
NEEDS_GPU = "needs an NVIDIA GPU"


@pytest.fixture(scope="module", autouse=True)
def _folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A temporary working folder and disk cache of kernels, which all examples share."""
    folder = tmp_path_factory.mktemp("examples")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("COORDGRAPH_CACHE", str(folder / "cache"))
        yield
    run.cache_clear()


def examples(monkeypatch: pytest.MonkeyPatch, *command: str) -> list[str]:
    """The example lines of a command's help, on a terminal that is wide enough not to wrap them."""
    monkeypatch.setattr(typer.rich_utils, "MAX_WIDTH", 500)
    printed = re.sub(r"\x1b\[[0-9;]*m", "", coordgraph(*command, "--help").out)
    lines = (line.strip() for line in printed.splitlines())
    return [line for line in lines if line.startswith("coordgraph ")]


@cache
def run(line: str) -> Outcome:
    """Run a line as a shell would, and return the outcome of its last command.

    The commands of a pipe run one after another; `less` is skipped. A line that is printed in the
    help of two commands is run only once.
    """
    words = shlex.split(line, comments=True)
    stages, text = [[]], None
    for word in words:
        if word == "|":
            stages.append([])
        else:
            stages[-1].append(word)
    done = Outcome(0, "", "")
    for program, *given in stages:
        if program == "less":
            continue
        assert program == "coordgraph"
        done = coordgraph(*given, stdin=text)
        text = done.out
        if done.code:
            break
    return done


@quick_cases(1)
@pytest.mark.parametrize("most", [2, pytest.param(None, marks=pytest.mark.slow)])
@pytest.mark.parametrize("command", [(), *((name,) for name in COMMANDS)], ids="-".join)
def test_examples_run(command: tuple[str, ...], most: int | None, monkeypatch: pytest.MonkeyPatch):
    """The examples in a command's help run; the quick test runs the first two of each command."""
    found = examples(monkeypatch, *command)
    assert found
    for line in found[:most]:
        if " sass" in line and None in (find_ptxas(), find_cuobjdump()):
            continue
        done = run(line)
        no_gpu = done.code == ExitCode.UNAVAILABLE and NEEDS_GPU in done.err
        differ = done.code == ExitCode.CHECK_FAILED and command == ("diff",)
        allowed = differ or (no_gpu and ("sm_" in line or command == ("warm",)))
        assert done.code == 0 or allowed, f"{line}\n{done.err}"
