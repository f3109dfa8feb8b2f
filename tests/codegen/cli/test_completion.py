"""Shell completion, requested as bash requests it, and progress bars."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from rich.console import Console

from codegen.cli import completion, output
from codegen.cli.options import TARGET_NAMES
from codegen.cli.timing import _repeated
from passes import PASSES, lowering
from tests.support.sampling import quick_cases

ROOT = Path(__file__).resolve().parents[3]


def asked(line: str) -> list[str]:
    """The texts that complete the last word of the command line `line`, as the shell gets them."""
    done = subprocess.run(
        [sys.executable, "-m", "coordgraph"],
        cwd=ROOT,
        env={
            **os.environ,
            "_COORDGRAPH_COMPLETE": "complete_bash",
            "COMP_WORDS": line,
            "COMP_CWORD": str(len(line.split()) - 1),
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.stderr == ""
    return done.stdout.split()


@quick_cases(1)
@pytest.mark.parametrize(
    ("line", "found"),
    [
        pytest.param(
            "coordgraph exp", ["export", "explain-index", "explain"], marks=pytest.mark.slow
        ),
        ("coordgraph run --target sm_9", ["sm_90", "sm_90a"]),
        ("coordgraph compile -s reorder,tw", ["reorder,two-tile-stream-k"]),
        ("coordgraph opt -p lower-to-h", ["lower-to-host", "lower-to-hopper"]),
        pytest.param("coordgraph explain split", ["split-k"], marks=pytest.mark.slow),
    ],
)
def test_the_shell_is_told(line: str, found: list[str]):
    assert asked(line) == found


def test_every_target_and_pass_is_known():
    assert completion.targets("") == list(TARGET_NAMES)
    assert set(completion.names_of_passes("")) >= set(PASSES)
    lowerings = {lowering.LowerToHost.name, lowering.LowerToHopper.name}
    assert lowerings <= set(completion.pipelines(""))
    assert not lowerings & set(completion.schedules(""))
    assert "stream-k" in completion.schedules("")


def test_passes_in_a_pipeline():
    assert completion.pipelines("reorder{swap=true,group=2},stream") == [
        "reorder{swap=true,group=2},stream-k"
    ]
    assert completion.pipelines("stream-k{owner=last,first") == []


def test_a_bar_has_a_percentage(monkeypatch: pytest.MonkeyPatch):
    screen = io.StringIO()
    terminal = Console(file=screen, force_terminal=True, width=80)
    monkeypatch.setattr(output, "stderr", lambda: terminal)
    with output.progress("running") as step:
        step(0.5)
        time.sleep(0.3)  # a progress bar is redrawn every 0.1 s, so this step is drawn
        step(7.0)
    drawn = screen.getvalue()
    assert "running" in drawn
    assert " 50%" in drawn
    assert "100%" in drawn


@pytest.mark.parametrize(("repeat", "most"), [(3, 3), (None, 20)])
def test_launches_say_how_far_they_are(repeat: int | None, most: int):
    steps: list[float] = []
    seconds = _repeated(lambda: 1.0, repeat, steps.append)
    assert len(seconds) == len(steps) <= most
    assert steps == sorted(steps)
    assert steps[-1] >= 1
