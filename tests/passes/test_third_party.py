"""Passes and edges of other packages, written with public names alone, work like the library's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
import pytest
from sympy import Expr
from sympy.logic.boolalg import Boolean

from coordgraph import Gemm, KernelGraph
from coordgraph.coordinates.dimensions import MacroTileNumber
from coordgraph.coordinates.edges import Edge, Law, Sizes, Swizzle
from coordgraph.integers import Ranges, equal
from coordgraph.interpreter import SCHEDULERS, interpret, trace
from coordgraph.progress import wait_direction
from passes import Pass, Pipeline
from tests.passes.schedules import CORNERS, SCHEDULES, WHOLE_TILES, schedule
from tests.passes.test_invariants import waits_for_lower
from tests.support.sampling import cover, quick_cases, words


@dataclass(frozen=True)
class Snake(Pass):
    """Boustrophedon order: odd rows of output tiles are visited from right to left."""

    name = "test-snake"
    establishes = ("problem",)

    def why_not(self, graph: KernelGraph) -> str | None:
        return None if len(graph.dangling) == 2 else "needs a row and a column"

    def apply(self, graph: KernelGraph) -> KernelGraph:
        row, column = graph.dangling
        with graph.edit(str(self)) as e:
            c = e.coordinates
            c.add(MacroTileNumber("snake.row", row.size))
            c.add(MacroTileNumber("snake.column", column.size))
            below = ("snake.row", "snake.column")
            c.connect(Swizzle((row.id, column.id), below, function="snake"))
        return e.graph


@dataclass(frozen=True)
class Backwards(Edge):
    """`Backwards(I; O)`: `i = n - 1 - o` and `o = n - 1 - i`. Size rule: equal sizes."""

    arity = (1, 1)
    laws = frozenset({Law.REVERSE_UNDOES_FORWARD, Law.FORWARD_UNDOES_REVERSE})

    def size_rule(self, sizes: Sizes) -> tuple[Boolean, ...]:
        (above,), (below,) = sizes.upstream, sizes.downstream
        assert above is not None
        assert below is not None
        return (equal(above, below),)

    def reverse(
        self, indices: Sequence[Expr | None], sizes: Sizes, ranges: Ranges
    ) -> tuple[Expr, ...]:
        return (self.mirrored(indices[0], sizes),)

    def forward(self, indices: Sequence[Expr], sizes: Sizes, ranges: Ranges) -> tuple[Expr, ...]:
        return (self.mirrored(indices[0], sizes),)

    def mirrored(self, index: Expr | None, sizes: Sizes) -> Expr:
        (size,) = sizes.upstream
        assert size is not None
        assert index is not None
        return size - 1 - index


@dataclass(frozen=True)
class LastRowFirst(Pass):
    """Rows of output tiles are visited from the last to the first."""

    name = "test-last-row-first"
    establishes = ("problem",)

    def apply(self, graph: KernelGraph) -> KernelGraph:
        row, *_ = graph.dangling
        with graph.edit(str(self)) as e:
            below = e.coordinates.add(MacroTileNumber(e.coordinates.fresh("from_below"), row.size))
            e.coordinates.connect(Backwards(row, below))
        return e.graph


def visited(graph: KernelGraph, problem: tuple[int, int, int, int]) -> list[tuple[int, ...]]:
    m, n, k, workgroups = problem
    given = {"m": m, "n": n, "k": k, "workgroups": workgroups}
    found = trace(graph, {name: v for name, v in given.items() if name in graph.parameters})
    assert found.problems() == ()
    return list(dict.fromkeys(s.tile for s in found.segments))


ORDERS = (Snake(), LastRowFirst())
OUTSIDE = pytest.mark.parametrize("order", ORDERS, ids=str)


def check(graph: KernelGraph, problem: tuple[int, int, int, int]) -> None:
    m, n, k, workgroups = problem
    visited(graph, problem)
    random = np.random.default_rng(m)
    a = random.integers(-4, 5, (m, k)).astype(np.float32)
    b = random.integers(-4, 5, (k, n)).astype(np.float32)
    given = {"workgroups": workgroups} if "workgroups" in graph.parameters else {}
    for kind in ("reversed", "starve-signallers"):
        result = interpret(graph, a, b, parameters=given, schedule=SCHEDULERS[kind]())
        assert np.array_equal(result.d, a @ b)


@quick_cases(3)
@pytest.mark.parametrize(
    ("name", "order", "corner"),
    cover(0, product(SCHEDULES, ORDERS, ("one tile in many pieces", "ragged everywhere")), words),
    ids=str,
)
def test_orders_from_outside_compose_with_every_schedule(name: str, order: Pass, corner: str):
    m, n, k, workgroups = CORNERS[corner]
    step = schedule(name, workgroups)
    graph = Pipeline([order, step])(Gemm("f32", m=m, n=n, k=k).graph((4, 4, 4)))
    sharing = "lower" if waits_for_lower(name) else "higher"
    expected = "none" if name.startswith(WHOLE_TILES) else sharing
    if "scatter" in name:  # workgroups wait for lower- and higher-numbered ones
        expected = "mixed"
    assert wait_direction(graph) == expected
    check(graph, CORNERS[corner])


@quick_cases(1)
@OUTSIDE
@pytest.mark.parametrize("name", ["stream-k", "two-tile-stream-k{owner=last,first=dp}"])
def test_orders_from_outside_keep_sizes_symbolic(name: str, order: Pass):
    graph = Pipeline([order, SCHEDULES[name]])(Gemm("f32").graph((4, 4, 4)))
    for problem in CORNERS.values():
        check(graph, problem)


def test_the_snake_goes_to_and_fro():
    graph = Pipeline.parse("test-snake,stream-k{workgroups=2}")(Gemm("f32").graph((4, 4, 4)))
    assert visited(graph, (12, 12, 8, 2)) == [
        *((0, n) for n in (0, 1, 2)),
        *((1, n) for n in (2, 1, 0)),
        *((2, n) for n in (0, 1, 2)),
    ]


def test_rows_come_from_below():
    graph = Pipeline.parse("test-last-row-first,data-parallel")(Gemm("f32").graph((4, 4, 4)))
    assert visited(graph, (12, 8, 8, 1)) == [(m, n) for m in (2, 1, 0) for n in (0, 1)]


def test_orders_from_outside_compose_with_each_other():
    both = Pipeline.parse("test-snake,test-last-row-first,data-parallel")
    graph = both(Gemm("f32", m=12, n=8, k=4).graph((4, 4, 4)))
    assert visited(graph, (12, 8, 4, 1)) == [(2, 0), (2, 1), (1, 1), (1, 0), (0, 0), (0, 1)]
