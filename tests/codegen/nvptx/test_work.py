"""Generating PTX takes little work, which is counted in function calls rather than in seconds."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

import codegen
from codegen.emit.expressions import Expressions
from codegen.targets.nvptx.program import CudaProgram
from coordgraph import Gemm
from coordgraph.control.resolve import resolve
from coordgraph.integers import index_symbol, size_symbol
from coordgraph.integers.bounds import NumericBounds
from passes import Pass, StreamK, TwoTileStreamK
from passes.kit import Owner
from tests.support.sampling import quick_cases

TILE = (128, 256, 64)
STREAMED = (
    StreamK(),
    StreamK(owner="last"),
    TwoTileStreamK(),
    TwoTileStreamK(owner="last", first="dp"),
)


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Counts of printed expressions, and of polynomials whose bounds are computed.

    The keys are the names of the methods that do this: `_print` and `_find_numeric_minimum`.
    """
    counts: Counter[str] = Counter()

    def watch(owner: type, name: str) -> None:
        work: Callable[..., Any] = getattr(owner, name)

        def noted(*args: Any) -> Any:
            counts[name] += 1
            return work(*args)

        monkeypatch.setattr(owner, name, noted)

    watch(Expressions, "_print")
    watch(NumericBounds, "_find_numeric_minimum")
    return counts


@quick_cases(1)
@pytest.mark.parametrize("schedule", STREAMED, ids=str)
def test_code_is_made_with_little_work(schedule: Pass, counted: Counter[str]):
    """Thanks to caches, code generation prints few expressions and bounds few polynomials.

    Without caches, 25,000 expressions were printed and the bounds of 60,000 polynomials computed.
    Polynomials that differ only in a constant share one bound; if they did not, bounds would be
    computed for 1,800 to 3,000 polynomials.
    """
    _ = CudaProgram(schedule(Gemm().graph(TILE)), "sm_90a").module
    assert 0 < counted["_print"] < 3_000
    assert 0 < counted["_find_numeric_minimum"] < 1_800


def test_from_graph_to_ptx_in_less_than_three_seconds():
    best = float("inf")
    for _ in range(3):  # the test tries three times, since garbage collection may slow down one try
        graph = Gemm().graph(TILE)
        start = time.process_time()
        assert CudaProgram(StreamK(owner="last")(graph), "sm_90a").ptx
        best = min(best, time.process_time() - start)
        if best < 3:
            break
    assert best < 3


@quick_cases(3)
@pytest.mark.parametrize("schedule", STREAMED, ids=str)
def test_no_guard_asks_whether_there_are_tiles_left(schedule: Pass):
    """No generated guard compares a tile's number with `tiles_m`, since it is proved to be less."""
    kernel = codegen.compile(schedule(Gemm().graph((128, 128, 32))), "sm_80")
    guards = [x.guard for x in kernel.index_expressions]
    assert any("< m" in guard for guard in guards)
    assert not [guard for guard in guards if "tiles_m" in guard]


@pytest.mark.parametrize("owner", ["first", "last"])
def test_iterations_fit_32_bits(owner: Owner):
    program = CudaProgram(StreamK(owner=owner)(Gemm().graph(TILE)), "sm_90a")
    graph = program.lowered
    place = size_symbol("share") * index_symbol("workgroup") + index_symbol("for_tile")
    inside = [
        node.scope.ranges
        for root in resolve(graph.control.root.body, graph.scope())
        for node in root.walk()
        if "for_tile" in node.scope.known
    ]
    assert inside
    assert all(ranges.fits(place, 32) for ranges in inside)
