"""Groups along k on the simulated Hopper GPU: past a group's end wgmma reads only zeros.

The simulation knows the k of every element in shared memory. The simulation refuses a
multiplication of elements past a group's end, and zeros stored before that end; it ignores zeros
that were not fenced and published at a barrier.
"""

from __future__ import annotations

from functools import cache
from itertools import accumulate, pairwise, product

import pytest
from _pytest.mark import ParameterSet

from coordgraph import Gemm, KernelGraph, parse
from coordgraph.tilings import macro_tile
from passes import Pipeline
from passes.lowering import LowerToHopper
from tests.codegen.nvptx.hopper_machine import Hopper
from tests.support.sampling import cover, quick_cases

SCHEDULES = (
    "data-parallel{persistent=true}",
    "stream-k{owner=last}",
    "stream-k{reduction=scatter}",
    "two-tile-stream-k{owner=last,reduction=turnstile}",
    "stream-k{reduction=atomic}",
)
LOWERINGS = {
    "two warpgroups": ((128, 256, 64), LowerToHopper()),
    "one warpgroup": ((64, 128, 64), LowerToHopper()),
    "a cluster": ((256, 128, 64), LowerToHopper(cluster_m=2)),
    "a cluster along n": ((128, 256, 64), LowerToHopper(cluster_n=2)),
    "swapped": ((48, 128, 64), LowerToHopper()),
    "taking turns": ((64, 128, 64), LowerToHopper(consumers="pingpong")),
    "deep": ((64, 128, 128), LowerToHopper()),
    "narrow boxes": ((128, 48, 64), LowerToHopper()),
    "uneven": ((192, 160, 64), LowerToHopper()),
    "k divided": ((64, 64, 256), LowerToHopper(cluster_k=4)),
}
GROUPS = {
    "empty ones": (0, 0, 300, 0, 5, 0),
    "single elements": (1, 1, 1),
    "whole tiles": (256, 512, 256),
    "one less, one more": (63, 65, 257),
    "ragged": (3, 300, 70, 64, 190),
    "no k at all": (0, 0),
}


@cache
def lowered(schedule: str, name: str) -> KernelGraph:
    tile, lowering = LOWERINGS[name]
    gemm = Gemm("bf16", transpose_a=True, grouped=True, group_axis="k")
    return lowering(Pipeline.parse(schedule)(gemm.graph(tile))).verify()


def play(graph: KernelGraph, sizes: tuple[int, ...], first: int = 5, workgroups: int = 3) -> Hopper:
    """Simulate a product grouped along k, with 2 x 2 output tiles in each group.

    Returns the simulation after its end.
    """
    rows, columns, _ = macro_tile(graph.coordinates)
    offsets = list(accumulate((first, *sizes)))
    given = {
        "m": 2 * rows - 8,
        "n": 2 * columns - 8,
        "k": offsets[-1] + 9,
        "groups": len(sizes),
        "workgroups": workgroups,
    }
    whole = "data-parallel" in graph.log[0]
    machine = Hopper(
        graph, given, resident=2 if whole else workgroups, seed=len(sizes), offsets=offsets
    )
    machine.run()
    return machine


def cases() -> list[ParameterSet]:
    """Combinations of schedule, groups and lowering.

    Reduce-scatter is not combined with ping-pong, because all warpgroups of a workgroup
    complete its share of a tile together.
    """
    odd = {SCHEDULES[2], "taking turns"}
    return cover(0, [case for case in product(SCHEDULES, GROUPS, LOWERINGS) if not odd <= {*case}])


@quick_cases(1)
@pytest.mark.parametrize(("schedule", "groups", "name"), cases())
def test_every_k_of_a_group_is_multiplied_once(schedule: str, groups: str, name: str):
    graph, sizes, first = lowered(schedule, name), GROUPS[groups], 5
    machine, depth = play(graph, sizes, first), macro_tile(graph.coordinates)[2]
    assert not any(machine.flags.values())
    assert not machine.added
    assert set(machine.boxes.values()) == {"engine"}
    borders = list(pairwise(accumulate((first, *sizes))))
    assert {row // machine.rows for row, _ in machine.stored} == set(range(len(sizes)))
    for (row, _), steps in machine.stored.items():
        begin, end = borders[row // machine.rows]
        # A group with k = 0 has one k tile of zeros, so its range is not empty.
        wanted = list(range(begin, max(end, begin + 1), depth))
        assert sorted(k for (_, k), _ in steps) == wanted
        assert sorted(k for _, (k, _) in steps) == wanted
        assert len({(top, left) for (top, _), (_, left) in steps}) == 1


FILLS = {x: f"FillElements destination={x}.shared" for x in "AB"}
LAST_ONE = "k_tile == load(tile_starts, group + 1) - load(tile_starts, group) - 1 {"


def tail(lines: list[str]) -> list[int]:
    """Line numbers, in a graph's text, of the fence and the barrier after zeros are stored."""
    filled = max(i for i, line in enumerate(lines) if FILLS["B"] in line)
    fence = next(i for i in range(filled, len(lines)) if "FenceShared" in lines[i])
    assert "Barrier" in lines[fence + 1]
    return [fence, fence + 1]


def bent(graph: KernelGraph, how: str) -> KernelGraph:
    """The graph with a planted fault in the operations that zero elements past a group's end.

    `how` describes the fault, such as "no fence".
    """
    lines = graph.text().splitlines()
    fence, barrier = tail(lines)
    match how:
        case "no zeros in A":
            lines = [line for line in lines if FILLS["A"] not in line]
        case "no zeros in B":
            lines = [line for line in lines if FILLS["B"] not in line]
        case "no fence":
            del lines[fence]
        case "no barrier":
            del lines[barrier]
        case "the fence after the barrier":
            lines[fence], lines[barrier] = lines[barrier], lines[fence]
        case "zeros one k tile too early":
            lines = [x.replace(LAST_ONE, LAST_ONE.replace("- 1 {", "- 2 {")) for x in lines]
        case "zeros inside the group":
            at = lines.index(next(x for x in lines if FILLS["A"] in x))
            lines[at - 1 : at + 1] = [lines[at], lines[at - 1]]
        case _:
            raise AssertionError(how)
    found = parse("\n".join(lines) + "\n")
    assert found != graph
    return found


@quick_cases(2)
@pytest.mark.parametrize("name", ["two warpgroups", "taking turns"])
@pytest.mark.parametrize(
    ("how", "why"),
    [
        ("no zeros in A", "past a group's end are multiplied"),
        ("no zeros in B", "past a group's end are multiplied"),
        ("no fence", "past a group's end are multiplied|freed before"),
        ("no barrier", "past a group's end are multiplied"),
        ("the fence after the barrier", "past a group's end are multiplied"),
        ("zeros one k tile too early", "past a group's end are multiplied"),
        ("zeros inside the group", "elements are zeroed|past a group's end"),
    ],
)
def test_the_machine_refuses_what_is_wrong(how: str, why: str, name: str):
    graph = lowered(SCHEDULES[0], name)
    play(graph, GROUPS["ragged"])
    with pytest.raises(AssertionError, match=why):
        play(bent(graph, how), GROUPS["ragged"])


def test_what_is_not_cut_is_not_touched():
    """If each group's k is a multiple of the k tile, kernels are right without stores of zeros."""
    graph = lowered(SCHEDULES[0], "two warpgroups")
    play(bent(graph, "no zeros in A"), (64, 128, 64))
    play(bent(graph, "no barrier"), (64, 128, 64))
