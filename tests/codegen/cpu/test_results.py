"""CPU kernels of every schedule, tile order and type give the float64 result, within rounding."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coordgraph.interpreter import interpret
from tests.codegen.cpu.kernels import EVERY_SCHEDULE, TILE, Problem, kernel
from tests.passes.schedules import ORDERS, SCHEDULES, parameters
from tests.support.sampling import chosen, cover, quick_cases

SIZES = [(1, 1, 1), (1, 40, 24), (12, 1, 25), (13, 41, 1), (24, 80, 48), (25, 95, 131), (61, 7, 90)]
TYPES = [("f32", None), ("f64", None), ("bf16", None), ("f16", None)]
MIXED = [("bf16", "f32"), ("f16", "f32"), ("f32", "bf16"), ("f64", "f16"), ("bf16", "f16")]


@quick_cases(2)
@pytest.mark.parametrize("name", EVERY_SCHEDULE)
def test_every_schedule_at_every_size(name: str):
    for m, n, k in SIZES:
        for workgroups in (1, 5):
            Problem(kernel(name), m, n, k, alpha=1.5, beta=-0.5).check(workgroups=workgroups)


@quick_cases(1)
@pytest.mark.parametrize(
    ("name", "order"),
    chosen(
        (
            ("two-tile-stream-k", "hilbert"),
            ("data-parallel", "swap-group"),
        ),
        product(("data-parallel", "two-tile-stream-k"), [o for o in ORDERS if o != "plain"]),
    ),
)
def test_every_order(name: str, order: str):
    for m, n, k in SIZES:
        Problem(kernel(name, order), m, n, k).check(workgroups=4)


@pytest.mark.slow
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_everything_together(name: str, order: str, dtype: str):
    for m, n, k in SIZES:
        for workgroups in (1, 2, 7):
            for alpha, beta in ((1.0, 0.0), (0.5, 2.0)):
                problem = Problem(kernel(name, order, dtype), m, n, k, alpha, beta)
                problem.check(workgroups=workgroups)


@pytest.mark.parametrize(
    ("dtype", "out_dtype", "transposed"),
    cover(0, [(*types, turned) for types in TYPES for turned in ("", "a", "b", "ab")]),
)
def test_every_type_and_transpose(dtype: str, out_dtype: str | None, transposed: str):
    code = kernel(
        "data-parallel",
        dtype=dtype,
        out_dtype=out_dtype,
        transpose_a="a" in transposed,
        transpose_b="b" in transposed,
    )
    for m, n, k in SIZES:
        Problem(code, m, n, k, alpha=-0.75, beta=0.25).check()


@quick_cases(1)
@pytest.mark.parametrize(("dtype", "out_dtype"), chosen(MIXED[::2], MIXED))
def test_the_output_may_have_another_type(dtype: str, out_dtype: str):
    for m, n, k in SIZES:
        Problem(kernel("stream-k", dtype=dtype, out_dtype=out_dtype), m, n, k, 2.0, 0.5).check()


@quick_cases(1)
@pytest.mark.parametrize(
    ("small", "dtype", "out_dtype", "transposed"),
    cover(
        0,
        [
            (small, *types, turned)
            for small in ("{small_m=3,small_n=8}", "{small_m=12,small_n=1}")
            for types in (*TYPES, ("bf16", "f32"))
            for turned in ("", "ab")
        ],
    ),
)
def test_tiles_of_two_shapes(small: str, dtype: str, out_dtype: str | None, transposed: str):
    """Kernels with tiles of two shapes give right results.

    The two tile shapes have different register blocks, and neither shape is a multiple of its
    block.
    """
    code = kernel(
        f"heterogeneous-tiles{small}",
        dtype=dtype,
        out_dtype=out_dtype,
        transpose_a="a" in transposed,
        transpose_b="b" in transposed,
    )
    for m, n, k in SIZES:
        for workgroups in (2, 5):
            Problem(code, m, n, k, alpha=-0.75, beta=0.25).check(workgroups=workgroups)


TILES = [(1, 1, 1), (5, 7, 3), (2, 3, 64), (33, 17, 8), (64, 1, 5), (1, 70, 2)]


@quick_cases(1)
@pytest.mark.parametrize(("tile", "dtype"), cover(0, product(TILES, ("f32", "f64"))))
def test_every_tile_shape(tile: tuple[int, int, int], dtype: str):
    code = kernel("data-parallel", tile=tile, dtype=dtype)
    for m, n, k in ((1, 1, 1), (9, 16, 7), (35, 36, 65)):
        Problem(code, m, n, k, alpha=2.0, beta=1.0).check()


@settings(max_examples=25, deadline=None)
@given(
    name=st.sampled_from(["stream-k", "two-tile-stream-k", "data-parallel{persistent=true}"]),
    sizes=st.tuples(st.integers(1, 90), st.integers(1, 130), st.integers(1, 200)),
    workgroups=st.integers(1, 40),
    threads=st.integers(1, 3),
    scalars=st.sampled_from([(1.0, 0.0), (0.0, 1.0), (-2.5, 0.125), (0.0, 0.0)]),
)
def test_one_kernel_for_all_problems(
    name: str,
    sizes: tuple[int, int, int],
    workgroups: int,
    threads: int,
    scalars: tuple[float, float],
):
    Problem(kernel(name), *sizes, *scalars).check(workgroups=workgroups, threads=threads)


@quick_cases(3)
@pytest.mark.parametrize("name", EVERY_SCHEDULE)
@pytest.mark.parametrize("sizes", [(1, 1, 1), (30, 50, 60), (24, 80, 120)])
def test_the_interpreter_gives_the_same(name: str, sizes: tuple[int, int, int]):
    problem = Problem(kernel(name), *sizes, alpha=2.0, beta=-1.0, whole=True)
    graph = problem.kernel.graph
    given = parameters(graph, (*sizes, 5))
    left = {k: v for k, v in given.items() if k == "workgroups"}
    wanted = interpret(
        graph, problem.a, problem.b, problem.c, alpha=2.0, beta=-1.0, parameters=left
    ).d
    assert np.array_equal(problem.run(workgroups=5), wanted)


def test_a_kernel_of_fixed_sizes():
    from codegen.targets.cpu import HostKernel
    from coordgraph import Gemm
    from passes import StreamK

    code = HostKernel(StreamK(workgroups=4)(Gemm("f32", m=30, n=90, k=70).graph(TILE)))
    Problem(code, 30, 90, 70, 1.0, 1.0).check()


def test_c_is_not_read_where_beta_is_zero():
    problem = Problem(kernel("stream-k"), 30, 50, 40)
    wanted = problem.check()
    problem.c[...] = np.nan
    d = problem.kernel(problem.a, problem.b, problem.c, beta=0.0, workgroups=3)
    assert np.array_equal(d, wanted)


def test_the_output_may_be_c():
    problem = Problem(kernel("two-tile-stream-k"), 61, 95, 50, alpha=1.5, beta=0.5)
    wanted, c = problem.check(), problem.c
    made = problem.kernel(problem.a, problem.b, c, out=c, alpha=1.5, beta=0.5, workgroups=3)
    assert made is c
    assert np.array_equal(c, wanted)


def test_infinities_and_nans_stay_in_their_rows_and_columns():
    problem = Problem(kernel("stream-k"), 30, 50, 60)
    problem.a[3, 5] = np.nan
    problem.b[7, 11] = np.inf
    with np.errstate(invalid="ignore"):
        wanted = np.isfinite(problem.a.astype(np.float64) @ problem.b.astype(np.float64))
    d = problem.run()
    assert np.array_equal(np.isfinite(d), wanted)
    assert not wanted[3].any()
    assert not wanted[:, 11].any()
    assert wanted.sum() == 29 * 49
