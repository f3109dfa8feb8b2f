"""Methods of a graph whose code is in other modules work without importing those modules first."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import codegen
import coordgraph
from coordgraph.hooks import Hook
from passes import StreamK
from tests.support.sampling import quick_cases

ROOT = Path(__file__).resolve().parents[2]
METHODS = ("coordinates.mermaid()", "pseudocode()", "verify()", "text()", "json()")
"""Methods of a graph, ordered so that no method's implementation imports that of the next one."""


def python(script: str, stdin: str = "") -> str:
    """The output of a script in a new Python process."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", script],
        cwd=ROOT,
        input=stdin,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@pytest.mark.slow
def test_the_first_call_imports_the_implementation():
    calls = "".join(f"print(graph.{method})\n" for method in METHODS)
    made = "from coordgraph.frontend import Gemm\ngraph = Gemm('f32').graph((16, 16, 16))\n"
    graph = coordgraph.Gemm("f32").graph((16, 16, 16))
    parts = (
        graph.coordinates.mermaid(),
        graph.pseudocode(),
        graph.verify(),
        graph.text(),
        graph.json(),
    )
    assert python(made + calls) == "".join(f"{part}\n" for part in parts)


@quick_cases(1)
@pytest.mark.parametrize("target", ["cpu", "sm_90a"])
def test_the_reader_knows_every_operation(target: str):
    """The text parser imports all modules of operations, so it knows every registered operation."""
    graph = StreamK(workgroups=3)(coordgraph.Gemm("bf16").graph((128, 256, 64)))
    lowered = codegen.compile(graph, target).lowered.text()
    again = "import sys, coordgraph\nprint(coordgraph.parse(sys.stdin.read()).text(), end='')"
    assert python(again, lowered) == lowered


def test_a_module_that_implements_nothing():
    hook = Hook[[], None]("Graph.fold", "coordgraph.errors")
    why = r"'Graph\.fold' has no implementation in coordgraph\.errors"
    with pytest.raises(RuntimeError, match=why):
        hook()
