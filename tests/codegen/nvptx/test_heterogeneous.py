"""Kernels with tiles of two shapes: each shape is lowered as in a kernel that has only this shape.

Tiles of both shapes share the ring of operand stages and the staging slots of D.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest

from codegen.targets.nvptx.facts import Facts
from codegen.targets.nvptx.program import CudaProgram
from coordgraph import Gemm, KernelGraph, PassError, parse
from coordgraph.control import asynchronous as ops
from coordgraph.control.lowered import (
    AccumulateFragment,
    ApplyFragment,
    CopyElements,
    LoadFragment,
    MultiplyFragments,
    StoreFragment,
)
from coordgraph.control.operations import Operation
from coordgraph.control.resolve import Node
from passes import DataParallel, HeterogeneousTiles, Pass, Pipeline
from passes.lowering import LowerToHopper, LowerToTensorCores
from tests.codegen.nvptx.configurations import LAYOUTS, boxed
from tests.codegen.nvptx.hopper import Lowered, lowered, mesh
from tests.support.mermaid import parse as parse_mermaid
from tests.support.ptxas import assert_clean
from tests.support.sampling import chosen, cover, quick_cases

Shape = tuple[int, int, int]
PREFIX = "small."
WORK = (
    ops.CopyBox,
    ops.MultiplyShared,
    ops.StoreBox,
    StoreFragment,
    AccumulateFragment,
    ApplyFragment,
    LoadFragment,
    MultiplyFragments,
    CopyElements,
)
"""The kinds of operations that read or write elements of tiles."""
MMA, WGMMA = LowerToTensorCores(stages=3), LowerToHopper(stages=3)
TURNS = LowerToHopper(stages=3, consumers="pingpong")
PAIRS = (
    (MMA, (128, 256, 32), (128, 128, 32)),
    (MMA, (64, 128, 32), (64, 64, 32)),
    (WGMMA, (256, 160, 64), (128, 160, 64)),
    (WGMMA, (128, 128, 64), (64, 128, 64)),
    (LowerToHopper(stages=3, cluster_m=2), (512, 160, 64), (256, 160, 64)),
    (LowerToHopper(stages=3, cluster_k=2), (128, 128, 128), (64, 128, 128)),
    (TURNS, (128, 128, 64), (64, 128, 64)),
    (TURNS, (128, 128, 64), (64, 64, 64)),
)
"""Lowerings with two tile shapes (m, n, k). A kernel with tiles of both shapes has as many warps as
a kernel with tiles of one of them.
"""
every_pair = pytest.mark.parametrize(("step", "large", "small"), PAIRS, ids=str)


def gemm(layout: str = "nt") -> Gemm:
    a, b = (side == "t" for side in layout)
    return Gemm("bf16", transpose_a=a, transpose_b=b)


def together(step: Pass, large: Shape, small: Shape, layout: str = "nt") -> KernelGraph:
    schedule = HeterogeneousTiles(small_m=small[0], small_n=small[1])
    return step(schedule(gemm(layout).graph(large)))


def renamed(text: str, graph: KernelGraph) -> str:
    """Rename coordinates in the text of a graph that has small tiles only.

    The new names are those that small tiles have in `graph`, which has tiles of both shapes.
    """

    def name(found: re.Match[str]) -> str:
        own = PREFIX + found[0]
        return own if own in graph.coordinates else found[0]

    # Names with a dot and names in quotes are coordinates; other names are parameters.
    pattern = r"\b[A-Za-z]\w*(\.\w+)+|(?<=')[a-z]\w*(?=')"
    return re.sub(pattern, name, text.replace("'acc'", "'small'"))


def written(op: Operation, name: Callable[[str], str] = str) -> str:
    """The text of an operation, with coordinates renamed by `name`.

    Renaming changes the order of the terms of a conjunction, so the terms are sorted.
    """
    text = name(repr(op))
    return re.sub(r"Eq\(.*?\) & Eq\(.*?\)", lambda x: str(sorted(x[0].split(" & "))), text)


@quick_cases(2)
@pytest.mark.parametrize(
    ("pair", "layout", "which"), cover(8, product(PAIRS, LAYOUTS, ("large", "small"))), ids=str
)
def test_each_shape_is_lowered_as_if_alone(
    pair: tuple[Pass, Shape, Shape], layout: str, which: str
):
    """Each tile shape has the coordinates, edges and instructions of a kernel with only this shape.

    Two things differ: the schedule, and the sizes of the ring of stages and of D's staging slots,
    which are as large as the largest tile shape needs.
    """
    step, large, small = pair
    mine = large if which == "large" else small
    alone = step(DataParallel(persistent=True)(gemm(layout).graph(mine)))
    both = together(step, large, small, layout)

    def name(text: str) -> str:
        return renamed(text, both) if which == "small" else text

    made = {repr(edge) for edge in both.coordinates.edges}
    other = {edge for edge in alone.coordinates.edges if name(repr(edge)) not in made}
    rings = {f"{tensor}.shared" for tensor in "ABD"} | {"sum.shared"}
    scheduled = {"tile", "A.tile.0"}
    assert {edge.upstream[0] for edge in other} <= scheduled | (
        rings if which == "small" else set()
    )
    for dim in alone.coordinates:
        if dim.id in ("wave", "store.slot", "store.turn", *rings):
            continue
        found = both.coordinates[name(repr(dim.id))[1:-1]]
        if found.size is not None and found.size.is_Integer:
            assert (found.kind, found.size) == (dim.kind, dim.size)
    work = [written(op, name) for op in alone.control.operations if isinstance(op, WORK)]
    assert work == [
        written(op)
        for op in both.control.operations
        if isinstance(op, WORK) and ((PREFIX in repr(op)) == (which == "small"))
    ]


@quick_cases(3)
@every_pair
def test_stages_begin_where_they_do_for_the_largest_tile(step: Pass, large: Shape, small: Shape):
    graph = together(step, large, small).coordinates
    stages = graph["stage"].fixed_size
    for tensor in "AB":
        home, other = f"{tensor}.shared", f"{PREFIX}{tensor}.shared"
        room = graph[home].fixed_size // stages
        inside = graph[other].fixed_size - (stages - 1) * room
        assert 0 < inside <= room
        assert graph[other].within == home  # type: ignore[attr-defined]
        (edge,) = (e for e in graph.edges_below(other) if "stage" in e.downstream)
        for stage in range(stages):
            zero = {dim: 0 for dim in edge.downstream} | {"stage": stage}
            (place,) = graph.reverse(zero, [other])
            assert place == stage * room
            last = {d: graph[d].fixed_size - 1 for d in edge.downstream} | {"stage": stage}
            (place,) = graph.reverse(last, [other])
            assert place == stage * room + inside - 1


# Tests of the staging slots of D in shared memory.

SLOTS = (
    boxed((128, 256, 64), schedule=HeterogeneousTiles(small_m=64, small_n=64)),
    boxed((128, 256, 64), schedule=HeterogeneousTiles(small_n=128)),
    boxed((256, 128, 64), schedule=HeterogeneousTiles()),
    boxed((256, 256, 64), (2, 1, 1), schedule=HeterogeneousTiles()),
    boxed((128, 192, 64), schedule=HeterogeneousTiles(small_m=128)),
    boxed((128, 128, 64), schedule=HeterogeneousTiles(), consumers="pingpong"),
    boxed((128, 160, 64), schedule=HeterogeneousTiles(small_m=64), consumers="pingpong"),
)


def fills(this: Lowered, prefix: str, warpgroup: int) -> Iterator[tuple[list[int], set[int]]]:
    """For each TMA box of an output tile: (waits before it is filled, addresses that are written).

    A wait is given as the number of TMA stores that may be pending after it.
    """
    (node,) = this.nodes(StoreFragment, destination=f"{prefix}D.shared")
    (parent,) = (
        n
        for n in this.nodes(Operation)
        if any(c.op == ops.FenceShared() for c in n.body) and node in [*n.walk()]
    )
    waits = [n for n in parent.body if any(isinstance(c.op, ops.WaitStores) for c in n.body)]
    block, box = (f"{prefix}store.{name}" for name in ("m", "box"))
    thread = np.array(128 * warpgroup)
    for m, b in product(range(this.size(block)), range(this.size(box))):
        here = {block: np.array(m), box: np.array(b)}
        pending = [_pending(n) for n in waits if _holds(this, n, {**here, "workitem": thread})]
        at = mesh(lane=32, warp=4, element=8, n=this.size(f"{prefix}store.n"))
        workitem = 128 * warpgroup + 32 * at["warp"] + at["lane"]
        places = this.place(
            node,
            f"{prefix}D.shared",
            {**here, "workitem": workitem, f"{prefix}store.n": at["n"]},
        )
        yield pending, {int(x) for x in (places + at["element"]).ravel()}


def _pending(node: Node) -> int:
    (op,) = (child.op for child in node.body)
    assert isinstance(op, ops.WaitStores)
    return op.pending


def _holds(this: Lowered, node: Node, at: dict[str, np.ndarray]) -> bool:
    assert node.condition is not None
    return bool(this.values(node.condition, at))


@quick_cases(2)
@pytest.mark.parametrize("configuration", SLOTS, ids=str)
@pytest.mark.parametrize("order", ["LLSSSLSL", "SLLS"])
def test_no_slot_is_filled_while_it_is_read(configuration: object, order: str):
    """A staging slot of D is filled only after the wait for the TMA store that last read it.

    The test takes every sequence of tiles of both shapes.

    A warpgroup waits for its own stores only, so only one warpgroup may write to a slot.
    """
    this = lowered(configuration)  # type: ignore[arg-type]
    everybody: list[set[int]] = []
    for warpgroup in range(this.consumers):
        reading: deque[set[int]] = deque()
        mine: set[int] = set()
        boxes = {"L": [*fills(this, "", warpgroup)], "S": [*fills(this, PREFIX, warpgroup)]}
        for waits, places in (box for tile in order for box in boxes[tile]):
            for pending in waits:
                while len(reading) > pending:
                    reading.popleft()
            assert not any(places & others for others in reading), "filled while it is read"
            reading.append(places)
            mine |= places
        everybody.append(mine)
    assert len(set().union(*everybody)) == sum(map(len, everybody)), "another one's slots"
    sizes = [this.size(name) for name in ("D.shared", f"{PREFIX}D.shared")]
    assert max(map(max, everybody)) < max(sizes)


def test_bytes_are_those_of_the_boxes_of_a_part():
    """For both tile shapes, a stage's mbarrier expects the bytes of one k tile of A and B."""
    graph = together(LowerToHopper(stages=3), (128, 256, 64), (64, 64, 64))
    sizes: dict[int, int] = {}
    for op in graph.control.of_kind(ops.ExpectBytes):
        boxes: dict[Any, int] = {
            symbol: graph.coordinates[str(symbol).removesuffix(".inside")].fixed_size
            for symbol in op.bytes.free_symbols
        }
        sizes[int(op.bytes.subs(boxes))] = len(boxes)
    # TMA loads a 64x64 tile in one box of A and one of B. With a single box, no coordinate counts
    # boxes, so the number of bytes depends on no coordinate.
    assert sizes == {2 * 64 * (128 + 256): 2, 2 * 64 * (64 + 64): 0}


@pytest.mark.slow
@pytest.mark.usefixtures("ptxas")
@pytest.mark.parametrize("step", chosen((MMA, WGMMA), (MMA, WGMMA, TURNS)), ids=str)
def test_batches_have_tiles_of_both_shapes(step: LowerToTensorCores | LowerToHopper):
    """In a batch, a TMA box of either shape lies in one matrix."""
    instructions = "wgmma" if isinstance(step, LowerToHopper) else "mma.sync"
    graph = HeterogeneousTiles()(Gemm("bf16", batched=True).graph((128, 128, 64)))
    lowering = replace(step, stages=0) if isinstance(step, LowerToHopper) else None
    program = CudaProgram(graph, "sm_90a", instructions=instructions, lowering=lowering)
    assert all(box[2:] == (1,) for boxes in program.walker.boxes.values() for box in boxes)
    assert_clean(program.assembled()[1])


# Tests of graphs that the lowering refuses.


@quick_cases(2)
@pytest.mark.parametrize(
    ("step", "large", "small", "why"),
    [
        (
            MMA,
            (128, 128, 32),
            (32, 32, 32),
            "the output tile 32x32 cannot be divided among 8 warps, which the largest tile has",
        ),
        (MMA, (128, 128, 32), (128, 8, 32), "the tile 128x8x32 must be a multiple of 16x16x16"),
        (
            WGMMA,
            (128, 256, 64),
            (64, 8, 64),
            "part 64x8 of tile 64x8x64 cannot be halved, and those of other tiles are divided "
            "over 2 warpgroups",
        ),
        (WGMMA, (128, 256, 64), (32, 32, 64), "part 32x32 must be a multiple of 64 in m or in n"),
        (
            LowerToHopper(cluster_m=4),
            (512, 128, 64),
            (2, 128, 64),
            "the tile 2x128x64 cannot be divided by a cluster of 4x1x1",
        ),
    ],
)
def test_what_is_refused(step: Pass, large: Shape, small: Shape, why: str):
    schedule = HeterogeneousTiles(small_m=small[0], small_n=small[1])
    graph = schedule(gemm().graph(large))
    assert why in (step.why_not(graph) or "")
    with pytest.raises(PassError, match="refuses"):
        step(graph)


# Tests of the data that a launch needs: tensor maps and shared memory.


@pytest.mark.slow
@pytest.mark.parametrize(
    ("columns", "of_b", "of_d"),
    [
        (160, ((64, 32), (64, 40)), ((80, 64),)),
        (320, ((64, 32),), ((64, 64), (80, 64))),
    ],
)
def test_each_shape_of_box_has_a_map(
    columns: int, of_b: tuple[tuple[int, int], ...], of_d: tuple[tuple[int, int], ...]
):
    schedule = HeterogeneousTiles(small_m=128, small_n=columns // 2)
    program = boxed((128, columns, 64), schedule=schedule).program
    facts = Facts.of(program)
    assert facts.boxes == {"A": ((64, 32),), "B": of_b, "D": of_d}
    assert Facts.from_json(facts.to_json()) == facts
    head = program.ptx[: program.ptx.index("{")]
    maps = 1 + len(of_b) + len(of_d)
    assert head.count(".param .align 64 .b8") == maps
    assert program.ptx.count("prefetch.tensormap") == maps


def test_shapes_that_are_equal_along_an_axis_share_a_map():
    program = boxed((128, 256, 64), schedule=HeterogeneousTiles(small_m=128)).program
    assert program.walker.boxes == {
        "A": ((64, 32),),
        "B": ((64, 32),),
        "D": ((64, 64),),
    }


def test_memory_is_that_of_the_largest_tile():
    """A kernel with tiles of two shapes has the shared memory of one with large tiles only.

    Both kernels also have equally many stages and threads.
    """
    for large, small in (((128, 256, 64), (64, 64)), ((128, 128, 64), (64, 128))):
        both = HeterogeneousTiles(small_m=small[0], small_n=small[1])
        one, two = (
            CudaProgram(schedule(gemm().graph(large)), "sm_90a", instructions="wgmma")
            for schedule in (DataParallel(persistent=True), both)
        )
        assert one.shared_bytes == two.shared_bytes
        for name in ("stage", "workitem"):
            sizes = {p.lowered.coordinates[name].fixed_size for p in (one, two)}
            assert len(sizes) == 1


@pytest.mark.slow
def test_the_text_reads_back_and_its_diagram_parses():
    pipeline = Pipeline.parse("rasterize{width=2},heterogeneous-tiles{workgroups=132,small_n=64}")
    graph = LowerToHopper()(pipeline(gemm().graph((128, 256, 64))))
    assert parse(graph.text()) == graph
    text = graph.mermaid(only=["small.A.shared", "small.A.shared.inside", "stage"])
    parse_mermaid([text])
    assert "small.A.shared" in text
