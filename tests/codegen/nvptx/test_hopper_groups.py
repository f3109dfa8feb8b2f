"""Groups of rows on Hopper: TMA stores a box of D that lies in one group, else threads store it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from itertools import pairwise

import numpy as np
import pytest
from sympy import And, Expr, Integer, true

from coordgraph import Gemm, KernelGraph
from coordgraph.control.asynchronous import MultiplyShared, StoreBox, WaitMultiplies
from coordgraph.control.lowered import CopyElements
from coordgraph.control.operations import Body, If, Locate, Operation
from coordgraph.control.resolve import Node, resolve
from coordgraph.integers import compile_function, index_symbol, load, symbols_of
from coordgraph.tilings import macro_tile
from passes import Pipeline
from passes.lowering import LowerToHopper
from tests.codegen.nvptx.hopper_machine import Hopper
from tests.codegen.nvptx.isa import Array, swizzled
from tests.support.sampling import cover, quick_cases

PERSISTENT, LAST = "data-parallel{persistent=true}", "stream-k{owner=last}"
SCHEDULES = (
    PERSISTENT,
    LAST,
    "stream-k{owner=last,reduction=turnstile}",
    "two-tile-stream-k",
    "stream-k{owner=last,reduction=atomic}",
)
LOWERINGS = {
    "two warpgroups": ((128, 256, 64), LowerToHopper()),
    "two warpgroups without C": ((128, 256, 64), LowerToHopper(reads_c=False)),
    "two blocks of rows": ((128, 128, 64), LowerToHopper(reads_c=False)),
    "a cluster": ((256, 128, 64), LowerToHopper(cluster_m=2)),
    "swapped": ((48, 128, 64), LowerToHopper()),
    "taking turns": ((128, 128, 64), LowerToHopper(consumers="pingpong", reads_c=False)),
    "wide boxes": ((128, 48, 64), LowerToHopper()),
    "an odd number of chunks": ((128, 88, 64), LowerToHopper()),
    "wide boxes of several slots": ((128, 160, 64), LowerToHopper(reads_c=False)),
    "narrow boxes": ((128, 240, 64), LowerToHopper(reads_c=False)),
    "slots that go round unevenly": ((128, 288, 64), LowerToHopper(reads_c=False)),
    "k divided": ((64, 64, 256), LowerToHopper(cluster_k=4)),
}
every_lowering = pytest.mark.parametrize("name", LOWERINGS)
GROUPS = {
    "empty ones": (0, 0, 300, 0, 5, 0),
    "single rows": (1, 1, 1),
    "whole tiles": (256, 512, 256),
    "one less, one more": (255, 257, 511),
    "ragged": (3, 300, 70, 64, 190, 129),
    "no row at all": (0, 0),
}


@cache
def lowered(schedule: str, name: str) -> KernelGraph:
    tile, lowering = LOWERINGS[name]
    gemm = Gemm("bf16", transpose_b=True, grouped=True)
    return lowering(Pipeline.parse(schedule)(gemm.graph(tile))).verify()


def cases() -> Iterator[tuple[str, str]]:
    """Yield pairs (schedule, name of a problem).

    The first schedule is combined with all problems, each other schedule with some problems.
    """
    for place, schedule in enumerate(SCHEDULES):
        for number, groups in enumerate(GROUPS):
            if place == 0 or number % len(SCHEDULES) == place:
                yield schedule, groups


@quick_cases(2)
@pytest.mark.parametrize(
    ("schedule", "groups", "name"),
    cover(0, [(*case, name) for case in cases() for name in LOWERINGS]),
)
def test_every_box_of_every_group_is_stored_once(schedule: str, name: str, groups: str):
    """Every box of D is stored once: by TMA if the box lies in its group, else row by row.

    The simulated GPU refuses boxes that reach into the next group, and staging slots of D that are
    filled too early.
    """
    graph, sizes, first = lowered(schedule, name), GROUPS[groups], 5
    rows, columns, depth = macro_tile(graph.coordinates)
    n, k, offsets = 2 * columns - 8, 3 * depth, [first]
    for size in sizes:
        offsets.append(offsets[-1] + size)
    given = {"m": offsets[-1] + 9, "n": n, "k": k, "groups": len(sizes), "workgroups": 3}
    resident = 3 if "two-tile" in schedule else 2
    machine = Hopper(graph, given, resident=resident, seed=len(name), offsets=offsets)
    machine.run()
    assert not any(machine.flags.values())
    assert not machine.added
    ((wide, high),) = {op.box for op in graph.control.of_kind(StoreBox)}
    expected: dict[tuple[int, int], str] = {}
    for begin, end in pairwise(offsets):
        # The first box of a tile begins at the tile's first row. The last box of a tile may have
        # fewer rows than the others.
        for top in range(begin, end, rows):
            for row in range(top, min(top + rows, end), high):
                way = "engine" if row + high <= end else "rows"
                expected |= {(row, column): way for column in range(0, 2 * columns, wide)}
    assert machine.boxes == expected
    for (row, column), steps in machine.stored.items():
        assert sorted(at for (_, at), _ in steps) == list(range(0, k, depth))
        tile = {(place, other) for (place, _), (_, other) in steps}
        ((top, left),) = tile
        (begin,) = (b for b, e in pairwise(offsets) if b <= row < e)
        assert (top - begin) % (rows // machine.cluster[0]) == 0
        assert 0 <= row - top < rows // machine.cluster[0]
        assert 0 <= column - left < columns


def nodes(graph: KernelGraph) -> list[Node]:
    roots = resolve(graph.control.root.body, graph.scope())
    return [node for root in roots for node in root.walk()]


@quick_cases(3)
@every_lowering
def test_rows_of_a_box_are_copied_once_from_where_they_lie(name: str):
    """Every 16-byte chunk of a box is copied once, from its swizzled address to its row and
    column of D.
    """
    graph = lowered(PERSISTENT, name)
    rows, columns, _ = macro_tile(graph.coordinates)
    (node,) = (node for node in nodes(graph) if isinstance(node.op, CopyElements))
    assert isinstance(node.op, CopyElements)
    assert (node.op.source, node.op.destination, node.op.width) == ("D.shared", "D", 8)
    (box,) = {op.box for op in graph.control.of_kind(StoreBox)}
    wide, high = box
    c = graph.coordinates
    size = {dim.id: dim.fixed_size for dim in c if dim.size is not None and dim.size.is_Integer}
    ranks = size.get("cluster.rank", 1) if name != "k divided" else 1
    dims = ("store.m", "store.box", "store.copy.pass")
    consumers = size["warpgroup"] - 1
    sizes = (ranks, 128 * consumers, *(size[dim] for dim in dims))
    rank, workitem, *places = np.ix_(*map(range, sizes))
    # The tile under test is the second one of a group, in the first column of tiles.
    launch = {"A.tile.0": 1, "wave": 0, "workgroup": 0, "workgroups": 3, "tiles_n": 1}
    at = {name: np.asarray(value) for name, value in launch.items()}
    at |= {"cluster.rank": rank, "workitem": workitem, "warp.number": workitem // 32}
    at |= dict(zip(dims, places, strict=True))
    begin = load(index_symbol("offsets"), index_symbol("group"))

    def values(expr: Expr) -> Array:
        wanted = expr.xreplace({begin: Integer(40)})
        symbols = sorted(symbols_of(wanted), key=str)
        (found,) = compile_function([wanted], symbols)(*(at[s.name] for s in symbols))
        return np.broadcast_to(found, sizes)

    # In the last pass, threads may be past the end of the box; a guard excludes them.
    exists = np.ones(sizes, bool)
    for condition in And.make_args(node.place("D.shared").guard):
        if condition != true:
            exists &= values(condition.lhs) < values(condition.rhs)
    places_of = (node.place(dim).values[0] for dim in ("D.shared", "D.0", "D.1"))
    place, row, column = (values(expr)[exists] for expr in places_of)
    row -= 40 + rows
    once = np.zeros((rows, columns), int)
    np.add.at(once, (row.ravel(), column.ravel()), 1)
    chunks = np.arange(columns) % 8 == 0
    # Each chunk occurs once; with ping-pong, once in the tile of each warpgroup.
    assert (once == chunks * (2 if name == "taking turns" else 1)).all()
    # The address of each 16-byte chunk in a staging slot is that of its row and column under TMA's
    # swizzle.
    slots = size["store.slot"]
    number = places[0] * size["store.box"] + places[1]
    slot = np.broadcast_to(workitem // 128 * slots + number % slots, sizes)[exists]
    inside = 2 * (row % high * wide + column % wide)
    assert (2 * place == swizzled(2 * slot * high * wide + inside, 2 * wide)).all()


@quick_cases(2)
@every_lowering
def test_groups_alone_have_two_ways(name: str):
    """Only kernels for groups of rows can store a box of D by threads, row by row, or by TMA.

    In other problems a matrix ends where its tensor ends, and TMA clips boxes there.
    """
    tile, lowering = LOWERINGS[name]
    for gemm in (Gemm("bf16"), Gemm("f16", batched=True), Gemm("bf16", m=1000, n=264, k=512)):
        graph = lowering(Pipeline.parse(PERSISTENT)(replace(gemm, transpose_b=True).graph(tile)))
        assert graph.control.of_kind(StoreBox)
        assert not graph.control.of_kind(CopyElements)
    (branch,) = (
        node
        for node in nodes(lowered(PERSISTENT, name))
        if isinstance(node.op, If)
        and any(isinstance(x, CopyElements) for x in walk(node.op.orelse))
        if any(isinstance(x, StoreBox) for x in walk(node.op.body))
    )
    end = load(index_symbol("offsets"), index_symbol("group") + 1)
    assert branch.condition is not None
    assert branch.condition.has(end)


def walk(body: Body) -> list[Operation]:
    return [inner for op in body for inner in op.walk()]


@quick_cases(1)
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_groups_are_looked_up_beside_the_last_multiplications(schedule: str):
    """Tables of groups are read while the last multiplications run, not in a consumer's main
    loop.
    """
    graph = lowered(schedule, "two warpgroups")
    (roles,) = (op for op in graph.control.root.body if isinstance(op, If) and op.orelse)
    found = [op for root in roles.body for op in root.walk() if isinstance(op, Locate)]
    assert found
    for op in found:
        assert op.body[0] == WaitMultiplies(0)
        assert not any(isinstance(inner, MultiplyShared) for inner in op.walk())
