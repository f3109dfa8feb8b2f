"""`codegen.matmul` of batches: results on the CPU against NumPy, and plans chosen for a GPU."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import codegen
from codegen.call import build, matmul, measured, tuning
from codegen.call.arrays import library
from codegen.call.choose import plans
from codegen.call.request import PlanRequest
from codegen.toolchain import assemble
from coordgraph import CodegenError, Gemm, LaunchError
from passes.choosing import rank
from tests.codegen.nvptx.fake_driver import FakeDriver, matrix
from tests.support.ptxas import assert_clean
from tests.support.sampling import chosen, cover, quick_cases

pytestmark = pytest.mark.usefixtures("forgotten")

A, B, D = 1 << 30, 2 << 30, 3 << 30


def whole(*shape: int) -> np.ndarray:
    """Arrays of small integers, whose products are exact in every type."""
    return np.random.default_rng(shape).integers(-4, 5, shape).astype(np.float32)


def stored(batch: np.ndarray, turned: bool) -> np.ndarray:
    """A copy with the same values and shape, stored row-major or, if `turned`, column-major."""
    if not turned:
        return np.ascontiguousarray(batch)
    return np.ascontiguousarray(batch.swapaxes(-1, -2)).swapaxes(-1, -2)


@pytest.mark.parametrize("most", [14, pytest.param(40, marks=pytest.mark.slow)])
def test_batches_are_as_numpy_has_them(most: int):
    """`matmul` of batches returns the array that NumPy returns, and refuses what NumPy refuses.

    Extents up to 14 need few kernels; the slow run has larger ones, with a kernel for each of 27
    macro tiles.
    """
    extent = st.integers(0, most)
    settings(max_examples=30, deadline=None)(
        given(
            *(st.integers(0, 5), st.integers(0, most // 2), extent, extent),
            *(st.sampled_from(["each", "matrix", "expanded", "one of three axes"]) for _ in "AB"),
            *(st.booleans() for _ in "AB"),
            st.sampled_from([0, 0, 0, 1, 2]),
        )(check_a_batch)
    )()


def check_a_batch(
    l: int,  # noqa: E741
    m: int,
    k: int,
    n: int,
    how_a: str,
    how_b: str,
    turned_a: bool,
    turned_b: bool,
    more: int,
):
    def operand(count: int, how: str, turned: bool, rows: int, columns: int) -> np.ndarray:
        if how == "each":
            return stored(whole(count, rows, columns), turned)
        one = stored(whole(rows, columns), turned)
        if how == "matrix":
            return one
        every = (count, rows, columns)
        return one[None] if how == "one of three axes" else np.broadcast_to(one, every)

    a, b = operand(l, how_a, turned_a, m, k), operand(l + more, how_b, turned_b, k, n)
    try:
        want = a @ b
    except ValueError:  # the numbers of matrices of A and B differ, and neither is 1
        with pytest.raises(LaunchError, match=r"b is .* is needed"):
            codegen.matmul(a, b)
        return
    found = codegen.matmul(a, b)
    assert found.shape == want.shape
    assert np.array_equal(found, want)


@quick_cases(1)
@pytest.mark.parametrize(
    ("transpose_a", "transpose_b", "shared"),
    cover(4, product([False, True], [False, True], ["", "a", "b"])),
)
def test_each_matrix_may_be_given_as_its_transpose(
    transpose_a: bool, transpose_b: bool, shared: str
):
    a, b = whole(3, 20, 33), whole(3, 33, 17)
    a, b = a[0] if shared == "a" else a, b[0] if shared == "b" else b
    given_a = stored(a, transpose_a).swapaxes(-1, -2) if transpose_a else a
    given_b = stored(b, transpose_b).swapaxes(-1, -2) if transpose_b else b
    options: dict[str, Any] = {"transpose_a": transpose_a, "transpose_b": transpose_b}
    assert np.array_equal(codegen.matmul(given_a, given_b, **options), a @ b)
    # The transpose of a transpose is the array itself.
    back = a.swapaxes(-1, -2), b.swapaxes(-1, -2)
    assert np.array_equal(codegen.matmul(*back, transpose_a=True, transpose_b=True), a @ b)


@quick_cases(1)
@pytest.mark.parametrize("shared", [False, True])
def test_the_epilogue_of_a_batch(shared: bool):
    a, b, c = whole(4, 20, 30), whole(4, 30, 24), whole(4, 20, 24)
    b = b[1] if shared else b
    want = 2 * (a @ b) - 3 * c
    assert np.array_equal(codegen.matmul(a, b, c, alpha=2.0, beta=-3.0), want)
    every = np.full((4, 3, 20, 24), 7, np.float32)
    for out in (np.empty_like(want), every[:, 1]):  # `every[:, 1]` has gaps between its matrices
        for _ in range(2):
            assert codegen.matmul(a, b, c, out, 2.0, -3.0) is out
            assert np.array_equal(out, want)
    assert (every[:, ::2] == 7).all()
    one = np.broadcast_to(c[0], c.shape)  # C may be one matrix for the whole batch
    assert np.array_equal(codegen.matmul(a, b, one, beta=1.0), a @ b + c[0])


def test_gaps_between_the_matrices_of_operands():
    a, b = whole(4, 3, 20, 30)[:, 1], whole(4, 2, 30, 24)[:, 0]
    assert np.array_equal(codegen.matmul(a, b), a @ b)
    assert np.array_equal(codegen.matmul(a, b[0]), a @ b[0])
    assert np.array_equal(codegen.matmul(a[::2], b[::2]), a[::2] @ b[::2])


@pytest.mark.slow
def test_a_plan_for_a_batch_can_be_told():
    a, b = whole(3, 40, 50), whole(3, 50, 60)
    plan = "32x32x16 stream-k{owner=last} on 5"
    for right in (b, b[0]):
        assert np.array_equal(codegen.matmul(a, right, plan=plan), a @ right)
        assert np.array_equal(codegen.matmul(a, right, tune=True), a @ right)


@pytest.mark.parametrize("tune", [False, True])
def test_only_the_call_that_says_so_measures(
    fake: FakeDriver, monkeypatch: pytest.MonkeyPatch, tune: bool
):
    """`matmul` measures plans only in a call with tune=True.

    Outputs with and without gaps between matrices share the cached plan, but run two kernels.
    """
    calls: list[tuple[int, Any]] = []

    def tune_plans(request: PlanRequest, views: Any, stream: Any) -> None:
        calls.append((request.batches, stream))

    monkeypatch.setattr(tuning, "tune_plans", tune_plans)
    a, b = batch(3, 64, 128, A), matrix(128, 192, B)
    outs = batch(3, 64, 192, D), batch(3, 64, 192, D, step=2 * 64 * 192)
    for first in (0, 1):
        matmul.forget()
        calls.clear()
        codegen.matmul(a, b, out=outs[first], stream=5, tune=tune)
        for out in (*outs, *outs):
            codegen.matmul(a, b, out=out, stream=7)
        assert calls == [((1, 3)[first], 5)] * tune
    codegen.matmul(a, b, out=outs[0], stream=5)
    codegen.matmul(a, b, out=outs[1], stream=9, tune=tune)
    assert calls[1:] == [(3, 9)] * tune


@quick_cases(1)
@pytest.mark.parametrize("how", chosen(["expanded", "turned"], ["matrix", "expanded", "turned"]))
def test_chosen_is_what_matmul_takes(fake: FakeDriver, how: str):
    a, b = batch(64, 16, 256, A), matrix(256, 512, B)
    given = {"expanded": batch(64, 256, 512, B, step=0), "turned": turned(512, 256, B)}.get(how, b)
    gaps = batch(64, 16, 512, D, step=2 * 16 * 512)
    of_one = matmul.chosen(a, given)
    joined = matmul.chosen(matrix(64 * 16, 256, A), given if how == "turned" else b)
    assert of_one == matmul.chosen(a, given, out=batch(64, 16, 512, D)) == joined
    assert matmul.chosen(a, given, out=gaps) != of_one
    for out, plan in ((batch(64, 16, 512, D), of_one), (gaps, matmul.chosen(a, given, out=gaps))):
        codegen.matmul(a, given, out=out)
        codegen.matmul(a, given, out=out, plan=plan)
        assert fake.launches[-1] == fake.launches[-2]


def expanded(*shape: int) -> np.ndarray:
    """One matrix expanded along the first axis, with stride 0."""
    return np.broadcast_to(whole(*shape[1:]), shape)


@pytest.mark.parametrize(
    ("a", "b", "words"),
    [
        (whole(4, 3, 7), expanded(5, 7, 5), "b is 5x7x5, but 4x7x5 is needed"),
        (whole(4, 3, 7), expanded(2, 7, 5), "b is 2x7x5, but 4x7x5 is needed"),
        (whole(0, 3, 7), expanded(2, 7, 5), "b is 2x7x5, but 0x7x5 is needed"),
        # NumPy gives arrays without elements strides of 0, which must not pass for an expanded B.
        (whole(4, 3, 0), whole(5, 0, 5), "b is 5x0x5, but 4x0x5 is needed"),
        (expanded(4, 3, 7), whole(5, 7, 5), "b is 5x7x5, but 4x7x5 is needed"),
        # Error messages show the shapes that the caller passed, not those of the rearranged
        # product.
        (whole(4, 3, 7), whole(6, 5), "^a is 4x3x7 and b is 6x5: k would be 7 and 6"),
        (whole(4, 3, 7), expanded(4, 6, 5), "^a is 4x3x7 and b is 4x6x5: k would be 7 and 6"),
        (whole(3, 7), whole(4, 6, 5), "^a is 3x7 and b is 4x6x5: k would be 7 and 6"),
        (whole(7, 3).T, whole(6, 5), "^a is 3x7 and b is 6x5: k would be 7 and 6"),
    ],
)
def test_shapes_must_fit_however_they_are_given(a: np.ndarray, b: np.ndarray, words: str):
    for call in (codegen.matmul, matmul.chosen):
        with pytest.raises(LaunchError, match=words):
            call(a, b)
    back = a.swapaxes(-1, -2), b.swapaxes(-1, -2)
    with pytest.raises(LaunchError, match=r"k would be|is needed"):
        codegen.matmul(*back, transpose_a=True, transpose_b=True)


@pytest.mark.parametrize(("count", "step"), [(5, 0), (2, 0), (5, None), (0, 0)])
def test_a_gpu_is_not_asked_for_another_number_of_matrices(
    fake: FakeDriver, count: int, step: int | None
):
    with pytest.raises(LaunchError, match=f"b is {count}x64x768, but 4x64x768 is needed"):
        codegen.matmul(
            batch(4, 512, 64, A), batch(count, 64, 768, B, step=step), out=batch(4, 512, 768, D)
        )
    assert fake.launches == []


@pytest.mark.parametrize(
    ("a", "b", "words"),
    [
        ((3, 4, 5), (2, 5, 6), "b is 2x5x6, but 3x5x6 is needed"),
        ((3, 4, 5), (3, 6, 5), "k would be 5 and 6"),
        ((3, 4, 5), (6, 5), "k would be 5 and 6"),
        ((4, 5), (3, 6, 5), "k would be 5 and 6"),
    ],
)
def test_operands_must_fit(a: tuple[int, ...], b: tuple[int, ...], words: str):
    with pytest.raises(LaunchError, match=words):
        codegen.matmul(whole(*a), whole(*b))


@quick_cases(1)
@pytest.mark.parametrize("shared", [False, True])
def test_outputs_must_fit(shared: bool):
    a, b = whole(3, 4, 5), whole(5, 6) if shared else whole(3, 5, 6)
    for shape in ((3, 4, 7), (2, 4, 6), (12, 6), (4, 3, 6)):
        said = "x".join(map(str, shape))
        with pytest.raises(LaunchError, match=rf"out (is|has shape) {said}[,;]"):
            codegen.matmul(a, b, out=whole(*shape))
        with pytest.raises(LaunchError, match=rf"c (is|has shape) {said}[,;]"):
            codegen.matmul(a, b, whole(*shape), beta=1.0)
    square = whole(3, 5, 5)
    with pytest.raises(LaunchError, match="'out' overlaps a"):
        codegen.matmul(square, square[0] if shared else whole(3, 5, 5), out=square)
    # A caller of `matmul` compiles no kernel, so the message does not advise to compile another
    # kernel.
    with pytest.raises(LaunchError, match=r"a is not contiguous .*; pass a contiguous copy$"):
        codegen.matmul(whole(3, 4, 10)[..., ::2], b)
    with pytest.raises(LaunchError, match=r"b is not contiguous .*; pass a contiguous copy$"):
        codegen.matmul(a, (whole(5, 12) if shared else whole(3, 5, 12))[..., ::2])
    with pytest.raises(LaunchError, match=r"b holds f64, but the kernel takes f32; convert it$"):
        codegen.matmul(a, b.astype(np.float64))
    with pytest.raises(
        LaunchError, match=r"out holds i32; matrices hold .* or f64 here: convert it$"
    ):
        codegen.matmul(a, b, out=np.zeros((3, 4, 6), np.int32))


def batch(count: int, rows: int, columns: int, at: int, step: int | None = None) -> Any:
    """A batch of row-major matrices at a fake address."""
    step = rows * columns if step is None else step
    shape, strides = (count, rows, columns), (step, columns, 1)
    return matrix(rows, columns, at, shape=shape, strides=strides)


def turned(rows: int, columns: int, at: int) -> Any:
    """The transpose of a matrix at a fake address."""
    return library(view := matrix(rows, columns, at)).transposed(view)


def turned_batch(count: int, rows: int, columns: int, at: int) -> Any:
    """The transposes of a batch of matrices at a fake address."""
    return library(view := batch(count, rows, columns, at)).transposed(view)


def test_the_plan_of_a_batch_is_that_of_all_its_products(fake: FakeDriver):
    d = batch(33, 512, 256, D)
    codegen.matmul(batch(33, 512, 1024, A), batch(33, 256, 1024, B), out=d, transpose_b=True)
    problem = Gemm("bf16", m=512, n=256, k=1024, transpose_b=True, batched=True)
    plan = rank(problem, batches=33)[0].plan
    tiles = 33 * -(-512 // plan.tile[0]) * -(-256 // plan.tile[1])
    ctas = plan.cluster[0] * plan.cluster[1]
    assert fake.launches[-1].grid == ((plan.workgroups or tiles) * ctas, 1, 1)
    assert "wgmma" in fake.loaded[-1]


def test_calls_of_matrices_and_of_batches_are_told_apart(
    fake: FakeDriver, monkeypatch: pytest.MonkeyPatch
):
    calls = [
        (matrix(512, 64, A), matrix(64, 768, B), matrix(512, 768, D)),
        (batch(1, 512, 64, A), batch(1, 64, 768, B), batch(1, 512, 768, D)),
        (batch(2, 512, 64, A), batch(2, 64, 768, B), batch(2, 512, 768, D)),
        (batch(4, 512, 64, A), batch(4, 64, 768, B), batch(4, 512, 768, D)),
        (batch(4, 512, 64, A), batch(4, 64, 768, B, step=0), batch(4, 512, 768, D)),
    ]
    for a, b, d in calls:
        assert codegen.matmul(a, b, out=d) is d
    first = fake.launches.copy()
    monkeypatch.setattr(matmul, "first_launch", None)
    for a, b, d in calls:
        assert codegen.matmul(a, b, out=d) is d
    assert fake.launches[len(first) :] == first
    # No call with this batch size is cached, so `matmul` calls `first_launch`, which is None here.
    with pytest.raises(TypeError):
        codegen.matmul(batch(3, 512, 64, A), batch(3, 64, 768, B), out=batch(3, 512, 768, D))


def test_one_matrix_for_all_products_is_one_product(fake: FakeDriver):
    """A batch of A with one B is computed as one product, since TMA cannot load matrices with
    stride 0.
    """
    tall = matrix(4 * 512, 1024, A), matrix(1024, 768, B), matrix(4 * 512, 768, D)
    codegen.matmul(tall[0], tall[1], out=tall[2])
    for b in (matrix(1024, 768, B), batch(4, 1024, 768, B, step=0), batch(1, 1024, 768, B)):
        codegen.matmul(batch(4, 512, 1024, A), b, out=batch(4, 512, 768, D))
        assert fake.launches[-1] == fake.launches[0]
    assert len(fake.loaded) == 1
    # A batch whose B is one matrix is computed as one product, unless matrices of D have gaps
    # between them: then the rows of all D do not form one matrix.
    gaps = batch(4, 512, 768, D, step=1024 * 768)
    codegen.matmul(batch(4, 512, 1024, A), matrix(1024, 768, B), out=gaps)
    assert "mma.sync" in fake.loaded[-1]


def test_arrays_go_straight_to_the_kernel_where_they_are_as_it_takes_them(fake: FakeDriver):
    codegen.matmul(batch(4, 64, 64, A), batch(4, 64, 64, B), out=batch(4, 64, 64, D))
    (prepared,) = matmul._prepared._young.values()
    assert isinstance(prepared.launch, partial)
    assert isinstance(prepared.launch.func, codegen.Kernel)
    assert not prepared.swap_a
    assert not prepared.swap_b
    turned = turned_batch(4, 64, 64, B)
    codegen.matmul(batch(4, 64, 64, A), turned, out=batch(4, 64, 64, D))
    *_, prepared = matmul._prepared._young.values()
    assert (prepared.swap_a, prepared.swap_b) == (False, True)


def test_a_plan_that_spills_gives_way_to_the_next(fake: FakeDriver):
    asked = fake.spill_once()
    turned = turned_batch(5, 768, 1024, B)
    codegen.matmul(batch(5, 512, 1024, A), turned, out=batch(5, 512, 768, D))
    assert len(fake.launches) == 1
    assert len(asked) == 2


def test_so_does_that_of_one_b_for_all_where_d_has_gaps(fake: FakeDriver):
    asked = fake.spill_once()
    operands = batch(3, 64, 128, A), matrix(128, 192, B)
    codegen.matmul(*operands, out=batch(3, 64, 192, D, step=2 * 64 * 192))
    assert len(fake.launches) == 1
    assert len(asked) == 2
    fake.spills = lambda code: True
    matmul.forget()
    with pytest.raises(CodegenError, match="spilled"):
        codegen.matmul(*operands, out=batch(3, 64, 192, D, step=2 * 64 * 192))


def test_what_was_measured_for_a_batch_is_that_of_a_batch(fake: FakeDriver):
    gemm = Gemm("bf16", m=512, n=768, k=1024, batched=True)
    here = PlanRequest(gemm, "sm_90a", "NVIDIA H200", 132)
    found = {count: replace(here, batches=count) for count in (2, 3)}
    best = rank(gemm, batches=2)[3].plan
    measured.remember(found[2], {best: 1e-5})
    assert measured.remembered(found[2]) is not None
    assert measured.remembered(found[3]) is None
    assert next(plans(found[2])) == best


@pytest.mark.slow
@pytest.mark.usefixtures("ptxas")
@pytest.mark.parametrize(
    ("count", "m", "n", "k", "layout"),
    chosen(
        [(96, 2048, 128, 2048, "nn")],
        [(64, 512, 512, 512, "nt"), (96, 2048, 128, 2048, "nn"), (3, 4096, 4096, 4096, "tn")],
    ),
)
def test_chosen_plans_are_assembled(count: int, m: int, n: int, k: int, layout: str):
    turns: dict[str, Any] = {"transpose_a": layout[0] == "t", "transpose_b": layout[1] == "t"}
    gemm = Gemm("bf16", m=m, n=n, k=k, batched=True, **turns)
    request = PlanRequest(gemm, "sm_90a", "NVIDIA H200", 132, batches=count)
    (kernel,) = build.try_plans(request, None, lambda _, kernel: kernel)
    assert "wgmma" in kernel.ptx
    assert_clean(assemble(kernel.ptx, "sm_90a"))
