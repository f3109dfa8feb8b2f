"""GPU kernels for rows with gaps: code that assembles, tensor maps and launch arguments."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

import codegen
from codegen.call import build, matmul
from codegen.call.views import TensorView
from codegen.targets.nvptx import CudaKernel
from codegen.targets.nvptx.program import CudaProgram, Vectors
from coordgraph import Gemm, KernelGraph, LaunchError, parse
from coordgraph import epilogue as ep
from coordgraph.control.asynchronous import CopyBox
from coordgraph.control.lowered import ApplyFragment
from passes import DataParallel, Pass, StreamK, TwoTileStreamK
from passes.lowering import LowerToHopper
from tests.codegen.nvptx.called import count_arguments
from tests.codegen.nvptx.fake_driver import FakeDriver, matrix
from tests.codegen.nvptx.hopper_machine import Hopper
from tests.support.ptxas import HAS_WHEEL, assert_clean
from tests.support.sampling import quick_cases

needs_ptxas = pytest.mark.skipif(not HAS_WHEEL, reason="there is no ptxas for this platform")
PERSISTENT, LAST = DataParallel(persistent=True), TwoTileStreamK(owner="last")
WIDE, PAIRS, SINGLE = Vectors(8, 8, 8), Vectors(8, 8, 2), Vectors(1, 1, 1)
A_AT, B_AT, C_AT, D_AT, R_AT = (i << 30 for i in range(1, 6))


@ep.epilogue(residual="lmn", bias="n")
def add_both(acc: Any, residual: Any, bias: Any) -> Any:
    return acc + residual + bias


def problem(strided: bool = True, layout: str = "nn", **fields: Any) -> Gemm:
    """A bf16 problem; if `strided`, all of its matrices have leading dimensions."""
    a, b = (side == "t" for side in layout)
    gemm = Gemm(transpose_a=a, transpose_b=b, **fields)
    return replace(gemm, leading_dimensions=gemm.matrices) if strided else gemm


def program(
    gemm: Gemm,
    schedule: Pass,
    tile: tuple[int, int, int],
    vectors: Vectors,
    lowering: LowerToHopper | None = None,
    *,
    reads_c: bool = True,
) -> CudaProgram:
    return CudaProgram(
        schedule(gemm.graph(tile)),
        "sm_80" if lowering is None else "sm_90a",
        vectors,
        instructions="mma.sync" if lowering is None else "wgmma",
        reads_c=reads_c,
        lowering=lowering,
    )


@quick_cases(1)
@needs_ptxas
@pytest.mark.parametrize(
    ("schedule", "fields", "vectors"),
    [
        (PERSISTENT, {}, PAIRS),
        (LAST, {"layout": "tt"}, PAIRS),
        (PERSISTENT, {"batched": True, "layout": "nt"}, SINGLE),
        (LAST, {"batched": True, "epilogue": add_both}, PAIRS),
        (StreamK(), {"epilogue": add_both}, SINGLE),
        (LAST, {"transposed_operands": ("C",)}, PAIRS),
        (PERSISTENT, {"grouped": True}, PAIRS),
        (LAST, {"grouped": True, "group_axis": "k", "layout": "tn"}, PAIRS),
        (LAST, {"transposed_operands": ("residual",), "epilogue": add_both}, PAIRS),
    ],
    ids=str,
)
def test_sm_80_assembles(schedule: Pass, fields: dict[str, Any], vectors: Vectors):
    assert_clean(program(problem(**fields), schedule, (128, 128, 32), vectors).assembled()[1])


@quick_cases(1)
@needs_ptxas
@pytest.mark.parametrize(
    ("schedule", "fields", "tile", "lowering", "vectors"),
    [
        (PERSISTENT, {}, (128, 256, 64), LowerToHopper(), WIDE),
        (LAST, {"layout": "tt"}, (256, 128, 64), LowerToHopper(cluster_m=2), WIDE),
        (LAST, {"layout": "nt"}, (128, 256, 64), LowerToHopper(), PAIRS),
        (PERSISTENT, {"batched": True}, (64, 256, 64), LowerToHopper(consumers="pingpong"), WIDE),
        (LAST, {"epilogue": add_both}, (128, 128, 64), LowerToHopper(), WIDE),
        (LAST, {"batched": True, "epilogue": add_both}, (16, 128, 64), LowerToHopper(), SINGLE),
        (LAST, {"transposed_operands": ("C",)}, (128, 128, 64), LowerToHopper(), WIDE),
        (PERSISTENT, {"grouped": True}, (128, 256, 64), LowerToHopper(), WIDE),
        (
            LAST,
            {"grouped": True, "group_axis": "k", "layout": "tn"},
            (128, 128, 64),
            LowerToHopper(),
            WIDE,
        ),
        (
            PERSISTENT,
            {"transposed_operands": ("residual",), "epilogue": add_both},
            (128, 128, 64),
            LowerToHopper(),
            WIDE,
        ),
    ],
    ids=str,
)
def test_hopper_assembles(
    schedule: Pass,
    fields: dict[str, Any],
    tile: tuple[int, int, int],
    lowering: LowerToHopper,
    vectors: Vectors,
):
    made = program(problem(**fields), schedule, tile, vectors, lowering)
    assert_clean(made.assembled()[1])


LEAD = re.compile(r"\bld_(\w+)")


def without_strides(graph: KernelGraph) -> list[str]:
    """The lines of a graph's text, with the contiguous stride in place of each leading dimension.

    The sizes and the parameters of tensors are left out.
    """
    turned = {"a": "m", "b": "k"} if graph.gemm.transpose_a else {"a": "k", "b": "n"}

    def contiguous(found: re.Match[str]) -> str:
        return turned.get(found[1], "n")

    dropped = re.compile(r"gemm|param (ld|stride)_|tensor |dim (A|B|C|D|residual): User|origin ")
    lines = str(graph).splitlines()
    return [LEAD.sub(contiguous, line) for line in lines if not dropped.match(line)]


@quick_cases(2)
@pytest.mark.parametrize("layout", ["nn", "tt"])
@pytest.mark.parametrize("lowering", [None, LowerToHopper()], ids=["sm_80", "sm_90a"])
@pytest.mark.parametrize("fields", [{}, {"epilogue": add_both}], ids=["C", "operands"])
def test_only_the_edges_to_memory_differ(
    layout: str, lowering: LowerToHopper | None, fields: dict[str, Any]
):
    """Leading dimensions change a lowered graph only in the strides of tensors.

    Without its strides, the graph equals the graph of the problem with contiguous rows.
    """
    strided, plain = (
        program(problem(which, layout, **fields), LAST, (128, 128, 64), WIDE, lowering).lowered
        if lowering is not None
        else program(problem(which, layout, **fields), LAST, (128, 128, 32), PAIRS).lowered
        for which in (True, False)
    )
    assert without_strides(strided) == without_strides(plain)
    assert sum("ld_" in line for line in str(strided).splitlines() if "edge Split" in line) >= 4
    assert parse(str(strided)) == strided


@pytest.mark.parametrize("lowering", [None, LowerToHopper()], ids=["sm_80", "sm_90a"])
@pytest.mark.parametrize("turned", [False, True])
def test_transposed_operands_are_read_element_by_element(
    lowering: LowerToHopper | None, turned: bool
):
    """An epilogue operand that is stored as its transpose is read one element at a time.

    Elements that are adjacent in a row of D are not adjacent in such an operand.
    """
    names = ("residual",) if turned else ()
    gemm = problem(epilogue=add_both, transposed_operands=names)
    lowered = program(gemm, LAST, (128, 128, 64), WIDE if lowering else PAIRS, lowering).lowered
    reads = [x for x in lowered.control.of_kind(ApplyFragment) if "residual" in x.sources]
    widths = {dict(zip(x.sources, x.widths, strict=True))["residual"] for x in reads}
    assert widths == ({1} if turned else {2})
    boxes = {x.tensor for x in lowered.control.of_kind(CopyBox)}
    assert ("residual" in boxes) == (lowering is not None and not turned)


@quick_cases(2)
@pytest.mark.parametrize("seed", range(3))
def test_hopper_plays_problems_with_gaps(seed: int):
    gemm = problem()
    made = program(gemm, LAST, (64, 64, 64), WIDE, LowerToHopper())
    sizes = {"m": 200, "n": 100, "k": 260, "ld_a": 300, "ld_b": 128, "ld_c": 100, "ld_d": 900}
    machine = Hopper(made.lowered, {**sizes, "workgroups": 5}, resident=5, seed=seed)
    machine.run()
    assert machine.boxes


def test_addresses_have_64_bits():
    """Offsets (row times leading dimension) have 64 bits, since they may exceed 2^31 elements."""
    for made in (
        program(problem(), PERSISTENT, (128, 128, 32), PAIRS),
        program(problem(), PERSISTENT, (128, 128, 64), PAIRS, LowerToHopper()),
    ):
        wide = {s.name: s.bits for s in made.walker.arguments.scalars.values()} if made.ptx else {}
        assert {wide[name] for name in ("ld_a", "ld_b", "ld_c", "ld_d")} == {64}


# Calls of `codegen.matmul` on a fake GPU.


def strided(rows: int, columns: int, at: int, step: int, **changes: Any) -> TensorView:
    return matrix(rows, columns, at, strides=(step, 1), **changes)


def maps(fake: FakeDriver) -> dict[int, tuple[tuple[int, ...], int, int]]:
    """Tensor maps by address: (shape, bytes from row to row, bytes from matrix to matrix)."""
    return {map.at: (map.shape, map.stride, map.matrices) for map in fake.encoded}


@pytest.mark.usefixtures("forgotten")
def test_tensor_maps_have_the_strides_of_arrays(fake: FakeDriver):
    a, b = strided(500, 300, A_AT, 1024), strided(300, 700, B_AT, 720)
    codegen.matmul(a, b, out=strided(500, 700, D_AT, 2048))
    found = maps(fake)
    assert found[A_AT] == ((500, 300), 2048, 0)
    assert found[B_AT] == ((300, 700), 1440, 0)
    if D_AT in found:  # TMA stores D only if shared memory has room for staging slots of D
        assert found[D_AT] == ((500, 700), 4096, 0)
    # B column-major, with a gap between columns
    turned = matrix(300, 700, B_AT, strides=(1, 320))
    fake.encoded.clear()
    codegen.matmul(a, turned, out=strided(500, 700, D_AT, 2048))
    assert maps(fake)[B_AT] == ((700, 300), 640, 0)


@pytest.mark.usefixtures("forgotten")
def test_tensor_maps_of_permuted_batches(fake: FakeDriver):
    """Tensor maps are right for a batch that is stored row by row: its matrix i is x[:, i]."""
    a = matrix(0, 0, A_AT, shape=(4, 256, 192), strides=(192, 4 * 192, 1))
    b = matrix(0, 0, B_AT, shape=(4, 192, 320), strides=(192 * 320, 320, 1))
    d = matrix(0, 0, D_AT, shape=(4, 256, 320), strides=(320, 4 * 320, 1))
    codegen.matmul(a, b, out=d)
    found = maps(fake)
    assert found[A_AT] == ((4, 256, 192), 2 * 4 * 192, 2 * 192)
    assert found[B_AT] == ((4, 192, 320), 2 * 320, 2 * 192 * 320)


@quick_cases(1)
@pytest.mark.usefixtures("forgotten")
@pytest.mark.parametrize(
    ("step", "at", "boxed"),
    [
        (1024, A_AT, True),
        (300, A_AT, False),
        (1024, A_AT + 8, False),
        (0, A_AT, False),
        (200, A_AT, False),
    ],
)
def test_tma_needs_rows_at_multiples_of_16_bytes(fake: FakeDriver, step: int, at: int, boxed: bool):
    codegen.matmul(
        strided(500, 300, at, step), strided(300, 704, B_AT, 720), out=matrix(500, 704, D_AT)
    )
    assert bool(fake.encoded) == boxed
    (kernel,) = (made for made in build._kernels.values() if isinstance(made, CudaKernel))
    assert kernel.instructions == ("wgmma" if boxed else "mma.sync")
    assert len(fake.launches) == 1


@pytest.mark.usefixtures("forgotten")
def test_accesses_are_as_wide_as_rows_allow(fake: FakeDriver):
    """Vector copies of A read neither past the end of a row nor at unaligned addresses."""
    widths: list[Vectors] = []
    for columns, step in ((300, 1020), (302, 1020), (301, 1020), (304, 1022), (304, 1021)):
        matmul.forget()
        a = strided(500, columns, A_AT, step)
        codegen.matmul(a, strided(columns, 704, B_AT, 720), out=matrix(500, 704, D_AT))
        (kernel,) = (made for made in build._kernels.values() if isinstance(made, CudaKernel))
        widths += [variant.vectors for _, variant in kernel._functions]
    assert [found.a for found in widths] == [4, 2, 1, 2, 1]


@quick_cases(1)
@pytest.mark.usefixtures("forgotten")
@pytest.mark.parametrize(("columns", "vector"), [(96, 8), (100, 2), (101, 1)])
def test_stores_at_the_end_of_a_group_stay_inside_rows(fake: FakeDriver, columns: int, vector: int):
    """Threads store the boxes of D in which a group ends, and write nothing past the end of a row.

    TMA clips boxes at the end of a row, but threads store whole vectors. So they store 8 elements
    at a time only if rows are multiples of 16 bytes.
    """
    b = matrix(0, 0, B_AT, shape=(4, 128, columns), strides=(128 * 104, 104, 1))
    offsets = TensorView(C_AT, (5,), (1,), "i32", 0)
    a, d = strided(512, 128, A_AT, 136), strided(512, columns, D_AT, 104)
    codegen.grouped_matmul(a, b, offsets, out=d)
    (kernel,) = (made for made in build._kernels.values() if isinstance(made, CudaKernel))
    ((_, variant),) = kernel._functions
    assert variant.vectors.d == vector
    assert maps(fake)[B_AT] == ((4, 128, columns), 208, 2 * 128 * 104)


@pytest.mark.parametrize("architecture", ["sm_80", "sm_90a"])
@pytest.mark.parametrize(("columns", "vector"), [(96, 8), (100, 2), (101, 1)])
def test_stores_stay_inside_rows(columns: int, vector: int, architecture: str):
    """TMA, which stores 16 bytes at a time, stores D only if rows of D are multiples of 16 bytes.

    Else the last store of a row would write to the gap after the row. Kernels with mma.sync store
    at most 2 elements at a time.
    """
    made = codegen.compile(DataParallel()(problem().graph((128, 128, 64))), architecture)
    assert isinstance(made, CudaKernel)
    views = {
        "A": strided(500, 128, A_AT, 136),
        "B": strided(128, columns, B_AT, 104),
        "D": strided(500, columns, D_AT, 104),
    }
    _, variant = made._place(views, {"alpha": 1.0, "beta": 0.0})
    assert variant.vectors.d == (min(vector, 2) if architecture == "sm_80" else vector)


@pytest.mark.usefixtures("forgotten")
@pytest.mark.parametrize(("rows", "vector"), [(304, 8), (300, 2)])
def test_stores_stay_inside_columns(fake: FakeDriver, rows: int, vector: int):
    """TMA stores a column-major D only if columns of D are multiples of 16 bytes."""
    a, b = strided(rows, 128, A_AT, 136), strided(128, 704, B_AT, 704)
    d = matrix(rows, 704, D_AT, strides=(1, 312))
    codegen.matmul(a, b, out=d)
    (kernel,) = (made for made in build._kernels.values() if isinstance(made, CudaKernel))
    ((_, variant),) = kernel._functions
    assert variant.vectors.d == vector


@pytest.mark.usefixtures("forgotten")
def test_launches_take_the_leading_dimensions(fake: FakeDriver):
    a, b = strided(500, 300, A_AT, 1024), strided(300, 704, B_AT, 720)
    d, c = strided(500, 704, D_AT, 2048), strided(500, 704, C_AT, 1 << 31)
    codegen.matmul(a, b, c, d, beta=1.0)
    (kernel,) = (made for made in build._kernels.values() if isinstance(made, CudaKernel))
    count_arguments(kernel, fake)
    codegen.matmul(a, b, c, d, beta=1.0)
    codegen.matmul(a, b, strided(500, 704, C_AT, 800), d, beta=1.0)
    _, one, other = fake.launches
    assert {1024, 720, 2048, 1 << 31} <= {*one.values}
    assert {1024, 720, 2048, 800} <= {*other.values}
    assert len(fake.loaded) == 1


@pytest.mark.usefixtures("forgotten")
def test_parts_of_one_array_may_be_operand_and_result(fake: FakeDriver):
    """D may lie in the gaps of A; C may be D, but not with other strides."""
    a, b = strided(512, 256, A_AT, 1024), strided(256, 256, B_AT, 512)
    codegen.matmul(a, b, out=strided(512, 256, A_AT + 2 * 512, 1024))
    with pytest.raises(LaunchError, match="'out' overlaps a"):
        codegen.matmul(a, b, out=strided(512, 256, A_AT + 2 * 200, 1024))
    every = matrix(0, 0, D_AT, shape=(8, 8, 64), strides=(8 * 64, 64, 1))
    other = matrix(0, 0, D_AT, shape=(8, 8, 64), strides=(64, 8 * 64, 1))
    a, b = (
        matrix(0, 0, at, shape=(8, n, 64), strides=(n * 64, 64, 1))
        for at, n in ((A_AT, 8), (B_AT, 64))
    )
    codegen.matmul(a, b, every, every, beta=1.0)
    codegen.matmul(a, b, replace(every, pointer=C_AT), other, beta=1.0)
    for _ in range(2):
        with pytest.raises(LaunchError, match="'out' overlaps c"):
            codegen.matmul(a, b, every, other, beta=1.0)
