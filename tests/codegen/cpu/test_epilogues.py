"""Epilogues on the CPU and in the interpreter: results agree with float64.

Cases: every schedule and reduction, batches, and groups.

"""

from __future__ import annotations

import itertools
from functools import cache
from itertools import product
from typing import Any

import numpy as np
import pytest

import codegen
from coordgraph import Gemm, LaunchError
from coordgraph import epilogue as ep
from coordgraph.interpreter.arguments import Array, numpy_dtype
from passes import Pipeline
from tests.support.epilogues import EPILOGUES, Case, operands
from tests.support.sampling import chosen, cover, kinds, quick_cases

SCHEDULES = (
    "data-parallel",
    "data-parallel{persistent=true,workgroups=3}",
    "stream-k{workgroups=5}",
    "stream-k{workgroups=5,owner=last,reduction=turnstile}",
    "stream-k{workgroups=5,reduction=scatter}",
    "stream-k{workgroups=5,reduction=atomic}",
    "split-k{splits=3}",
    "two-tile-stream-k{workgroups=4}",
    "two-tile-stream-k{workgroups=4,reduction=tree}",
    "heterogeneous-tiles{workgroups=3}",
)
M, N, K = 20, 27, 40
every_case = pytest.mark.parametrize("case", EPILOGUES, ids=str)


def matrices(*shapes: tuple[int, ...], kind: Any = np.float32) -> list[Array]:
    rng = np.random.default_rng(1)
    return [(rng.normal(size=shape) / 3).astype(kind) for shape in shapes]


def check(made: Array, exact: Array, kind: str) -> None:
    bound = {"f32": 1e-5, "bf16": 2.0**-8, "f16": 2.0**-10}[kind]
    error = np.abs(made.astype(np.float64) - exact)
    assert (error <= bound * np.maximum(1, np.abs(exact))).all()


@quick_cases(2)
@pytest.mark.parametrize(
    ("schedule", "case"), cover(0, product(SCHEDULES, EPILOGUES), kinds), ids=str
)
def test_every_schedule_and_reduction(schedule: str, case: Case):
    """An epilogue runs once for each tile, on the complete sum, also with the reduction
    `atomic`.
    """
    graph = Pipeline.parse(schedule)(Gemm("f32", epilogue=case.function).graph((8, 8, 8)))
    a, b = matrices((M, K), (K, N))
    given, wide = operands(case, {"l": 1, "m": M, "n": N}, np.float32, apart=False)
    exact = case.meaning({"acc": (a.astype(float) @ b)[None], **wide})[0]
    for target in ("interpreter", "cpu"):
        check(codegen.compile(graph, target)(a, b, **given), exact, "f32")


@quick_cases(2)
@pytest.mark.parametrize(
    ("kind", "case"), cover(0, product(["bf16", "f16"], EPILOGUES), kinds), ids=str
)
def test_types(kind: str, case: Case):
    graph = Pipeline.parse("stream-k{workgroups=3}")(
        Gemm(kind, epilogue=case.function).graph((8, 16, 8))
    )
    a, b = matrices((M, K), (K, N), kind=numpy_dtype(kind))
    given, wide = operands(case, {"l": 1, "m": M, "n": N}, numpy_dtype(kind), apart=False)
    exact = case.meaning({"acc": (a.astype(float) @ b.astype(float))[None], **wide})[0]
    for target in ("interpreter", "cpu"):
        check(codegen.compile(graph, target)(a, b, **given), exact, kind)


@quick_cases(2)
@pytest.mark.parametrize(
    ("schedule", "case"),
    cover(
        0, product(["data-parallel{persistent=true}", "stream-k{workgroups=5}"], EPILOGUES), kinds
    ),
    ids=str,
)
def test_batches(schedule: str, case: Case):
    graph = Pipeline.parse(schedule)(
        Gemm("f32", batched=True, epilogue=case.function).graph((8, 8, 8))
    )
    a, b = matrices((3, M, K), (3, K, N))
    given, wide = operands(case, {"l": 3, "m": M, "n": N}, np.float32, apart=True)
    exact = case.meaning({"acc": a.astype(float) @ b, **wide})
    for target in ("interpreter", "cpu"):
        check(codegen.compile(graph, target)(a, b, **given), exact, "f32")


@quick_cases(1)
@pytest.mark.parametrize("case", chosen(EPILOGUES[::2], EPILOGUES), ids=str)
def test_groups_of_k(case: Case):
    gemm = Gemm("f32", grouped=True, group_axis="k", epilogue=case.function)
    graph = Pipeline.parse("stream-k{workgroups=5}")(gemm.graph((8, 8, 8)))
    offsets = np.array([0, 11, 11, 40], np.int32)
    a, b = matrices((M, K), (K, N))
    given, wide = operands(case, {"l": 3, "m": M, "n": N}, np.float32, apart=True)
    sums = [a[:, i:j].astype(float) @ b[i:j] for i, j in itertools.pairwise(offsets)]
    exact = case.meaning({"acc": np.array(sums), **wide})
    for target in ("interpreter", "cpu"):
        check(codegen.compile(graph, target)(a, b, offsets=offsets, **given), exact, "f32")


def test_groups_of_rows():
    """In a product grouped along m, the axes of an epilogue operand say which elements a group
    reads.

    A vector with axis n is shared by all groups. An operand with axes l and n has one vector for
    each group. Operands with axis m are divided into groups like the rows of D.
    """

    @ep.epilogue(bias="ln", common="n", row="m", c=ep.operand("mn", optional=True))
    def mixed(acc: Any, bias: Any, common: Any, row: Any, c: Any) -> Any:
        return (acc + bias) * row + common + c

    gemm = Gemm("f32", grouped=True, epilogue=mixed)
    graph = Pipeline.parse("stream-k{workgroups=5}")(gemm.graph((8, 8, 8)))
    offsets = np.array([0, 9, 9, 20], np.int32)
    a, b, bias, common, c = matrices((M, K), (3, K, N), (3, N), (N,), (M, N))
    row = np.linspace(1, 2, M).astype(np.float32)
    group = np.searchsorted(offsets, np.arange(M), side="right") - 1
    acc = np.array([a[i].astype(float) @ b[g] for i, g in enumerate(group)])
    exact = (acc + bias[group]) * row[:, None] + common + c
    for target in ("interpreter", "cpu"):
        kernel = codegen.compile(graph, target)
        given = {"bias": bias, "common": common, "row": row}
        check(kernel(a, b, c, offsets=offsets, **given), exact, "f32")
        check(kernel(a, b, offsets=offsets, **given), exact - c, "f32")


def test_no_depth_and_no_elements():
    bias, residual = matrices((N,), (M, N))
    for target in ("interpreter", "cpu"):
        kernel = whole_tiles(EPILOGUES[0], target)
        made = kernel(
            np.zeros((M, 0), np.float32), np.zeros((0, N), np.float32), bias=bias, residual=residual
        )
        exact = EPILOGUES[0].meaning(
            {"acc": np.zeros(()), "bias": bias.astype(float), "residual": residual}
        )
        check(made, exact, "f32")
        none = kernel(
            np.zeros((0, K), np.float32),
            np.zeros((K, N), np.float32),
            bias=bias,
            residual=residual[:0],
        )
        assert none.shape == (0, N)


def test_an_operand_may_be_the_output():
    kernel = whole_tiles(EPILOGUES[0], "cpu")
    a, b, bias, residual = matrices((M, K), (K, N), (N,), (M, N))
    wanted = kernel(a, b, bias=bias, residual=residual)
    made = kernel(a, b, out=residual, bias=bias, residual=residual)
    assert made is residual
    assert np.array_equal(made, wanted)
    with pytest.raises(LaunchError, match="overlaps bias"):
        kernel(a, b, out=residual, bias=residual.reshape(-1)[:N], residual=wanted)


@cache
def whole_tiles(case: Case, target: str) -> Any:
    """A data-parallel kernel with the epilogue of a case."""
    graph = Pipeline.parse("data-parallel")(Gemm("f32", epilogue=case.function).graph((8, 8, 8)))
    return codegen.compile(graph, target)


@pytest.mark.parametrize("target", ["interpreter", "cpu"])
@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"bias": None}, "bias is missing: the epilogue bias_gelu_residual needs an array"),
        ({"residal": 1}, "residal is no operand of the epilogue bias_gelu_residual; its operands"),
        (
            {"bias": np.ones(13, np.float32)},
            r"bias has the shape \(13,\), but \(n,\) = \(27,\) is needed",
        ),
        (
            {"bias": np.ones((1, N), np.float32)},
            r"bias has the shape \(1, 27\), but \(n,\) is needed",
        ),
        ({"bias": np.ones(N)}, "bias holds f64, but the kernel takes f32"),
        ({"bias": np.ones(2 * N, np.float32)[::2]}, "bias is not contiguous"),
        ({"beta": 1.0}, "beta is no operand of the epilogue"),
        ({"alpha": 2.0}, "alpha is no operand of the epilogue"),
        ({"c": np.ones((M, N), np.float32)}, "c is no operand of the epilogue"),
        ({"bias": [1.0]}, "bias is a list"),
    ],
)
def test_arguments_that_do_not_fit(target: str, changed: dict[str, Any], why: str):
    a, b, bias, residual = matrices((M, K), (K, N), (N,), (M, N))
    with pytest.raises(LaunchError, match=why):
        whole_tiles(EPILOGUES[0], target)(a, b, **{"bias": bias, "residual": residual, **changed})


@pytest.mark.parametrize("target", ["interpreter", "cpu"])
def test_a_number_is_a_number(target: str):
    graph = Pipeline.parse("data-parallel")(
        Gemm("f32", epilogue=EPILOGUES[1].function).graph((8, 8, 8))
    )
    a, b, row = matrices((M, K), (K, N), (M,))
    kernel = codegen.compile(graph, target)
    factor = np.ones((), np.float32)  # a scalar may have no axis, or one axis of length 1
    assert np.array_equal(
        kernel(a, b, row=row, scale=1, factor=factor),
        kernel(a, b, row=row, scale=1, factor=factor.reshape(1)),
    )
    with pytest.raises(LaunchError, match="scale = 'x' is not a number"):
        kernel(a, b, row=row, scale="x", factor=factor)


@quick_cases(1)
@every_case
def test_matmul(case: Case):
    """`matmul` with an epilogue is right in a first and a repeated call, for a matrix and a batch.

    Calls with an operand that the epilogue lacks are refused.
    """
    for shape in ((), (3,)):
        a, b = matrices((*shape, M, K), (*shape, K, N))
        sizes = {"l": 3 if shape else 1, "m": M, "n": N}
        given, wide = operands(case, sizes, np.float32, apart=bool(shape))
        exact = case.meaning({"acc": (a.astype(float) @ b).reshape(-1, M, N), **wide})
        for _ in range(2):
            made = codegen.matmul(a, b, epilogue=case.function, **given)
            check(made.reshape(exact.shape), exact, "f32")
    with pytest.raises(LaunchError, match="nothing is no operand of the epilogue"):
        codegen.matmul(a, b, epilogue=case.function, nothing=1, **given)
    with pytest.raises(LaunchError, match="bias is no operand of the epilogue alpha_beta"):
        codegen.matmul(a, b, bias=a)
    with pytest.raises(LaunchError, match="epilogue = 3 is not a traced epilogue"):
        codegen.matmul(a, b, epilogue=3)  # type: ignore[arg-type]


def test_sums_of_integers():
    """An epilogue may turn i32 sums into floats, which replace the sums in their registers."""

    @ep.epilogue(row=ep.operand("m", "f32"), bias=ep.operand("n", "f32"))
    def dequantized(acc: Any, row: Any, bias: Any) -> Any:
        return ep.relu(ep.cast(acc, to="f32") * row + bias)

    rng = np.random.default_rng(2)
    a, b = (rng.integers(-9, 9, size=s).astype(np.int8) for s in ((M, K), (K, N)))
    row, bias = matrices((M,), (N,))
    exact = np.maximum((a.astype(int) @ b) * row[:, None].astype(float) + bias, 0)
    for out in ("f32", "bf16"):
        gemm = Gemm("i8", out_dtype=out, epilogue=dequantized)
        graph = Pipeline.parse("stream-k{workgroups=5}")(gemm.graph((8, 8, 8)))
        for target in ("interpreter", "cpu"):
            check(codegen.compile(graph, target)(a, b, row=row, bias=bias), exact, out)


@pytest.mark.parametrize("target", ["interpreter", "cpu"])
def test_a_number_that_integers_cannot_be_scaled_by(target: str):
    scaled = ep.epilogue(scale="")(lambda acc, scale: acc * scale)
    graph = Pipeline.parse("data-parallel")(Gemm("i8", epilogue=scaled).graph((8, 8, 8)))
    kernel, a = codegen.compile(graph, target), np.ones((8, 8), np.int8)
    assert (kernel(a, a, scale=3) == 24).all()
    with pytest.raises(LaunchError, match=r'scale=ep.operand\("", "f32"\), and .* ep.cast\(acc'):
        kernel(a, a, scale=0.5)


@quick_cases(1)
@pytest.mark.parametrize("target", ["interpreter", "cpu"])
def test_an_optional_operand_that_is_left_out_counts_as_0(target: str):
    """An optional operand that a call leaves out counts as 0.

    Only C, the operand of the default epilogue, must be given if beta is not 0.
    """
    a, b, x = matrices((M, K), (K, N), (M, N))

    def kernel(name: str, scale: str) -> Any:
        function = ep.parse_function(
            f"f({scale}: scalar, {name}: mn optional) "
            f"{{ %0 = mul({name}, {scale}); %1 = add(acc, %0); %1 }}"
        )
        graph = Pipeline.parse("stream-k{workgroups=5}")(
            Gemm("f32", epilogue=function).graph((8, 8, 8))
        )
        return codegen.compile(graph, target)

    made = kernel("x", "s")
    check(made(a, b, s=2.0), a.astype(float) @ b, "f32")
    check(made(a, b, s=2.0, x=x), a.astype(float) @ b + 2 * x, "f32")
    with pytest.raises(LaunchError, match=r"beta = 2.0 needs c"):
        kernel("c", "beta")(a, b, beta=2.0)
