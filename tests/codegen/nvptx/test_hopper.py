"""The Hopper lowering: layouts against the PTX ISA's tables, and what ptxas makes of the code."""

from __future__ import annotations

import itertools
import re

import pytest

import coordgraph as cg
from codegen.nvptx.program import WIDEST, CudaProgram
from coordgraph.control.asynchronous import CopyBox, MultiplyShared, WaitBarrier
from coordgraph.control.lowered import StoreFragment
from coordgraph.control.operations import ReceivePartial
from coordgraph.control.resolve import Node, resolve
from coordgraph.errors import PassError
from coordgraph.integers import evaluate
from passes import DataParallel, Pass, StreamK, TwoTileStreamK
from passes.lowering import LowerToHopper
from tests.support.ptxas import assert_clean

LAYOUTS = list(itertools.product((False, True), repeat=2))


def lowered(schedule: Pass, tile: tuple[int, int, int] = (128, 256, 64), **gemm: object):
    return LowerToHopper()(schedule(cg.Gemm(**gemm).graph(tile)))


def nodes(graph: cg.KernelGraph, kind: type) -> list[Node]:
    roots = resolve(graph.control.root.body, graph.scope())
    return [node for root in roots for node in root.walk() if isinstance(node.op, kind)]


def test_accumulator_layout_is_the_isas() -> None:
    """m64nN: warp w of a warpgroup has rows 16w.., a lane pairs of columns (PTX ISA, wgmma D)."""
    graph = lowered(DataParallel())
    known = {"workitem": None, "acc.m": 0, "acc.n": None, "acc.half": None, "acc.pair": None}
    row, column = graph.coordinates.reverse(known, ["D.index.0", "D.index.1"])
    for thread in range(256):
        group, warp, lane = thread // 128, thread % 128 // 32, thread % 32
        for n, half, pair in ((0, 0, 0), (1, 1, 0), (7, 0, 1), (31, 1, 1)):
            values = {"workitem": thread, "acc.n": n, "acc.half": half, "acc.pair": pair}
            assert evaluate(row, values) == 64 * group + 16 * warp + 8 * half + lane // 4
            assert evaluate(column, values) == 8 * n + 2 * (lane % 4) + pair


@pytest.mark.parametrize(("transpose_a", "transpose_b"), LAYOUTS)
def test_shared_memory_is_swizzled_by_128_bytes(transpose_a: bool, transpose_b: bool) -> None:
    """Chunk c of row r lies at r*128 + (c ^ r%8)*16 bytes of its box, boxes one after another."""
    graph = lowered(DataParallel(), transpose_a=transpose_a, transpose_b=transpose_b)
    for tensor, contiguous in (("A", int(not transpose_a)), ("B", int(not transpose_b))):
        across = f"{tensor}.index.{1 - contiguous}"
        along = f"{tensor}.index.{contiguous}"
        rows = graph.coordinates[across].fixed_size
        (place,) = graph.coordinates.reverse(
            {across: None, along: None, "stage": 0}, [f"{tensor}.shared"]
        )
        for r, c in itertools.product((0, 1, 7, 8, 63), (0, 8, 17, 63)):
            expected = r * 64 + ((c // 8) ^ (r % 8)) * 8 + c % 8
            assert evaluate(place, {across: r, along: c}) == expected
        if graph.coordinates[along].fixed_size > 64:
            assert evaluate(place, {across: 2, along: 64 + 5}) == rows * 64 + 2 * 64 + 16 + 5


def test_operands_begin_where_descriptors_must() -> None:
    """The start of every instruction's operand is unswizzled: 32 bytes further for each k16."""
    graph = lowered(DataParallel(), transpose_b=True)
    (node,) = nodes(graph, MultiplyShared)
    a, b = (node.place(name).values[0] for name in ("A.shared", "B.shared"))
    for thread, step, k in itertools.product((0, 127, 128, 255), (0, 1, 5), range(4)):
        values = {"workitem": thread, "ring.step": step, "fragment.k": k, "acc.m": 0}
        stage = step % graph.coordinates["stage"].fixed_size
        group = thread // 128
        assert evaluate(a, values) == stage * 128 * 64 + group * 64 * 64 + 16 * k
        assert evaluate(b, values) == stage * 256 * 64 + 16 * k


def test_the_ring_never_drains() -> None:
    """Stage and phase are those of one running count, for every loop of the schedule."""
    graph = lowered(TwoTileStreamK(workgroups=132))
    stages = graph.coordinates["stage"].fixed_size
    waits = nodes(graph, WaitBarrier)
    assert len(waits) == 4  # two roles, each with a streamed and a data-parallel loop
    for node in waits:
        stage, phase = (node.place(x).values[0] for x in ("stage", "ring.phase"))
        for step in range(3 * stages):
            assert evaluate(stage, {"ring.step": step}) == step % stages
            assert evaluate(phase, {"ring.step": step}) == step // stages % 2


def test_roles_share_the_schedule_but_not_the_work() -> None:
    graph = lowered(StreamK(workgroups=132))
    assert nodes(graph, CopyBox)
    consumers, producer = graph.control.root.body[-1].body, graph.control.root.body[-1].orelse
    made = [op for root in producer for op in root.walk()]
    used = [op for root in consumers for op in root.walk()]
    assert not any(isinstance(op, MultiplyShared | StoreFragment | ReceivePartial) for op in made)
    assert not any(isinstance(op, CopyBox) for op in used)


@pytest.mark.parametrize(
    ("tile", "reason"),
    [((128, 256, 32), "in k"), ((64, 64, 64), "in m"), ((256, 256, 64), "registers")],
)
def test_refuses_tiles_that_do_not_fit(tile: tuple[int, int, int], reason: str) -> None:
    with pytest.raises(PassError, match=reason):
        lowered(DataParallel(), tile)


def program(schedule: Pass, tile: tuple[int, int, int], **gemm: object) -> CudaProgram:
    return CudaProgram(schedule(cg.Gemm(**gemm).graph(tile)), "sm_90a", WIDEST, boxes=True)


def check(built: CudaProgram) -> None:
    built, report = built.assembled()
    assert_clean(report)
    assert ".local" not in built.ptx
    for needed in ("wgmma.mma_async", "cp.async.bulk.tensor.2d", "setmaxnreg.inc", "mbarrier"):
        assert needed in built.ptx
    loads = re.findall(r"cp\.async\.bulk\.tensor\.2d", built.ptx)
    loops = built.ptx.count("wgmma.commit_group")
    boxes = sum(built.lowered.coordinates[f"{t}.box"].fixed_size for t in "AB")
    assert len(loads) == loops * boxes


def test_streamed_kernel_is_clean() -> None:
    check(program(TwoTileStreamK(), (128, 256, 64), transpose_b=True))


SCHEDULES = [
    DataParallel(),
    DataParallel(persistent=True),
    StreamK(),
    StreamK(owner="last"),
    TwoTileStreamK(),
    TwoTileStreamK(first="dp", owner="last"),
]
TILES = [(128, 256, 64), (256, 128, 64), (128, 192, 64), (128, 128, 64), (128, 64, 64)]


@pytest.mark.slow
@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
@pytest.mark.parametrize("tile", TILES, ids=lambda t: "x".join(map(str, t)))
@pytest.mark.parametrize(("transpose_a", "transpose_b"), LAYOUTS)
@pytest.mark.parametrize("out_dtype", ["bf16", "f32"])
def test_every_shipped_configuration_is_clean(
    schedule: Pass,
    tile: tuple[int, int, int],
    transpose_a: bool,
    transpose_b: bool,
    out_dtype: str,
) -> None:
    built = program(
        schedule, tile, transpose_a=transpose_a, transpose_b=transpose_b, out_dtype=out_dtype
    )
    if (reason := built.why_not()) is not None:
        assert out_dtype == "f32"
        assert "registers" in reason
        return
    check(built)
