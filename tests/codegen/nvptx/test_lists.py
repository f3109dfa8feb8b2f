"""Kernels for lists of products assemble and check their arguments; needs no GPU."""

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
from coordgraph.control.asynchronous import (
    ArriveBarrier,
    CopyBox,
    DescribeMatrix,
    InitBarrier,
    StoreBox,
    WaitBarrier,
)
from coordgraph.control.lowered import Barrier, Tabulate
from coordgraph.control.operations import Body, Operation, Scope
from coordgraph.tensors import Role
from passes import Pipeline
from passes.lowering import LowerToHopper
from tests.codegen.nvptx.fake_driver import FakeDriver, matrix
from tests.support.ptxas import HAS_WHEEL, assert_clean
from tests.support.sampling import chosen, quick_cases

WIDE, PAIRS, NARROW = Vectors(8, 8, 8), Vectors(8, 8, 2), Vectors(1, 1, 1)
PERSISTENT, ATOMIC = "data-parallel{persistent=true}", "stream-k{reduction=atomic}"
LAST, TURNS = "stream-k{owner=last}", "stream-k{owner=last,reduction=turnstile}"
SCATTER, TWO_TILE = "stream-k{reduction=scatter}", "two-tile-stream-k"
HYBRID = "hybrid-stream-k{owner=last,reduction=turnstile}"
SORTED = f"longest-first,{LAST}"
LAYOUTS = ("nn", "nt", "tn", "tt")
A_AT, B_AT, D_AT, OFFSETS_AT, C_AT = (i << 28 for i in (1, 2, 3, 4, 5))
needs_ptxas = pytest.mark.skipif(not HAS_WHEEL, reason="there is no ptxas for this platform")
Tile = tuple[int, int, int]


@cache
def graph(schedule: str, tile: Tile, layout: str = "nt") -> KernelGraph:
    a, b = (side == "t" for side in layout)
    gemm = Gemm("bf16", transpose_a=a, transpose_b=b, grouped=True, group_axis="mnk")
    return Pipeline.parse(schedule)(gemm.graph(tile))


@cache
def program(
    schedule: str,
    tile: Tile,
    layout: str = "nt",
    lowering: LowerToHopper | None = None,
    vectors: Vectors | None = None,
    reads_c: bool = True,
) -> CudaProgram:
    return CudaProgram(
        graph(schedule, tile, layout),
        "sm_80" if lowering is None else "sm_90a",
        vectors or (PAIRS if lowering is None else WIDE),
        instructions="wgmma" if lowering is not None else "mma.sync",
        reads_c=reads_c,
        lowering=lowering,
    )


@quick_cases(1)
@needs_ptxas
@pytest.mark.parametrize(
    ("schedule", "layout", "vectors"),
    chosen(
        ((SCATTER, "nn", NARROW), (SORTED, "tt", PAIRS)),
        product((PERSISTENT, LAST, SCATTER, TWO_TILE, SORTED), LAYOUTS, (PAIRS, NARROW)),
    ),
    ids=str,
)
def test_sm_80_assembles(schedule: str, layout: str, vectors: Vectors):
    assert_clean(program(schedule, (128, 128, 32), layout, vectors=vectors).report())


HOPPER: tuple[tuple[Tile, LowerToHopper, str, str, bool], ...] = (
    ((128, 256, 64), LowerToHopper(), PERSISTENT, "nt", False),
    ((128, 128, 64), LowerToHopper(), LAST, "nn", True),
    ((128, 128, 64), LowerToHopper(consumers="pingpong"), PERSISTENT, "tn", False),
    ((256, 128, 64), LowerToHopper(cluster_m=2), TURNS, "nt", True),
    ((128, 128, 64), LowerToHopper(), SCATTER, "tt", False),
    ((64, 256, 64), LowerToHopper(), HYBRID, "nt", False),
    ((128, 256, 64), LowerToHopper(), f"longest-first,{PERSISTENT}", "nt", False),
    ((128, 192, 64), LowerToHopper(), f"longest-first,{TWO_TILE}", "nt", False),
    # This kernel has two main loops: for the divided tiles, and then for whole tiles. ptxas must
    # not serialise the wgmma of either.
    ((64, 128, 64), LowerToHopper(), "two-tile-stream-k{reduction=scatter}", "nt", False),
)
MORE: tuple[tuple[Tile, LowerToHopper, str, str, bool], ...] = (
    ((128, 256, 64), LowerToHopper(), PERSISTENT, "tt", True),
    ((128, 256, 64), LowerToHopper(cluster_n=2), PERSISTENT, "nn", False),
    ((128, 256, 64), LowerToHopper(cluster_n=2), LAST, "nt", True),
    ((256, 256, 64), LowerToHopper(cluster_m=2), PERSISTENT, "tn", False),
    ((256, 128, 64), LowerToHopper(cluster_m=2), ATOMIC, "nt", False),
    ((256, 128, 64), LowerToHopper(cluster_m=2), SCATTER, "nn", False),
    ((128, 128, 128), LowerToHopper(cluster_k=2), LAST, "nt", False),
    ((64, 64, 256), LowerToHopper(cluster_k=4), PERSISTENT, "nt", False),
    ((64, 128, 64), LowerToHopper(consumers="pingpong"), TURNS, "nt", True),
    ((64, 128, 64), LowerToHopper(consumers="pingpong"), LAST, "nn", False),
    ((128, 192, 64), LowerToHopper(), TWO_TILE, "nt", True),
    ((192, 128, 64), LowerToHopper(), ATOMIC, "tn", False),
    ((48, 128, 64), LowerToHopper(), LAST, "nt", False),
    ((128, 48, 64), LowerToHopper(), TURNS, "nt", False),
    ((64, 128, 64), LowerToHopper(), "stream-k{owner=last,reduction=tree}", "nt", True),
)


@quick_cases(1)
@needs_ptxas
@pytest.mark.parametrize(
    ("tile", "lowering", "schedule", "layout", "reads_c"),
    [
        *chosen((HOPPER[2], HOPPER[3], HOPPER[8]), (*HOPPER, *MORE)),
    ],
    ids=str,
)
def test_hopper_assembles(
    tile: Tile, lowering: LowerToHopper, schedule: str, layout: str, reads_c: bool
):
    made = program(schedule, tile, layout, lowering, reads_c=reads_c)
    assert made.why_not() is None
    assert_clean(made.assembled()[1])


@pytest.mark.parametrize("schedule", chosen((HYBRID,), [LAST, TURNS, ATOMIC, TWO_TILE, HYBRID]))
def test_streamed_parts_that_are_too_large(schedule: str):
    """Stream-K tiles with 128 x 256 accumulators are refused for lists of products.

    Such tiles leave too few registers for the indices of a product.
    """
    why = "part 128x256 of bf16 needs 128 accumulator registers"
    for tile, lowering in (
        ((128, 256, 64), LowerToHopper()),
        ((256, 256, 64), LowerToHopper(cluster_m=2)),
    ):
        found = program(schedule, tile, lowering=lowering, reads_c=False).why_not()
        assert found is not None
        assert why in found
    with pytest.raises(CodegenError, match=why):
        codegen.compile(graph(schedule, (128, 256, 64)), "sm_90a", lowering=LowerToHopper())


def walk(*body: Operation) -> list[Operation]:
    return [inner for op in body for inner in op.walk()]


def hopper(schedule: str = PERSISTENT, **options: Any) -> CudaProgram:
    return program(schedule, (128, 128, 64), lowering=LowerToHopper(**options), reads_c=False)


def described(body: Body) -> list[str]:
    return [op.tensor for op in walk(*body) if isinstance(op, DescribeMatrix)]


@quick_cases(3)
@pytest.mark.parametrize("options", [{}, {"cluster_n": 2}], ids=str)
@pytest.mark.parametrize("schedule", [PERSISTENT, LAST, SCATTER])
def test_a_warp_of_its_own_describes_matrices(schedule: str, options: dict[str, Any]):
    """A separate warp writes the tensor maps of A, B and D; it shares a ring of maps with
    the producer.
    """
    control = hopper(schedule, **options).lowered.control
    scopes = {op.name: op for op in control.of_kind(Scope)}
    roles = {label: scopes[label] for label in ("producer", "describer")}
    assert set(described(roles["describer"].body)) == {"A", "B", "D"}
    assert not described(roles["producer"].body)
    for kind in (CopyBox, StoreBox):
        assert {op.map for op in control.of_kind(kind)} == {"maps"}
    waits, arrives = (
        {
            label: {op.barrier for op in walk(role) if isinstance(op, kind)}
            for label, role in roles.items()
        }
        for kind in (WaitBarrier, ArriveBarrier)
    )
    assert waits["describer"] == {"barrier.used"}
    assert arrives["describer"] == {"barrier.described"}
    assert "barrier.described" in waits["producer"]
    assert "barrier.used" in arrives["producer"]
    began = {op.barrier: op.arrivals for op in control.of_kind(InitBarrier)}
    assert began["barrier.described"] == began["barrier.used"] == 32


def test_boxes_begin_inside_a_matrix():
    """A matrix's tensor map has the matrix's extents, and TMA boxes begin inside the matrix."""
    control = hopper().lowered.control
    sources = {op.tensor: op.source for op in control.of_kind(CopyBox)}
    assert sources == {"A": ("A.depth", "A.row"), "B": ("B.depth", "B.column")}
    (store,) = control.of_kind(StoreBox)
    assert store.destination == ("D.column", "D.row")


def test_room_for_maps():
    """Every CTA, also in a cluster, has its own tensor maps in the workspace.

    There is a tensor map of 32 words for each group and each of A, B and D.
    """
    for options, workgroups in (({}, 7), ({"cluster_n": 2}, 14)):
        lowered = hopper(PERSISTENT, **options).lowered
        (maps,) = (t for t in lowered.tensors if t.role is Role.MAPS)
        values = {"workgroups": 7, "groups": 5}
        shape = [int(extent.subs(values_of(lowered, values))) for extent in maps.shape]
        assert shape == [workgroups, 5, 3, 32]


def values_of(lowered: KernelGraph, values: dict[str, int]) -> dict[Any, int]:
    return {lowered.parameters[name].symbol: value for name, value in values.items()}


@pytest.mark.slow
def test_what_ptx_has():
    """`tensormap.replace` needs PTX 8.3; kernels without it declare an earlier version."""
    ptx = hopper(LAST).ptx
    assert ".version 8.3" in ptx
    # A tensor map of A, B or D gets an address, two extents and a row stride.
    assert ptx.count("tensormap.replace") == 12
    assert ptx.count("tensormap.cp_fenceproxy") == 3
    rows = Pipeline.parse(LAST)(Gemm("bf16", transpose_b=True, grouped=True).graph((128, 128, 64)))
    other = CudaProgram(rows, "sm_90a", WIDE, "wgmma", lowering=LowerToHopper()).ptx
    for text in (other, program(LAST, (128, 128, 32)).ptx):
        assert "tensormap.replace" not in text
        assert "tensormap.cp_fenceproxy" not in text
        assert not re.search(r"\.version 8\.[3-9]", text)


STARTS = ["a_starts", "b_starts", "d_starts"]
ALONG = ["m_tile_starts", "n_tile_starts", "k_tile_starts"]


@pytest.mark.parametrize(
    ("schedule", "counted"),
    [
        (PERSISTENT, ["output_tiles_before"]),
        (LAST, ["iterations_before"]),
        (SCATTER, ["iterations_before"]),
    ],
)
@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
def test_tables_that_are_read_by_several_warps_at_once(
    schedule: str, counted: list[str], target: str
):
    """Six warps compute a table of prefix sums each; after a barrier, one warp computes a seventh.

    The seventh table is computed from the other six: the number of iterations before each product
    or, if the schedule divides no tile, the number of output tiles before each product.
    """
    made = hopper(schedule) if target == "sm_90a" else program(schedule, (128, 128, 32))
    control = made.lowered.control
    body = walk(*control.root.body)
    tables = [op for op in body if isinstance(op, Tabulate)]
    first, second = tables[: len(ALONG + STARTS)], tables[len(ALONG + STARTS) :]
    assert sorted(op.table for op in first) == sorted(ALONG + STARTS)
    assert [op.table for op in second] == counted
    assert [op.first for op in second] == [0]
    each = [op.first for op in first]
    assert each == [32 * warp for warp in range(6)]
    between = body[body.index(first[-1]) + 1 : body.index(second[0])]
    assert [type(op) for op in between] == [Barrier]


def test_tables_of_partly_streamed_schedules():
    """A schedule with whole tiles and Stream-K tiles computes two tables of prefix sums.

    The tables have the number of output tiles and the number of iterations before each product.
    """
    control = hopper(TWO_TILE).lowered.control
    tables = {op.table for op in control.of_kind(Tabulate)}
    assert tables == {*STARTS, *ALONG, "output_tiles_before", "iterations_before"}


def test_what_the_host_need_not_know():
    facts = Facts.of(hopper(LAST))
    assert {"tiles_k", "all_iterations", "share"} <= facts.parameters.deferred
    for value in (*facts.scalars, *facts.divisors, facts.grid):
        assert facts.parameters.known_to_host(value)
    assert Facts.from_json(facts.to_json()) == facts


@pytest.fixture(scope="module", autouse=True)
def _cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A temporary disk cache of compiled kernels, which the tests of this file share."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COORDGRAPH_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


def vector(at: int, elements: int, **changes: Any) -> Any:
    fields: dict[str, Any] = {"shape": (elements,), "strides": (1,), **changes}
    return matrix(0, 0, at, **fields)


def offsets(groups: int, **changes: Any) -> Any:
    shape = (3, groups + 1)
    fields: dict[str, Any] = {"shape": shape, "strides": (shape[1], 1), "dtype": "i32", **changes}
    return matrix(0, 0, OFFSETS_AT, **fields)


def kernel(schedule: str, target: str = "sm_90a", layout: str = "nt") -> Any:
    made = codegen.compile(graph(schedule, (128, 128, 64), layout), target)
    assert isinstance(made, CudaKernel)
    return made


@quick_cases(1)
@pytest.mark.parametrize("layout", chosen(("nt", "tn"), LAYOUTS))
def test_tma_loads_every_layout(layout: str):
    """In a list of products, A and B may be transposed or not: TMA loads them either way."""
    made = kernel(PERSISTENT, layout=layout)
    assert "wgmma" in made.ptx
    assert "cp.async.bulk.tensor" in made.ptx


def test_a_call(fake_driver: FakeDriver):
    """One kernel computes lists of any length; the memory that it needs for tensor maps grows with
    the number of products in the list.
    """
    made = kernel(PERSISTENT)
    fake_driver.arguments = made.ptx[: made.ptx.index(")\n.")].count(".param")
    a, b, d = vector(A_AT, 8000), vector(B_AT, 16000), vector(D_AT, 32000)
    assert made(a, b, out=d, offsets=offsets(7)) is d
    made(a, b, out=d, offsets=offsets(7))
    first, again = fake_driver.launches
    assert first.grid == again.grid == (132, 1, 1)
    assert first.values[:4] == (A_AT, B_AT, 0, D_AT)
    # The offsets array has one row for each of m, n and k: 8 numbers of 4 bytes. The addresses of
    # the rows are kernel arguments.
    row = 4 * 8
    assert first.values[4:7] == tuple(OFFSETS_AT + axis * row for axis in range(3))
    room = sum(fake_driver.allocated)
    assert room >= 132 * 7 * 3 * 128
    made(vector(A_AT, 8), vector(B_AT, 808), out=vector(D_AT, 88), offsets=offsets(64))
    assert len(fake_driver.loaded) == 1
    assert fake_driver.launches[-1].values[5] == OFFSETS_AT + 4 * 65
    made(a, b, vector(C_AT, 32000), d, beta=1.0, offsets=offsets(7))
    assert fake_driver.launches[-1].values[2] == C_AT


def test_vectors_that_begin_anywhere(fake_driver: FakeDriver):
    """If an array that holds all matrices A begins at no multiple of 16 bytes, TMA is not used."""
    made = kernel(PERSISTENT)
    a, b, d = vector(A_AT + 2, 8000), vector(B_AT, 16000), vector(D_AT, 32000)
    made(a, b, out=d, offsets=offsets(7))
    (code,) = fake_driver.loaded
    assert "cp.async.bulk.tensor" not in code


def test_vectors_without_elements(fake_driver: FakeDriver):
    """If D is empty nothing is launched; if A is empty (k = 0), the kernel multiplies zeros."""
    made = kernel(PERSISTENT)
    fake_driver.arguments = made.ptx[: made.ptx.index(")\n.")].count(".param")
    nothing, d = vector(A_AT, 0), vector(D_AT, 32000)
    made(nothing, nothing, out=vector(D_AT, 0), offsets=offsets(7))
    assert not fake_driver.launches
    made(nothing, vector(B_AT, 100), out=d, offsets=offsets(7))
    (launch,) = fake_driver.launches
    assert launch.values[0] == launch.values[1]
    assert launch.values[0] in {at for at, _ in fake_driver.cleared}


def test_calls_that_are_refused(fake_driver: FakeDriver):
    made = kernel(PERSISTENT)
    for changes, why in (
        ({"offsets": None}, "offsets are missing"),
        ({"offsets": offsets(7, dtype="f32")}, "offsets holds f32"),
        ({"offsets": vector(OFFSETS_AT, 8, dtype="i32")}, r"3 x \(groups \+ 1\) is needed"),
        ({"offsets": offsets(65)}, "groups = 65 is outside"),
        ({"offsets": offsets(7, strides=(16, 2))}, "offsets is not contiguous"),
        ({"offsets": offsets(7, strides=(9, 1))}, r"offsets is not contiguous .*\(9, 1\)"),
        ({"offsets": offsets(7, strides=(-8, 1))}, r"offsets is not contiguous .*\(-8, 1\)"),
        ({"out": None}, "argument 'out' is missing"),
        ({"out": vector(OFFSETS_AT, 800)}, "'out' overlaps offsets"),
        ({"a": matrix(100, 80, A_AT)}, "a has shape 100x80; a vector is needed"),
        ({"c": vector(C_AT, 31), "beta": 1.0}, "c is 31, but 32000 is needed"),
    ):
        call: dict[str, Any] = {
            "a": vector(A_AT, 8000),
            "b": vector(B_AT, 16000),
            "out": vector(D_AT, 32000),
            "offsets": offsets(7),
            **changes,
        }
        with pytest.raises(LaunchError, match=why):
            made(**call)
    assert not fake_driver.launches
