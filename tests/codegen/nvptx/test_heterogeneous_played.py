"""Kernels with tiles of two shapes on the simulated Hopper GPU: every element of D is stored
once.
"""

from __future__ import annotations

from functools import cache
from itertools import product

import pytest

from coordgraph import KernelGraph
from coordgraph.interpreter import trace
from passes import HeterogeneousTiles
from passes.lowering import LowerToHopper
from tests.codegen.nvptx.hopper_machine import Hopper
from tests.codegen.nvptx.test_heterogeneous import TURNS, gemm
from tests.support.sampling import cover, quick_cases

PLAYED = {
    "cooperative": (LowerToHopper(stages=3), (128, 256, 64), (64, 64, 64)),
    "in m": (LowerToHopper(stages=3, cluster_m=2), (256, 128, 64), (128, 64, 64)),
    "in n": (LowerToHopper(stages=4, cluster_n=2), (128, 256, 64), (64, 128, 64)),
    "by elements": (LowerToHopper(stages=2, vector=2), (128, 128, 64), (64, 128, 64)),
    "boxes of two widths": (LowerToHopper(stages=2, reads_c=False), (128, 320, 64), (128, 160, 64)),
    "taking turns": (TURNS, (128, 128, 64), (64, 64, 64)),
    "taking turns in m": (
        LowerToHopper(stages=3, cluster_m=2, consumers="pingpong"),
        (256, 128, 64),
        (128, 128, 64),
    ),
}
PROBLEMS = {
    "full waves and a rest": (3, 3, 3, 4),
    "fewer tiles than workgroups": (1, 2, 5, 5),
    "full waves alone": (2, 2, 2, 4),
    "one k tile": (5, 1, 1, 3),
    "longer than the ring": (3, 1, 11, 2),
    "one workgroup": (1, 3, 2, 1),
}


@cache
def played(kind: str) -> tuple[KernelGraph, KernelGraph]:
    """(scheduled graph, lowered graph) of the configuration `PLAYED[kind]`."""
    step, large, small = PLAYED[kind]
    scheduled = HeterogeneousTiles(small_m=small[0], small_n=small[1])(gemm().graph(large))
    return scheduled, step(scheduled)


def play(kind: str, problem: tuple[int, ...], seed: int) -> None:
    """Simulate a problem; each element of D must be stored once, by a tile of the right shape."""
    _, large, small = PLAYED[kind]
    scheduled, made = played(kind)
    *tiles, workgroups = problem
    m, n, k = (count * extent - 8 for count, extent in zip(tiles, large, strict=True))
    sizes = {"m": m, "n": n, "k": k, "workgroups": workgroups}
    machine = Hopper(made, sizes, resident=2, seed=seed)
    machine.run()
    # A workgroup's part of a small tile has `high` rows and `wide` columns.
    high, wide = (
        extent // count for extent, count in zip(small, machine.cluster[:2], strict=False)
    )
    found: dict[tuple[int, int], str] = {}
    for (row, column), steps in machine.stored.items():
        ks = [k for (_, k), _ in steps]
        assert ks == [k for _, (k, _) in steps] == [large[2] * i for i in range(tiles[2])]
        ((top, left),) = {(r, c) for (r, _), (_, c) in steps}
        name = machine.accumulators[row, column]
        shape = small if name == "small" else large
        rows, columns = (x // count for x, count in zip(shape, machine.cluster[:2], strict=False))
        assert (row // rows, column // columns) == (top // rows, left // columns)
        for i, j in product(range(rows // high), range(columns // wide)):
            unit = top // high + i, left // wide + j
            assert found.setdefault(unit, name) == name
    wanted: dict[tuple[int, int], str] = {}
    known = {"m": m, "n": n, "k": k, "workgroups": workgroups}
    for tile in trace(scheduled, known).epilogues:
        name = "small" if tile.span == (1, 1) else "acc"
        places = zip(tile.tile, tile.span, machine.cluster, strict=False)
        units = (range(count * first, count * (first + span)) for first, span, count in places)
        rows, columns = units
        wanted |= {(row, column): name for row in rows for column in columns}
    assert found == wanted
    stores = {name: [*machine.accumulators.values()].count(name) for name in ("acc", "small")}
    parts = large[0] * large[1] // (small[0] * small[1])
    units = {name: [*wanted.values()].count(name) for name in ("acc", "small")}
    assert stores == {
        "acc": machine.team * units["acc"] // parts,
        "small": machine.team * units["small"],
    }
    for memory in (memory for ranks in machine.memory.values() for memory in ranks):
        filled = memory.steps.pop("producer", [])
        assert filled == list(range(len(filled)))
        multiplied = sorted(step for steps in memory.steps.values() for step in steps)
        assert multiplied == sorted(filled * machine.team)


@quick_cases(1)
@pytest.mark.parametrize(("kind", "problem"), cover(0, product(PLAYED, PROBLEMS)))
def test_every_element_is_stored_once_by_a_tile_of_its_shape(kind: str, problem: str):
    play(kind, PROBLEMS[problem], seed=0)


@pytest.mark.slow
@pytest.mark.parametrize("problem", PROBLEMS)
@pytest.mark.parametrize("kind", PLAYED)
def test_in_any_order(kind: str, problem: str):
    for seed in range(1, 20):
        play(kind, PROBLEMS[problem], seed=seed)
