"""Outputs besides D on the CPU and in the interpreter: calls of kernels, matmul, and refusals."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import codegen
from coordgraph import Gemm, LaunchError
from coordgraph import epilogue as ep
from coordgraph.interpreter.arguments import Array
from passes import Pipeline
from tests.support.outputs import FUNCTIONS, expected, plain_and_relu, relu_residual
from tests.support.sampling import covering, quick_cases

SCHEDULES = (
    "data-parallel",
    "data-parallel{persistent=true,workgroups=3}",
    "stream-k{workgroups=5}",
    "stream-k{workgroups=5,owner=last,reduction=turnstile}",
    "stream-k{workgroups=5,reduction=scatter}",
    "stream-k{workgroups=5,reduction=atomic}",
    "split-k{splits=3}",
    "two-tile-stream-k{workgroups=4,reduction=tree}",
    "heterogeneous-tiles{workgroups=3}",
)
M, N, K = 37, 41, 50
RNG = np.random.default_rng(2)


def whole(*shape: int) -> Array:
    """A random array of small whole numbers, whose sums of products are exact in f32 and bf16."""
    return RNG.integers(-2, 3, shape).astype(np.float32)


A, B, BIAS, RESIDUAL = whole(M, K), whole(K, N), whole(N), whole(M, N)


def check(
    found: tuple[Any, ...], function: ep.EpilogueFunction, operands: Any, sums: Array = A @ B
) -> None:
    assert type(found) is tuple
    wanted = expected(function, sums, operands)
    for array, exact in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(np.asarray(array, np.float64), exact)


def operands(function: ep.EpilogueFunction) -> dict[str, Any]:
    return {"bias": BIAS, "residual": RESIDUAL} if function is relu_residual else {}


@quick_cases(1)
@pytest.mark.parametrize(("schedule", "target"), covering(2, SCHEDULES, ("cpu", "interpreter")))
def test_every_schedule_stores_every_output(schedule: str, target: str):
    graph = Pipeline.parse(schedule)(Gemm("f32", epilogue=relu_residual).graph((16, 16, 16)))
    kernel = codegen.compile(graph, target)
    every: tuple[dict[str, Any], ...] = ({"bias": BIAS}, {"bias": BIAS, "residual": RESIDUAL})
    for given in every:
        check(kernel(A, B, **given), relu_residual, given)
        out, pre = (np.full((M, N), np.nan, np.float32) for _ in range(2))
        found = kernel(A, B, out=out, pre=pre, **given)
        assert found[0] is out
        assert found[1] is pre
        check(found, relu_residual, given)


def test_the_cpu_checks_the_indices_of_outputs():
    graph = Pipeline.parse("stream-k{workgroups=5}")(Gemm("f32", epilogue=plain_and_relu).graph())
    check(codegen.compile(graph, "cpu", debug=True)(A, B), plain_and_relu, {})


@quick_cases(1)
@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f.name)
def test_matmul_returns_every_output(function: ep.EpilogueFunction):
    given = operands(function)
    for a in (A, np.asfortranarray(A)):
        check(codegen.matmul(a, B, epilogue=function, **given), function, given)


def by_columns(*shape: int) -> Array:
    return np.full(shape[::-1], np.nan, np.float32).T


def by_rows(*shape: int) -> Array:
    return np.full(shape, np.nan, np.float32)


def gapped(*shape: int) -> Array:
    return np.full((shape[0], shape[1] + 19), np.nan, np.float32)[:, : shape[1]]


LAYOUTS = (by_rows, by_columns, gapped)


@pytest.mark.parametrize(("of_out", "of_pre"), covering(2, (None, *LAYOUTS), (None, *LAYOUTS)))
def test_matmul_writes_outputs_of_every_layout(of_out: Any, of_pre: Any):
    given = operands(relu_residual)
    arrays = {
        name: make(M, N) for name, make in (("out", of_out), ("pre", of_pre)) if make is not None
    }
    for _ in range(2):  # the second call uses the cached launch
        for array in arrays.values():
            array[...] = np.nan
        found = codegen.matmul(A, B, **arrays, epilogue=relu_residual, **given)
        check(found, relu_residual, given)
        for place, name in enumerate(("out", "pre")):
            assert arrays.get(name, found[place]) is found[place]
    for array in arrays.values():
        gaps = array.base
        assert gaps is None or gaps.shape[-1] <= M or np.isnan(gaps[:, N:]).all()


def test_an_array_is_not_taken_for_another_of_the_same_layout():
    """Calls with the output `pre` and calls with the operand `residual` share no cached launch.

    The two arrays have the same layout.
    """
    pre = by_rows(M, N)
    every: tuple[dict[str, Any], ...] = (
        {"residual": RESIDUAL},
        {"pre": pre},
        {"residual": RESIDUAL},
    )
    for given in every:
        found = codegen.matmul(A, B, epilogue=relu_residual, bias=BIAS, **given)
        check(found, relu_residual, {"bias": BIAS, **given})


@pytest.mark.slow
def test_batches_have_an_output_for_each_product():
    a, b = np.stack([A, -A]), np.stack([B, B + 1])
    check(codegen.matmul(a, b, epilogue=plain_and_relu), plain_and_relu, {}, a @ b)
    # One matrix B for all products: the batch is computed as one product of more rows.
    check(codegen.matmul(a, B, epilogue=plain_and_relu), plain_and_relu, {}, a @ B)
    pre = np.empty((2, M, N), np.float32)
    found = codegen.matmul(a, B, epilogue=relu_residual, bias=BIAS, pre=pre)
    assert found[1] is pre
    check(found, relu_residual, {"bias": BIAS}, a @ B)


def test_groups_have_rows_of_every_output():
    offsets, b = np.array([3, 10, 10, 30], np.int32), np.stack([B, B + 1, -B])
    plain = by_rows(M, N)
    d, found = codegen.grouped_matmul(A, b, offsets, epilogue=plain_and_relu, plain=plain)
    assert found is plain
    sums = np.concatenate([A[3:10] @ b[0], A[10:30] @ b[2]])
    check((d[3:30], plain[3:30]), plain_and_relu, {}, sums)
    assert np.isnan(plain[:3]).all()
    assert np.isnan(plain[30:]).all()


def test_groups_along_k_have_a_matrix_of_every_output():
    offsets = np.array([0, 7, 7, 50], np.int32)
    d, plain = codegen.grouped_matmul(A, B, offsets, group_axis="k", epilogue=plain_and_relu)
    sums = np.stack([A[:, :7] @ B[:7], np.zeros((M, N)), A[:, 7:] @ B[7:]])
    check((d, plain), plain_and_relu, {}, sums)


@pytest.mark.slow
def test_a_list_of_products_has_a_matrix_of_every_output():
    gemm = Gemm("f32", epilogue=plain_and_relu, grouped=True, group_axis="mnk")
    graph = Pipeline.parse("stream-k{workgroups=5}")(gemm.graph((16, 16, 16)))
    pairs = [(whole(9, 5), whole(5, 8)), (whole(20, 30), whole(30, 24))]
    offsets = np.array([[0, 9, 29], [0, 8, 32], [0, 5, 35]], np.int32)
    a, b = (np.zeros(4000, np.float32) for _ in range(2))
    place = {"a": 0, "b": 0}
    starts: list[int] = []
    end = 0
    for one, two in pairs:
        for name, array, matrix in (("a", a, one), ("b", b, two)):
            pitch = -(-matrix.shape[1] // 8) * 8
            rows = array[place[name] : place[name] + matrix.shape[0] * pitch].reshape(-1, pitch)
            rows[:, : matrix.shape[1]] = matrix
            place[name] += matrix.shape[0] * pitch
        starts.append(end)
        end += one.shape[0] * two.shape[1]
    out, plain = (np.zeros(end, np.float32) for _ in range(2))
    for target in ("cpu", "interpreter"):
        found = codegen.compile(graph, target)(a, b, out=out, plain=plain, offsets=offsets)
        assert found[1] is plain
        for start, (one, two) in zip(starts, pairs, strict=True):
            part = slice(start, start + one.shape[0] * two.shape[1])
            both = tuple(array[part].reshape(one.shape[0], -1) for array in (out, plain))
            check(both, plain_and_relu, {}, one @ two)


@quick_cases(1)
@pytest.mark.parametrize(
    ("shape", "target"), covering(2, [(0, 4, 3), (3, 0, 4), (3, 4, 0)], ["cpu", "interpreter"])
)
def test_extents_of_zero(target: str, shape: tuple[int, int, int]):
    m, n, k = shape
    graph = Pipeline.parse("data-parallel")(Gemm("f32", epilogue=plain_and_relu).graph())
    a, b = np.ones((m, k), np.float32), np.ones((k, n), np.float32)
    found = codegen.compile(graph, target)(a, b)
    check(found, plain_and_relu, {}, np.zeros((m, n)))
    plain = by_rows(m, n)
    assert codegen.matmul(a, b, epilogue=plain_and_relu, plain=plain)[1] is plain
    assert not plain.any()


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"plain": by_rows(3, 4)}, r"plain has the shape \(3, 4\), but \(m, n\) = \(37, 41\)"),
        ({"plain": np.zeros((M, N))}, "plain holds f64, but the kernel takes f32; convert it"),
        ({"plain": "text"}, "plain is a str, which is no array"),
        ({"pre": by_rows(M, N)}, "pre is no operand of the epilogue"),
        ({"plain": A[:, :1]}, "plain has the shape"),
        ({"plain": np.broadcast_to(np.float32(0), (M, N))}, "'plain' is a read-only array"),
    ],
    ids=lambda x: str(x)[:20],
)
def test_wrong_arrays_are_refused(arrays: Any, message: str):
    with pytest.raises(LaunchError, match=message):
        codegen.matmul(A, B, epilogue=plain_and_relu, **arrays)


def test_outputs_that_share_memory_are_refused():
    graph = Pipeline.parse("data-parallel")(Gemm("f32", epilogue=relu_residual).graph())
    kernel = codegen.compile(graph, "cpu")
    both = by_rows(M, N)
    with pytest.raises(LaunchError, match="'out' overlaps pre"):
        kernel(A, B, out=both, pre=both, bias=BIAS)
    with pytest.raises(LaunchError, match="'pre' overlaps residual"):
        kernel(A, B, pre=both, residual=both, bias=BIAS)
    assert kernel(A, B, out=both, residual=both, bias=BIAS)[0] is both


@ep.epilogue(row=ep.operand("m", "f32"), bias=ep.operand("n", "f32"), other=ep.output(dtype="u8"))
def quantized(acc: Any, row: Any, bias: Any) -> Any:
    x = acc * row + bias
    return ep.quantize(x), ep.quantize(x, to="u8")


@ep.epilogue(row=ep.operand("m", "f32"), bias=ep.operand("n", "f32"), other=ep.output(dtype="u8"))
def whole_sums(acc: Any, row: Any, bias: Any) -> Any:
    x = ep.cast(acc, to="f32") * row + bias
    return ep.quantize(x), ep.quantize(x, to="u8")


@quick_cases(1)
@pytest.mark.parametrize("kind", ["f32", "f64", "i8"])
def test_quantized_outputs_are_those_of_the_interpreter(kind: str):
    """Quantized outputs on the CPU equal those of the interpreter, for sums of 32 and 64 bits.

    The inputs give ties in rounding, values that saturate, infinities and NaN.
    """
    function = whole_sums if kind == "i8" else quantized
    graph = Pipeline.parse("stream-k{workgroups=5,reduction=scatter}")(
        Gemm(kind, epilogue=function).graph((16, 16, 16))
    )
    element = {"f32": np.float32, "f64": np.float64, "i8": np.int8}[kind]
    row = np.linspace(-30, 30, M, dtype=np.float32).round() / 2
    bias = RNG.integers(-99, 99, N).astype(np.float32) / 2
    bias[:4] = np.nan, np.inf, -np.inf, 1e30
    a, b = A.astype(element), B.astype(element)
    d, other = codegen.compile(graph, "cpu")(a, b, row=row, bias=bias)
    wanted = codegen.compile(graph, "interpreter")(a, b, row=row, bias=bias)
    assert (d.dtype, other.dtype) == (np.int8, np.uint8)
    assert np.array_equal(d, wanted[0])
    assert np.array_equal(other, wanted[1])
    assert {-128, 127} <= {*d.ravel().tolist()}
    assert len(np.unique(d)) > 50
    assert codegen.matmul(a, b, epilogue=function, row=row, bias=bias)[0].dtype == np.int8
