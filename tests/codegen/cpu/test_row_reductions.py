"""Outputs of epilogues that reduce rows of D, such as row sums, on the CPU target.

A kernel reduces each row within a tile, and `codegen.matmul` combines the results of all tiles. The
tests also cover the checks of graphs with such outputs.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import codegen
from coordgraph import Gemm, KernelGraph, LaunchError, PassError, VerifyError, parse
from coordgraph import epilogue as ep
from coordgraph.interpreter.arguments import Array
from passes import Pipeline
from tests.support.sampling import covering, quick_cases


@ep.epilogue(
    bias=ep.operand("n", "f32"),
    squares=ep.output("m", reduce="sum"),
    largest=ep.output("m", "f32", reduce="max"),
    total=ep.output("m", reduce="logsumexp"),
)
def statistics(acc: Any, bias: Any) -> Any:
    x = acc + bias
    return ep.relu(x), x * x, ep.abs(x), x * 0.125


@ep.epilogue(amax=ep.output("m", reduce="max"))
def with_amax(acc: Any) -> Any:
    return acc, ep.abs(acc)


M, N, K, TILE = 37, 41, 50, 16
RNG = np.random.default_rng(4)


def whole(*shape: int) -> Array:
    return RNG.integers(-2, 3, shape).astype(np.float32)


A, B, BIAS = whole(M, K), whole(K, N), whole(N)
X = (A @ B + BIAS).astype(np.float64)
SCHEDULES = (
    "data-parallel",
    "data-parallel{workgroups=3,persistent=true}",
    "stream-k{workgroups=5}",
    "stream-k{workgroups=5,reduction=scatter}",
    "stream-k{workgroups=5,reduction=atomic}",
    "split-k{splits=3,reduction=scatter}",
    "two-tile-stream-k{workgroups=4}",
)


def scheduled(schedule: str, function: ep.EpilogueFunction, **options: Any) -> KernelGraph:
    gemm = Gemm(**{"dtype": "f32", "epilogue": function, **options})
    return Pipeline.parse(schedule)(gemm.graph((TILE, TILE, TILE)))


def check_rows(x: Array, found: tuple[Array, ...]) -> None:
    squares, largest, total = found
    np.testing.assert_array_equal(squares, (x**2).sum(-1))
    np.testing.assert_array_equal(largest, np.abs(x).max(-1))
    np.testing.assert_allclose(total, np.log(np.exp(x / 8).sum(-1)), rtol=1e-5, atol=1e-5)


@quick_cases(1)
@pytest.mark.parametrize(("schedule", "target"), covering(2, SCHEDULES, ("cpu", "interpreter")))
def test_kernels_reduce_the_columns_of_each_tile(schedule: str, target: str):
    kernel = codegen.compile(scheduled(schedule, statistics), target)
    d, *rows = kernel(A, B, bias=BIAS)
    np.testing.assert_array_equal(d, np.maximum(X, 0))
    assert {array.shape for array in rows} == {(M, 3)}
    for part, first in enumerate(range(0, N, TILE)):
        one = tuple(array[:, part] for array in rows)
        check_rows(X[:, first : first + TILE], one)


def test_results_do_not_depend_on_what_is_in_the_array():
    kernel = codegen.compile(scheduled("stream-k{workgroups=5}", statistics), "cpu")
    squares = np.full((M, 3), np.nan, np.float32)
    assert kernel(A, B, bias=BIAS, squares=squares)[1] is squares
    np.testing.assert_array_equal(squares.sum(1), (X**2).sum(1))


def test_matmul_returns_an_element_for_each_row():
    d, *rows = codegen.matmul(A, B, epilogue=statistics, bias=BIAS)
    np.testing.assert_array_equal(d, np.maximum(X, 0))
    check_rows(X, tuple(rows))
    both = np.stack([A, -A])
    for b in (B, np.stack([B, B + 1])):
        _, amax = codegen.matmul(both, b, epilogue=with_amax)
        np.testing.assert_array_equal(amax, np.abs(both @ b).max(-1))


@ep.epilogue(
    amax=ep.output("", reduce="max"),
    largest=ep.output("m", reduce="max"),
    squares=ep.output("", reduce="sum"),
    total=ep.output("", reduce="logsumexp"),
)
def of_all(acc: Any) -> Any:
    return acc, ep.abs(acc), ep.abs(acc), acc * acc, acc * 0.125


@pytest.mark.slow
@given(
    shape=st.tuples(*[st.integers(1, 70)] * 3),
    batch=st.sampled_from([(), (3,)]),
    plan=st.sampled_from([None, "16x16x16 data-parallel", "16x16x16 stream-k{workgroups=5}"]),
    turned=st.booleans(),
)
@settings(max_examples=25, deadline=None)
def test_reductions_of_all_elements(
    shape: tuple[int, int, int], batch: tuple[int, ...], plan: str | None, turned: bool
):
    """Reductions over all rows, all columns and all products agree with those in float64."""
    m, n, k = shape
    rng = np.random.default_rng(sum(shape))
    a, b = (rng.integers(-2, 3, (*batch, *s)).astype("f4") for s in ((m, k), (k, n)))
    given_b = np.ascontiguousarray(b.swapaxes(-1, -2)).swapaxes(-1, -2) if turned else b
    d, amax, rows, squares, total = codegen.matmul(a, given_b, epilogue=of_all, plan=plan)
    exact = a.astype("f8") @ b
    np.testing.assert_array_equal(d, exact)
    assert amax.shape == squares.shape == total.shape == ()
    assert amax == np.abs(exact).max()
    np.testing.assert_array_equal(rows, np.abs(exact).max(-1))
    np.testing.assert_allclose(squares, (exact**2).sum(), rtol=1e-6)
    np.testing.assert_allclose(total, np.log(np.exp(exact / 8).sum()), rtol=1e-5, atol=1e-5)


@quick_cases(1)
@pytest.mark.parametrize(("schedule", "target"), covering(2, SCHEDULES, ("cpu", "interpreter")))
def test_kernels_store_the_same_for_all_elements(schedule: str, target: str):
    """Reductions of all elements and of rows store one result per row of D and column tile."""
    graph = scheduled(schedule, of_all)
    assert parse(graph.text()) == graph
    assert " -> amax: all max, largest: m max, " in ep.function_text(of_all)
    assert not graph.check().refuted
    _, amax, rows, _, _ = codegen.compile(graph, target)(A, B)
    np.testing.assert_array_equal(amax, rows)
    assert amax.max() == np.abs(A @ B).max()


@pytest.mark.parametrize(
    ("shape", "wanted"),
    [((3, 0, 2), (-np.inf, 0.0)), ((3, 4, 0), (0, 0)), ((0, 4, 2), (-np.inf, 0))],
)
def test_all_elements_of_empty_products(shape: tuple[int, int, int], wanted: tuple[float, float]):
    m, n, k = shape
    a, b = np.ones((m, k), np.float32), np.ones((k, n), np.float32)
    _, amax, _, squares, _ = codegen.matmul(a, b, epilogue=of_all)
    assert (amax, squares) == wanted


def test_groups():
    offsets, b = np.array([0, 10, 10, 30], np.int32), np.stack([B, B + 1, -B])
    _, amax = codegen.grouped_matmul(A, b, offsets, epilogue=with_amax)
    sums = np.concatenate([A[:10] @ b[0], A[10:30] @ b[2]])
    np.testing.assert_array_equal(amax[:30], np.abs(sums).max(-1))


@pytest.mark.parametrize(
    ("shape", "wanted"), [((3, 0, 2), [-np.inf] * 3), ((3, 4, 0), [0] * 3), ((0, 4, 2), [])]
)
def test_extents_of_zero(shape: tuple[int, int, int], wanted: list[float]):
    m, n, k = shape
    _, amax = codegen.matmul(
        np.ones((m, k), np.float32), np.ones((k, n), np.float32), epilogue=with_amax
    )
    assert amax.tolist() == wanted


def test_infinity_and_nan():
    a, b = np.eye(4, dtype=np.float32), np.zeros((4, 5), np.float32)
    bias = np.array([0, np.inf, 0, 0, 0], np.float32)
    _, squares, largest, total = codegen.matmul(a, b, epilogue=statistics, bias=bias)
    assert np.isposinf([squares, largest, total]).all()
    _, _, _, total = codegen.matmul(a, b, epilogue=statistics, bias=np.full(5, -np.inf, "f4"))
    assert np.isneginf(total).all()
    bias[2] = np.nan
    found = codegen.matmul(a, b, epilogue=statistics, bias=bias)[1:]
    assert np.isnan(found).all()


PROBLEMS: tuple[dict[str, Any], ...] = (
    {},
    {"batched": True, "dtype": "f64"},
    {"grouped": True},
    {"grouped": True, "group_axis": "k", "transpose_a": True},
)


@quick_cases(1)
@pytest.mark.parametrize("problem", PROBLEMS, ids=str)
def test_the_checks_hold(problem: dict[str, Any]):
    graph = scheduled("stream-k{workgroups=5,reduction=scatter}", with_amax, **problem)
    assert not graph.check().refuted
    assert parse(graph.text()) == graph


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("strides=((n + 15) // 16, 1)", "strides=(1, m)"),
        ("edge PassThrough amax.tile.1 -> B.tile.1", "edge PassThrough amax.tile.1 -> A.tile.0"),
    ],
)
def test_cover_finds_wrong_stores(before: str, after: str):
    text = scheduled("stream-k{workgroups=5}", with_amax).text()
    assert before in text
    report = parse(text.replace(before, after)).check()
    assert report["cover"].refuted


def test_pseudocode_shows_the_reduction():
    text = scheduled("data-parallel", with_amax).pseudocode()
    assert "// amax[m, tile_n] = max(abs(acc));\n" in text


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: ep.output("m"), VerifyError, "'m' and '' need a reduction"),
        (lambda: ep.output("mn", reduce="sum"), VerifyError, "'mn' allows none"),
        (lambda: ep.output("m", reduce="mean"), VerifyError, "choose one of sum, max, logsumexp"),
        (lambda: scheduled("data-parallel", with_amax, dtype="i8"), VerifyError, "reduces i32"),
        (
            lambda: Gemm(epilogue=ep.parse_function("f() -> x: m bf16 sum { acc, acc }")),
            VerifyError,
            "reduces f32 for the output 'x' of bf16",
        ),
        (
            lambda: scheduled("data-parallel", with_amax, grouped=True, group_axis="mnk"),
            VerifyError,
            "reduces rows, which group_axis=mnk does not",
        ),
        (lambda: ep.output(""), VerifyError, "axes '' and reduce='', but"),
        (
            lambda: scheduled("data-parallel", of_all, grouped=True),
            VerifyError,
            "amax' reduces all rows, which group_axis=m does not allow",
        ),
        (lambda: scheduled("heterogeneous-tiles", with_amax), PassError, "use hybrid-stream-k"),
        (
            lambda: codegen.matmul(A, B, epilogue=with_amax, amax=np.zeros(M, np.float32)),
            LaunchError,
            "amax is an output that reduces rows.*leave the argument out",
        ),
        (
            lambda: codegen.matmul(A, B, epilogue=with_amax, out=np.empty((N, M), np.float32).T),
            LaunchError,
            "out is column-major",
        ),
    ],
    ids=range(11),
)
def test_refusals(make: Any, error: type[Exception], message: str):
    with pytest.raises(error, match=message):
        make()


@ep.epilogue(amax=ep.output("m", reduce="max"), plain=ep.output())
def gated(gate: Any, up: Any) -> Any:
    x = ep.relu(gate) * up
    return x, ep.abs(x), gate


def test_an_epilogue_of_two_sums_has_outputs_too():
    graph = scheduled("stream-k{workgroups=5}", gated)
    assert not graph.check().refuted
    b = whole(K, 2 * N)
    d, amax, plain = codegen.compile(graph, "cpu")(A, b)
    gate, up = (A @ b)[:, :N], (A @ b)[:, N:]
    np.testing.assert_array_equal(d, np.maximum(gate, 0) * up)
    np.testing.assert_array_equal(plain, gate)
    np.testing.assert_array_equal(amax.max(1), np.abs(d).max(1))
