"""Kernels for batches and groups assemble and check their arguments; needs no GPU."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from itertools import product
from typing import Any

import pytest

import codegen
from codegen.targets.nvptx import CudaKernel
from codegen.targets.nvptx.facts import Facts
from codegen.targets.nvptx.program import CudaProgram, Vectors
from coordgraph import CodegenError, Gemm, KernelGraph, LaunchError
from coordgraph.control.asynchronous import CopyBox, StoreBox
from coordgraph.control.lowered import Tabulate
from passes import DataParallel, Pass, Pipeline, StreamK, TwoTileStreamK
from passes.lowering import LowerToHopper
from tests.codegen.nvptx.fake_driver import FakeDriver, matrix
from tests.support.ptxas import HAS_WHEEL, assert_clean
from tests.support.sampling import cover, quick_cases

WIDE, PAIRS = Vectors(8, 8, 8), Vectors(8, 8, 2)
PERSISTENT, LAST = DataParallel(persistent=True), TwoTileStreamK(owner="last")
TURNSTILE = StreamK(owner="last", reduction="turnstile")
ATOMIC = StreamK(owner="last", reduction="atomic")
A_AT, B_AT, D_AT, OFFSETS_AT, C_AT = (i << 24 for i in (1, 2, 3, 4, 5))
needs_ptxas = pytest.mark.skipif(not HAS_WHEEL, reason="there is no ptxas for this platform")


@cache
def graph(schedule: Pass, tile: tuple[int, int, int], kind: str, layout: str = "nt") -> KernelGraph:
    a, b = (side == "t" for side in layout)
    gemm = Gemm(
        "bf16", batched=kind == "batch", grouped=kind == "group", transpose_a=a, transpose_b=b
    )
    return schedule(gemm.graph(tile))


@cache
def program(
    schedule: Pass,
    tile: tuple[int, int, int],
    kind: str,
    layout: str = "nt",
    lowering: LowerToHopper | None = None,
    vectors: Vectors = PAIRS,
    reads_c: bool = True,
) -> CudaProgram:
    target = "sm_80" if lowering is None else "sm_90a"
    return CudaProgram(
        graph(schedule, tile, kind, layout),
        target,
        vectors,
        instructions="wgmma" if lowering is not None else "mma.sync",
        reads_c=reads_c,
        lowering=lowering,
    )


@pytest.mark.slow
@needs_ptxas
@pytest.mark.parametrize(
    ("schedule", "kind", "vectors"),
    cover(
        0,
        product(
            (PERSISTENT, StreamK(), LAST, ATOMIC),
            ("batch", "group"),
            (Vectors(8, 8, 2), Vectors(1, 1, 1)),
        ),
        lambda case: (case[0] in (PERSISTENT, ATOMIC) and case[0], *case[1:]),
    ),
    ids=str,
)
def test_sm_80_assembles(schedule: Pass, kind: str, vectors: Vectors):
    assert_clean(program(schedule, (128, 128, 32), kind, vectors=vectors).report())


HOPPER = (
    ((128, 256, 64), LowerToHopper()),
    ((256, 128, 64), LowerToHopper(cluster_m=2)),
    ((64, 64, 256), LowerToHopper(cluster_k=4)),
    ((64, 128, 64), LowerToHopper()),
    ((128, 88, 64), LowerToHopper()),
    ((16, 128, 64), LowerToHopper()),
    ((64, 256, 64), LowerToHopper(consumers="pingpong")),
)


@quick_cases(1)
@needs_ptxas
@pytest.mark.parametrize(
    ("reads_c", "schedule", "kind", "shape"),
    cover(
        0,
        product((False, True), (PERSISTENT, LAST, TURNSTILE, ATOMIC), ("batch", "group"), HOPPER),
        lambda case: (
            case[0],
            case[1] in (LAST, ATOMIC) and case[1],
            case[2],
            case[3][1].consumers,
        ),
    ),
    ids=str,
)
def test_hopper_assembles(
    reads_c: bool, schedule: Pass, kind: str, shape: tuple[tuple[int, int, int], LowerToHopper]
):
    tile, lowering = shape
    made = program(
        schedule, tile, kind, lowering=lowering, vectors=Vectors(8, 8, 8), reads_c=reads_c
    )
    assert_clean(made.assembled()[1])


@needs_ptxas
def test_hopper_assembles_if_threads_copy_past_a_box():
    """Code assembles if the threads of a warpgroup do not divide the chunks of a box evenly.

    A box of D has 64 rows of 11 chunks. In the last pass, some of the 128 threads have no chunk,
    so each load of a chunk needs a guard of its own.
    """
    lowering = LowerToHopper()
    made = program(PERSISTENT, (128, 88, 64), "group", lowering=lowering, vectors=Vectors(8, 8, 8))
    assert_clean(made.assembled()[1])


@quick_cases(1)
@pytest.mark.parametrize("schedule", [PERSISTENT, StreamK()], ids=str)
def test_tables_are_not_read_along_k(schedule: Pass):
    """A kernel reads the tables of groups once for each tile, not in the loop over k."""
    ptx = program(schedule, (128, 128, 32), "group").ptx
    blocks = re.split(r"^\$L__BB\w+:", ptx, flags=re.M)
    (k_loop,) = (text for text in blocks if "mma.sync" in text)
    step = [text for text in blocks if "cp.async.wait_group \t2" in text]
    for text in (k_loop, *step):
        assert "ld.global" not in text
        assert "ld.shared.b32" not in text
    # Tables are read at three places: the total, an entry in each step of the binary search, and
    # the start of the group that was found.
    assert ptx.count("ld.shared.b32") == 3


@pytest.mark.slow
def test_boxes_of_one_matrix():
    """A TMA box never crosses from one matrix to the next; groups of rows may begin at any row."""
    batch = program(PERSISTENT, (128, 256, 64), "batch", lowering=LowerToHopper(), vectors=WIDE)
    group = program(PERSISTENT, (128, 256, 64), "group", lowering=LowerToHopper(), vectors=WIDE)
    sources = {op.tensor: op.source for op in batch.lowered.control.of_kind(CopyBox)}
    assert sources == {"A": ("A.1", "A.0", "batch"), "B": ("B.0", "B.1", "batch")}
    (store,) = batch.lowered.control.of_kind(StoreBox)
    assert store.destination == ("D.1", "D.0", "batch")
    sources = {op.tensor: op.source for op in group.lowered.control.of_kind(CopyBox)}
    assert sources == {"A": ("A.1", "A.0"), "B": ("B.0", "B.1", "group")}
    (store,) = group.lowered.control.of_kind(StoreBox)
    assert store.destination == ("D.1", "D.0")
    assert "tensor.2d.global.shared" in group.ptx
    assert "tensor.3d.global.shared" in batch.ptx
    assert "tensor.2d.shared" in group.ptx
    assert "tensor.3d.shared" in group.ptx


def test_the_kernel_waits_for_earlier_launches_before_it_reads_offsets():
    group = program(PERSISTENT, (128, 256, 64), "group", lowering=LowerToHopper(), vectors=WIDE)
    assert group.ptx.index("griddepcontrol.wait") < group.ptx.index("ld.global")
    assert "ld.global.nc" not in group.ptx
    assert len(group.lowered.control.of_kind(Tabulate)) == 1


@pytest.mark.slow
def test_what_the_host_need_not_know():
    """Values that the device computes from group offsets are not passed as kernel arguments.

    The host computes no magic numbers for divisions by such values.
    """
    facts = Facts.of(program(LAST, (128, 128, 32), "group"))
    deferred = facts.parameters.deferred
    assert {"tiles_m", "share"} <= deferred
    for value in (*facts.scalars, *facts.divisors, facts.grid):
        assert facts.parameters.known_to_host(value)
    assert Facts.from_json(facts.to_json()) == facts


def kernel(schedule: Pass, kind: str, target: str, tile: Any = (128, 128, 64)) -> CudaKernel:
    made = codegen.compile(graph(schedule, tile, kind), target)
    assert isinstance(made, CudaKernel)
    return made


@pytest.fixture(scope="module", autouse=True)
def _cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A temporary disk cache of compiled kernels, which the tests of this file share."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COORDGRAPH_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


def matrices(count: int, rows: int, columns: int, at: int, stride: int | None = None) -> Any:
    stride = rows * columns if stride is None else stride
    return matrix(0, 0, at, shape=(count, rows, columns), strides=(stride, columns, 1))


def offsets(groups: int, **changes: Any) -> Any:
    fields: dict[str, Any] = {"shape": (groups + 1,), "strides": (1,), "dtype": "i32", **changes}
    return matrix(0, 0, OFFSETS_AT, **fields)


def test_a_call_of_groups(fake_driver: FakeDriver):
    made = kernel(PERSISTENT, "group", "sm_90a")
    fake_driver.arguments = made.ptx[: made.ptx.index(")\n.")].count(".param")
    a, b, d = matrix(1000, 128, A_AT), matrices(7, 256, 128, B_AT), matrix(1000, 256, D_AT)
    assert made(a, b, out=d, offsets=offsets(7)) is d
    made(a, b, out=d, offsets=offsets(7))
    first, again = fake_driver.launches
    assert first.grid == again.grid == (132, 1, 1)
    assert first.values[:5] == (A_AT, B_AT, 0, D_AT, OFFSETS_AT)
    of_a, of_b, of_d = fake_driver.encoded
    assert (of_a.shape, of_a.box) == ((1000, 128), (64, 64))
    assert (of_b.shape, of_b.stride, of_b.matrices) == ((7, 256, 128), 256, 2 * 256 * 128)
    # The rows of all groups form one matrix.
    assert (of_d.shape, of_d.box) == ((1000, 256), (64, 64))
    with pytest.raises(LaunchError, match="offsets has 7 entries, but 8 are needed"):
        made(a, b, out=d, offsets=offsets(6))
    with pytest.raises(LaunchError, match="offsets are missing"):
        made(a, b, out=d)
    with pytest.raises(LaunchError, match="offsets holds f32"):
        made(a, b, out=d, offsets=offsets(7, dtype="f32"))
    with pytest.raises(LaunchError, match="'out' overlaps offsets"):
        made(a, b, out=matrix(1000, 256, OFFSETS_AT), offsets=offsets(7))


@pytest.mark.slow
def test_a_call_of_a_batch(fake_driver: FakeDriver):
    made = kernel(PERSISTENT, "batch", "sm_90a")
    a, b = matrices(5, 256, 128, A_AT), matrices(5, 512, 128, B_AT, stride=1 << 20)
    d = matrices(5, 256, 512, D_AT)
    made(a, b, out=d)
    of_a, of_b, of_d = fake_driver.encoded
    assert (of_a.shape, of_a.matrices) == ((5, 256, 128), 2 * 256 * 128)
    assert (of_b.shape, of_b.matrices) == ((5, 512, 128), 2 << 20)
    assert of_d.box[2] == 1
    # One matrix serves the whole batch: its stride is 0, which tensor maps cannot have, so the
    # kernel without TMA is launched.
    made(a, matrices(5, 512, 128, B_AT, stride=0), out=d)
    assert len(fake_driver.encoded) == 3
    assert len(fake_driver.loaded) == 2
    # Some matrices begin at odd multiples of 8 bytes, so TMA cannot load them.
    made(a, matrices(5, 512, 128, B_AT, stride=512 * 128 + 4), out=d)
    assert len(fake_driver.loaded) == 3
    with pytest.raises(LaunchError, match="the matrices of out overlap"):
        made(a, b, out=matrices(5, 256, 512, D_AT, stride=8))


@pytest.mark.slow
def test_c_is_out_only_with_the_same_strides(fake_driver: FakeDriver):
    made = kernel(PERSISTENT, "batch", "sm_90a")
    a, b, d = (
        matrices(5, rows, columns, at)
        for rows, columns, at in ((256, 128, A_AT), (512, 128, B_AT), (256, 512, D_AT))
    )
    made(a, b, d, d, beta=1.0)
    made(a, b, d, d, beta=1.0)  # an earlier call had the same A, B and D
    with pytest.raises(LaunchError, match="'out' overlaps c"):
        made(a, b, matrices(5, 256, 512, D_AT, stride=0), d, beta=1.0)
    apart, together = matrices(5, 256, 512, C_AT, stride=0), matrices(5, 256, 512, D_AT, stride=0)
    made(a, b, apart, d, beta=1.0)
    with pytest.raises(LaunchError, match="'out' overlaps c"):
        made(a, b, together, d, beta=1.0)
    assert len(fake_driver.launches) == 3


def test_a_grid_that_is_data_is_refused():
    bent = Pipeline.parse("data-parallel{persistent=true}")(Gemm("bf16", grouped=True).graph())
    text = bent.text().replace(
        "dim workgroup: Workgroup size=workgroups", "dim workgroup: Workgroup size=tiles_m"
    )
    from coordgraph import parse

    with pytest.raises(CodegenError, match="tiles_m, depends on data in device memory"):
        codegen.compile(parse(text), "sm_80")
