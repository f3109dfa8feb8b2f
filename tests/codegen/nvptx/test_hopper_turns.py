"""Tests of ping-pong consumers (warpgroups that compute tiles alternately), in a simulation.

The producers and consumers of all workgroups advance in many random orders.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import product
from textwrap import dedent

import pytest

from coordgraph import Gemm, KernelGraph
from coordgraph.control.asynchronous import Advance, ArriveBarrier, InitBarrier, WaitBarrier
from coordgraph.control.graph import Rewrite
from coordgraph.control.operations import If, Operation, accumulates
from coordgraph.errors import PassError
from coordgraph.integers import to_text
from coordgraph.tilings import macro_tile
from passes import DataParallel, Pipeline
from passes.lowering import LowerToHopper
from passes.lowering.sm_90a.turns import ORDER
from tests.codegen.nvptx.hopper_machine import Hopper
from tests.support.golden import Golden
from tests.support.sampling import cover, quick_cases, words

ALONE, IN_M, IN_N, IN_BOTH, LARGE = (1, 1), (2, 1), (1, 2), (2, 2), (2, 4)
SCHEDULES = (
    "data-parallel",
    "data-parallel{persistent=true}",
    "rasterize{width=2,snake=true},data-parallel{persistent=true}",
    "stream-k",
    "stream-k{owner=last}",
    "stream-k{reduction=tree}",
    "stream-k{owner=last,reduction=tree}",
    "stream-k{reduction=turnstile}",
    "stream-k{owner=last,reduction=turnstile}",
    "stream-k{reduction=atomic}",
    "stream-k{owner=last,reduction=atomic}",
    "hybrid-stream-k{owner=last,first=dp,reduction=atomic}",
    "split-k{splits=4,reduction=atomic}",
    "split-k{splits=3}",
    "split-k{splits=4,owner=first,reduction=peers}",
    "hybrid-stream-k{owner=last,reduction=turnstile}",
    "two-tile-stream-k",
    "two-tile-stream-k{owner=last}",
    "two-tile-stream-k{first=dp}",
    "two-tile-stream-k{owner=last,first=dp,waves=contiguous}",
)
PROBLEMS = {
    "items of a workgroup even and odd": (3, 3, 3, 4),
    "as many tiles as workgroups": (2, 2, 5, 4),
    "one k tile": (5, 3, 1, 4),
    "one workgroup": (3, 2, 4, 1),
    "one tile in many pieces": (1, 1, 16, 5),
    "more workgroups than iterations": (1, 1, 3, 5),
    "shares end where tiles end": (4, 2, 6, 4),
    "longer than the ring": (2, 1, 23, 3),
}
"""For each problem: the numbers of tiles along m, n and k, and the number of workgroups."""
EVERYBODY = 1 << 16


@cache
def lowered(
    schedule: str, cluster: tuple[int, int] = ALONE, consumers: str = "pingpong", vector: int = 8
) -> KernelGraph:
    """A lowered graph with 64 x 128 elements of D for every workgroup, and few stages."""
    tile = (64 * cluster[0], 128 * cluster[1], 64)
    lowering = LowerToHopper(
        stages=3,
        cluster_m=cluster[0],
        cluster_n=cluster[1],
        consumers=consumers,
        vector=vector,
    )
    return lowering(Pipeline.parse(schedule)(Gemm("bf16", transpose_b=True).graph(tile)))


def play(graph: KernelGraph, problem: tuple[int, int, int, int], seed: int = 0) -> Hopper:
    """Simulate a launch; check that no work is missing or done twice; return the simulation."""
    *tiles, workgroups = problem
    extents = macro_tile(graph.coordinates)
    # The last tile of each axis is partly filled.
    m, n, k = (count * extent - 8 for count, extent in zip(tiles, extents, strict=True))
    sizes = {"m": m, "n": n, "k": k, "workgroups": workgroups}
    # If workgroups wait only for workgroups with lower numbers, two resident ones suffice, because
    # they start in order. Otherwise all workgroups must be resident.
    in_order = any(
        "owner=last" in step
        or "data-parallel" in step
        or ("split-k" in step and "owner=first" not in step and "scatter" not in step)
        for step in graph.log
    )
    resident = 2 if in_order else EVERYBODY
    machine = Hopper(graph, sizes, resident=resident, seed=seed)
    machine.run()
    covered(machine, (tiles[0], tiles[1], tiles[2]))
    return machine


def covered(machine: Hopper, tiles: tuple[int, int, int]) -> None:
    """Check that each part of each tile is stored once, and sums each k tile of the tile once."""
    rows, columns, depth = macro_tile(machine.graph.coordinates)
    m, n, _ = machine.cluster
    parts = {(i, j) for i in range(tiles[0] * m) for j in range(tiles[1] * n)}
    found: set[tuple[int, int]] = set()
    for (row, column), steps in machine.stored.items():
        ks = sorted(k for (_, k), _ in steps)
        assert ks == [depth * i for i in range(tiles[2])]
        assert all(k == other for (_, k), (other, _) in steps)
        ((first_row, first_column),) = {(r, c) for (r, _), (_, c) in steps}
        part = (first_row // (rows // m), first_column // (columns // n))
        assert (row // (rows // m), column // (columns // n)) == part
        found.add(part)
    assert found == parts
    # A warpgroup stores its part of a tile whole, or, in a reduce-scatter, in `shares` pieces.
    coordinates, count = machine.graph.coordinates, sum(machine.finished.values())
    shares = coordinates["fixup.share"].fixed_size if "fixup.share" in coordinates else 1
    assert count % (machine.team * shares) == 0
    assert len(machine.stored) - count + count // shares == len(parts) * machine.team
    assert not any(machine.flags.values())
    assert not machine.added
    for memory in (memory for ranks in machine.memory.values() for memory in ranks):
        steps = dict(memory.steps)
        filled = steps.pop("producer", [])
        assert filled == list(range(len(filled)))
        assert sorted(s for each in steps.values() for s in each) == sorted(filled * machine.team)


@quick_cases(2)
@pytest.mark.parametrize(("schedule", "problem"), cover(8, product(SCHEDULES, PROBLEMS), words))
def test_every_step_is_multiplied_by_the_one_warpgroup_that_has_it(schedule: str, problem: str):
    machine = play(lowered(schedule), PROBLEMS[problem])
    assert machine.team == 1
    assert machine.warpgroups == 3


@quick_cases(2)
@pytest.mark.parametrize(
    ("schedule", "cluster", "seed"),
    cover(
        4,
        product(SCHEDULES, (IN_M, IN_N, IN_BOTH), range(8)),
        lambda case: (case[0].partition("{")[0], case[1]),
    ),
)
def test_clusters_in_every_order(schedule: str, cluster: tuple[int, int], seed: int):
    for problem in ("items of a workgroup even and odd", "one tile in many pieces"):
        play(lowered(schedule, cluster), PROBLEMS[problem], seed)


COOPERATIVE = tuple(s for s in SCHEDULES if "first=dp" not in s and "rasterize" not in s)


@quick_cases(1)
@pytest.mark.parametrize(
    ("schedule", "cluster", "problem"),
    cover(
        6,
        product(COOPERATIVE, (IN_BOTH, LARGE), PROBLEMS),
        lambda case: (case[0].partition("{")[0], case[1]),
    ),
)
def test_both_operands_are_multicast(schedule: str, cluster: tuple[int, int], problem: str):
    machine = play(lowered(schedule, cluster, "cooperative"), PROBLEMS[problem])
    assert machine.ranks == cluster[0] * cluster[1]


@quick_cases(2)
@pytest.mark.parametrize("vector", [8, 2])
@pytest.mark.parametrize("consumers", ["cooperative", "pingpong"])
def test_both_kinds_of_consumers_store_the_same(consumers: str, vector: int):
    """Cooperative and ping-pong consumers store the same tiles; cooperative warpgroups store
    half a tile each.
    """
    graph = lowered("stream-k{owner=last}", IN_M, consumers, vector)
    machine = play(graph, PROBLEMS["items of a workgroup even and odd"])
    assert machine.turns == (consumers == "pingpong")


@quick_cases(2)
@pytest.mark.parametrize(
    "schedule", cover(6, [s for s in SCHEDULES[1:] if "split-k" not in s], words)
)
def test_warpgroups_have_every_second_work_item(schedule: str):
    machine = play(lowered(schedule), PROBLEMS["one workgroup"])
    stored = [warpgroup for _, _, warpgroup in machine.epilogues]
    assert (stored.count(0), stored.count(1)) == (3, 3)


def test_work_items_are_those_of_one_count():
    c = lowered("stream-k").coordinates
    names = ["item.warpgroup", "item.phase", ORDER]
    who, phase, barrier = c.reverse(["item.number"], names)
    assert (to_text(who), to_text(phase)) == ("item.number % 2", "item.number // 2 % 2")
    assert barrier == who


def test_what_is_lowered(golden: Golden):
    """The lowered graph of a kernel with ping-pong consumers, as text, equals the golden file.

    In the graph, a warpgroup waits until the other warpgroup has issued its main loop. A warpgroup
    does not read the stages of the other warpgroup's tiles, but advances its stage counter past
    them.
    """
    text = lowered("data-parallel{persistent=true}").text()
    start, end = (text.index(f"Scope name={name}") for name in ("consumers", "producer"))
    lines = text[:end].splitlines()[text[:start].count("\n") :]
    depth = len(lines[0]) - len(lines[0].lstrip())
    last = next(i for i, line in enumerate(lines) if line == " " * depth + "}")
    golden(dedent("\n".join(lines[: last + 1])), "codegen/nvptx/pingpong.consumers.txt")


def test_two_loops_in_a_row_are_refused():
    """Ping-pong consumers are refused for a graph with two accumulation loops in a row.

    For such a graph it is not defined which warpgroup executes the second loop.
    """
    graph = DataParallel()(Gemm("bf16").graph((64, 128, 64)))

    def twice(op: Operation) -> Operation | tuple[Operation, ...]:
        return (op, op) if accumulates(op) else op

    with pytest.raises(PassError, match="accumulation loops follow each other in one body"):
        LowerToHopper(consumers="pingpong")(broken(graph, twice))


def broken(graph: KernelGraph, change: Rewrite) -> KernelGraph:
    """A copy of the graph with a planted fault: `change` has replaced some control operations."""
    control = graph.control.rewrite(change)
    assert control is not graph.control
    return replace(graph, control=control)


def uncounted(op: Operation) -> Operation:
    """Plant a fault: a warpgroup's stage counter does not skip stages that the other one reads."""
    skips = isinstance(op, If) and any(isinstance(x, Advance) for x in op.orelse)
    return replace(op, orelse=()) if skips else op


def unordered(op: Operation) -> Operation | tuple[Operation, ...]:
    """Plant a fault: a warpgroup begins its main loop before the other has issued its main loop."""
    return () if isinstance(op, WaitBarrier) and op.barrier == ORDER else op


def silent(op: Operation) -> Operation | tuple[Operation, ...]:
    """Plant a fault: a warpgroup does not signal that it has issued its main loop."""
    return () if isinstance(op, ArriveBarrier) and op.barrier == ORDER else op


def doubly_freed(op: Operation) -> Operation:
    """Plant a fault: a stage is free only after two warpgroups arrive, but one alone reads it."""
    both = isinstance(op, InitBarrier) and op.barrier == "barrier.empty"
    return replace(op, arrivals=2) if both else op


@pytest.mark.parametrize("change", [uncounted, unordered, silent, doubly_freed])
def test_the_machine_sees_what_is_broken(change: Rewrite):
    """The simulation finds each fault in at least one of 20 random orders of the warps."""
    graph = broken(lowered("stream-k{owner=last}"), change)

    def many() -> None:
        for seed in range(20):
            play(graph, PROBLEMS["items of a workgroup even and odd"], seed)

    with pytest.raises(AssertionError):
        many()
