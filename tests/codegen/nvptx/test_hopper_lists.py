"""Kernels for lists of products are lowered correctly for Hopper; needs no GPU.

Each matrix has a tensor map, and TMA boxes end where the matrix ends.
"""

from __future__ import annotations

from functools import cache
from itertools import product

import pytest

from coordgraph import Gemm, KernelGraph
from coordgraph.control.asynchronous import StoreBox
from coordgraph.tilings import macro_tile
from passes import Pipeline
from passes.lowering import LowerToHopper
from tests.codegen.nvptx.hopper_machine import Hopper
from tests.support.lists import Sizes, ends_of, pitch
from tests.support.sampling import cover, quick_cases

PERSISTENT, LAST = "data-parallel{persistent=true}", "stream-k{owner=last}"
SCHEDULES = (
    PERSISTENT,
    LAST,
    "stream-k",
    "stream-k{owner=last,reduction=turnstile}",
    "stream-k{owner=last,reduction=atomic}",
    "two-tile-stream-k",
)
LOWERINGS = {
    "two blocks of rows": ((128, 128, 64), LowerToHopper(reads_c=False)),
    "with C": ((128, 128, 64), LowerToHopper()),
    "a cluster": ((256, 128, 64), LowerToHopper(cluster_m=2, reads_c=False)),
    "swapped": ((48, 128, 64), LowerToHopper(reads_c=False)),
    "taking turns": ((64, 128, 64), LowerToHopper(consumers="pingpong", reads_c=False)),
    "wide boxes": ((128, 48, 64), LowerToHopper(reads_c=False)),
}
LISTS: dict[str, list[Sizes]] = {
    "ragged": [(300, 130, 100), (1, 1, 1), (70, 260, 200)],
    "whole tiles": [(256, 256, 128), (256, 128, 64)],
    "empty ones": [(0, 300, 200), (130, 72, 65), (9, 0, 100), (5, 9, 0), (0, 0, 0)],
    "no k": [(140, 130, 0), (1, 60, 0)],
    "nothing": [(0, 300, 500)],
    "deep": [(60, 40, 700), (3, 5, 300)],
}


@cache
def lowered(schedule: str, name: str) -> KernelGraph:
    tile, lowering = LOWERINGS[name]
    gemm = Gemm("bf16", transpose_b=True, grouped=True, group_axis="mnk")
    return lowering(Pipeline.parse(schedule)(gemm.graph(tile))).verify()


@quick_cases(1)
@pytest.mark.parametrize(
    ("schedule", "name", "sizes"), cover(0, product(SCHEDULES, LOWERINGS, LISTS))
)
def test_every_box_of_every_product_is_stored_once(schedule: str, name: str, sizes: str):
    """Every box of every product is stored once, with the sum over the product's own k.

    The simulated GPU refuses a box without a tensor map, or with the map of another matrix.
    """
    graph, products = lowered(schedule, name), LISTS[sizes]
    sides = [[*map(int, row)] for row in ends_of(products)]
    elements = {
        "elements_a": sum(m * pitch(k) for m, _, k in products),
        "elements_b": sum(n * pitch(k) for _, n, k in products),
        "elements_d": sum(m * pitch(n) for m, n, _ in products),
    }
    given = {name: max(1, count) for name, count in elements.items()}
    given |= {"groups": len(products), "workgroups": 3}
    resident = 3 if schedule in ("two-tile-stream-k", "stream-k") else 2
    machine = Hopper(graph, given, resident=resident, seed=len(name), sides=sides)
    machine.run()
    assert not any(machine.flags.values())
    assert not machine.added
    ((wide, high),) = {op.box for op in graph.control.of_kind(StoreBox)}
    (rows, columns, depth), ways = macro_tile(graph.coordinates), dict[tuple[int, int], str]()
    rows //= machine.cluster[0]
    steps: dict[tuple[int, int], list[int]] = {}
    for group, (m, n, k) in enumerate(products):
        top, left, begin = (side[group] for side in sides)
        for row in range(0, m, rows):
            for column in range(0, n, columns):
                places = [
                    (top + row + i, left + column + j)
                    for i in range(0, min(rows, m - row), high)
                    for j in range(0, min(columns, n - column), wide)
                ]
                ways |= dict.fromkeys(places, "engine")
                for place in places:
                    steps[place] = list(range(begin, begin + max(1, k), depth))
    assert machine.boxes == ways
    for place, found in machine.stored.items():
        assert sorted(at for (_, at), _ in found) == steps[place]
        assert sorted(at for _, (at, _) in found) == steps[place]
    assert bool(machine.stored) == bool(ways)
