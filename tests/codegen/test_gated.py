"""Epilogues of several sums: on the interpreter and the CPU, and in calls of `matmul`."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest

import codegen
import coordgraph as cg
from coordgraph import epilogue as ep
from passes import DataParallel, SplitK, StreamK
from passes.simulation import simulate
from tests.support.gated import geglu, geglu_of, swiglu, swiglu_of
from tests.support.sampling import quick_cases

PARTS = ("stacked", "interleaved", "interleaved:3", "interleaved:8", "separate")
SCHEDULES = (
    DataParallel(),
    SplitK(3),
    StreamK(workgroups=5),
    StreamK(workgroups=4, reduction="scatter"),
    StreamK(workgroups=5, reduction="atomic"),
    StreamK(workgroups=5, reduction="turnstile"),
    StreamK(workgroups=5, reduction="tree"),
)


def matrices(m: int, n: int, k: int, **batch: int) -> tuple[Any, Any]:
    rng = np.random.default_rng(m + n + k)
    shape = tuple(batch.values())
    return (rng.normal(size=(*shape, *s)).astype("f4") for s in ((m, k), (k, 2 * n)))  # type: ignore[return-value]


@quick_cases(1)
@pytest.mark.parametrize("parts", PARTS)
@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
@pytest.mark.parametrize("target", ["interpreter", "cpu"])
def test_schedules_and_reductions(target: str, schedule: Any, parts: str):
    gemm = cg.Gemm("f32", epilogue=geglu, parts=parts, transpose_b=parts == "stacked")
    graph = schedule(gemm.graph(tile=(16, 32, 16)))
    a, b = matrices(m := 40, n := 24 if ":8" in parts else 27, 70)
    bias, residual = np.linspace(-1, 1, n, dtype="f4"), np.ones((m, n), "f4")
    given = np.ascontiguousarray(b.T) if gemm.transpose_b else b
    if parts == "separate":
        given = np.stack(np.split(b, 2, axis=1))
    kernel = codegen.compile(graph, target)
    d = kernel(a, given, bias=bias, scale=0.5, residual=residual)
    assert d.shape == (m, n)
    assert np.allclose(d, geglu_of(a @ b, parts, bias, 0.5, residual), atol=1e-3)
    d = kernel(a, given, bias=bias, scale=0.5)
    assert np.allclose(d, geglu_of(a @ b, parts, bias, 0.5, np.zeros(1)), atol=1e-3)


@quick_cases(2)
@pytest.mark.parametrize("parts", PARTS)
@pytest.mark.parametrize("schedule", [StreamK(workgroups=5), SplitK(2)], ids=str)
def test_checks_and_text(schedule: Any, parts: str):
    graph = schedule(cg.Gemm("f32", epilogue=swiglu, parts=parts).graph(tile=(16, 32, 16)))
    assert cg.parse(graph.text()) == graph
    if parts in ("stacked", "interleaved"):
        assert graph.tensor("B").shape[1] == 2 * graph.tensor("D").shape[1]
    report = graph.check()
    assert not report.refuted, str(report)
    assert "// acc = silu(acc[0]) * acc[1];" in graph.pseudocode()


def test_check_finds_parts_of_the_other_order():
    """The check `cover` refutes a graph that reads B's parts as interleaved if they are stacked."""
    graph = DataParallel()(cg.Gemm("f32", epilogue=swiglu).graph(tile=(16, 32, 16)))
    text = graph.text()
    wrong = text.replace("edge Tile B.1 -> part, B.column", "edge Tile B.1 -> B.column, part")
    assert wrong != text
    report = cg.parse(wrong).check()
    assert any(verdict.name == "cover" for verdict in report.refuted)


@quick_cases(1)
@pytest.mark.parametrize("size", [(40, 50, 24), (1, 1, 7), (130, 70, 64), (16, 8, 0), (0, 4, 3)])
@pytest.mark.parametrize("parts", PARTS[:4])
def test_matmul_of_all_layouts(parts: str, size: tuple[int, int, int]):
    m, n, k = size
    n *= int(parts.partition(":")[2] or 1)
    a, b = matrices(m, n, k)
    wide = np.zeros((k, 2 * n + 6), "f4")
    wide[:, : 2 * n] = b
    expected = swiglu_of(a @ b, parts)
    for given in (b, np.asfortranarray(b), wide[:, : 2 * n]):
        d = codegen.matmul(a, given, epilogue=swiglu, parts=parts)
        assert np.allclose(d, expected, atol=1e-3)
    turned = np.ascontiguousarray(b.T)
    d = codegen.matmul(a, turned, transpose_b=True, epilogue=swiglu, parts=parts)
    assert np.allclose(d, expected, atol=1e-3)


def test_blocks_of_interleaved_parts_are_whole():
    """A call and a problem of fixed n refuse a last block with fewer columns."""
    fixed = refusal(lambda: cg.Gemm("f32", n=27, epilogue=swiglu, parts="interleaved:8"))
    assert "n = 27 is no multiple of 8" in fixed
    a, b = matrices(40, 18, 24)
    call = refusal(lambda: codegen.matmul(a, b, epilogue=swiglu, parts="interleaved:8"))
    assert "pass a matrix whose number of columns is a multiple of 16" in call
    for wrong in ("interleaved:0", "interleaved:x", "interleaved:", "stacked:8", "interleaved:-1"):
        assert "as in interleaved:16" in refusal(lambda w=wrong: cg.Gemm(epilogue=swiglu, parts=w))
    assert cg.Gemm(epilogue=swiglu, parts="interleaved:1").parts == "interleaved"


def test_batches_and_groups():
    a, b = matrices(20, 18, 24, batches=3)
    d = codegen.matmul(a, b, epilogue=swiglu)
    assert np.allclose(d, swiglu_of(a @ b, "stacked"), atol=1e-3)
    d = codegen.matmul(a, b[0], epilogue=swiglu)
    assert np.allclose(d, swiglu_of(a @ b[0], "stacked"), atol=1e-3)
    rows, offsets = a.reshape(60, 24), np.array([0, 10, 10, 60], "i4")
    d = codegen.grouped_matmul(rows, b, offsets, epilogue=swiglu, parts="interleaved")
    for group, (begin, end) in enumerate(pairwise(offsets)):
        expected = swiglu_of(rows[begin:end] @ b[group], "interleaved")
        assert np.allclose(d[begin:end], expected, atol=1e-3)
    depths = np.array([0, 10, 10, 24], "i4")
    d = codegen.grouped_matmul(a[0], b[0], depths, group_axis="k", epilogue=swiglu)
    for group, (begin, end) in enumerate(pairwise(depths)):
        expected = swiglu_of(a[0][:, begin:end] @ b[0][begin:end], "stacked")
        assert np.allclose(d[group], expected, atol=1e-3)


def test_four_sums_on_the_cpu():
    @ep.epilogue()
    def mixed(w: Any, x: Any, y: Any, z: Any) -> Any:
        return w * x + y * z

    rng = np.random.default_rng(3)
    a, b = rng.normal(size=(20, 12)).astype("f4"), rng.normal(size=(12, 44)).astype("f4")
    w, x, y, z = np.split(a @ b, 4, axis=1)
    graph = StreamK(workgroups=3)(cg.Gemm("f32", epilogue=mixed).graph(tile=(16, 24, 8)))
    for target in ("interpreter", "cpu"):
        d = codegen.compile(graph, target)(a, b)
        assert np.allclose(d, w * x + y * z, atol=1e-4)
    assert np.allclose(codegen.matmul(a, b, epilogue=mixed), w * x + y * z, atol=1e-4)
    half = StreamK(workgroups=3)(cg.Gemm("f16", epilogue=mixed).graph(tile=(64, 64, 32)))
    assert "has 4 sums, and GPU kernels have at most 2" in refusal(
        lambda: codegen.compile(half, "sm_80")
    )
    three = ep.epilogue()(lambda x, y, z: x + y + z)
    assert "has 3 sums, but it can have 1, 2 or 4" in refusal(lambda: cg.Gemm(epilogue=three))


def test_integers():
    @ep.epilogue()
    def product(gate: Any, up: Any) -> Any:
        return gate * up

    rng = np.random.default_rng(1)
    a, b = rng.integers(-9, 9, (33, 40), "i1"), rng.integers(-9, 9, (40, 24), "i1")
    gate, up = np.split(a.astype("i4") @ b.astype("i4"), 2, axis=1)
    assert (codegen.matmul(a, b, epilogue=product) == gate * up).all()


def refusal(call: Any) -> str:
    with pytest.raises(cg.CoordGraphError) as error:
        call()
    return str(error.value)


def test_refusals():
    a, b = matrices(40, 18, 24)
    odd = refusal(lambda: codegen.matmul(a, b[:, :35], epilogue=swiglu))
    assert "b has 35 columns, but the epilogue has 2 sums" in odd
    one = refusal(lambda: codegen.matmul(a, b, parts="interleaved"))
    assert "parts=interleaved has no effect, because the epilogue alpha_beta has one sum" in one
    assert "must be stacked, interleaved, separate" in refusal(
        lambda: codegen.matmul(a, b, epilogue=swiglu, parts="halves")
    )
    turned = np.zeros((18, 40), "f4").T
    column_major = refusal(lambda: codegen.matmul(a, b, epilogue=swiglu, out=turned))
    assert "pass a row-major out" in column_major
    wide = np.zeros((40, 36), "f4")
    assert "40x18 is needed" in refusal(lambda: codegen.matmul(a, b, epilogue=swiglu, out=wide))
    tile = refusal(lambda: cg.Gemm("f32", epilogue=swiglu).graph(tile=(16, 17, 16)))
    assert "choose a multiple of 2" in tile
    lists = refusal(lambda: cg.Gemm("f32", epilogue=swiglu, grouped=True, group_axis="mnk"))
    assert "group_axis=mnk does not allow" in lists


def test_simulation_counts_columns_of_b():
    """The simulated time of a kernel with two sums is that of a product with twice the columns.

    Only storing D takes less time, because D has half as many columns.
    """
    both = DataParallel()(cg.Gemm("bf16", epilogue=swiglu).graph(tile=(128, 128, 64)))
    one = DataParallel()(cg.Gemm("bf16").graph(tile=(128, 128, 64)))
    gated, plain = (
        simulate(graph, {"m": 512, "n": n, "k": 1024}, "NVIDIA H200")
        for graph, n in ((both, 512), (one, 1024))
    )
    assert gated.flops == plain.flops
    assert 2 * gated.stored_bytes == plain.stored_bytes
    assert 0.8 * plain.makespan < gated.makespan < plain.makespan
