"""Tensors whose elements are apart in memory: strided and expanded vectors, every other column."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest

import codegen
import coordgraph as cg
from coordgraph import epilogue as ep
from passes import DataParallel, StreamK
from tests.support.ptxas import assemble, assert_clean
from tests.support.rotary import rotary

RNG = np.random.default_rng(35)
APART: dict[str, Any] = {"leading_dimensions": ("D", "right"), "element_steps": ("D", "right")}


def draw(*shape: int) -> Any:
    return RNG.normal(size=shape).astype("f4")


@ep.epilogue(bias="n", scale="m")
def scaled(acc: Any, bias: Any, scale: Any) -> Any:
    return acc * scale + bias


@ep.epilogue(bias="ln")
def biased(acc: Any, bias: Any) -> Any:
    return acc + bias


@pytest.mark.parametrize("rows", [40, 1])
def test_rotary_results_are_stored_as_adjacent_pairs(rows: int):
    x, weight, cos, sin = draw(rows, 24), draw(24, 16), draw(rows, 8), draw(rows, 8)
    pairs = np.full((rows, 16), np.nan, "f4")
    left, right = pairs[:, ::2], pairs[:, 1::2]
    given: dict[str, Any] = {"cos": cos, "sin": sin, "out": left, "right": right}
    codegen.matmul(x, weight, epilogue=rotary, parts="interleaved", **given)
    a, b = (x @ weight)[:, ::2], (x @ weight)[:, 1::2]
    assert np.allclose(left, a * cos - b * sin, atol=1e-4)
    assert np.allclose(right, b * cos + a * sin, atol=1e-4)


def test_vectors_that_are_strided_or_expanded():
    x, weight = draw(40, 24), draw(24, 30)
    for bias in (draw(60)[::2], np.broadcast_to(draw(1), (30,)), draw(30, 5)[:, 3]):
        for scale in (draw(40, 3)[:, 1], np.broadcast_to(draw(1), (40,))):
            d = codegen.matmul(x, weight, epilogue=scaled, bias=bias, scale=scale)
            assert np.allclose(d, x @ weight * scale[:, None] + bias, atol=1e-4)


def test_one_vector_for_each_product_with_gaps_between_them():
    wide = draw(3, 60)
    vectors = (wide[:, :30], wide[:, ::2], np.broadcast_to(wide[:1, :30], (3, 30)), wide[:, 30:])
    x, weight = draw(3, 40, 24), draw(3, 24, 30)
    offsets = np.array([0, 10, 10, 40], "i4")
    for bias in vectors:
        d = codegen.matmul(x, weight, epilogue=biased, bias=bias)
        assert np.allclose(d, x @ weight + bias[:, None], atol=1e-4)
        d = codegen.grouped_matmul(x[0], weight, offsets, epilogue=biased, bias=bias)
        for group, (begin, end) in enumerate(pairwise(offsets)):
            exact = x[0, begin:end] @ weight[group] + bias[group]
            assert np.allclose(d[begin:end], exact, atol=1e-4)


def test_matrices_without_adjacent_elements():
    """C and D may be every other column of wider arrays; the columns between keep their values."""
    x, weight, c = draw(40, 24), draw(24, 30), draw(40, 60)
    out = np.zeros((40, 60), "f4")
    codegen.matmul(x, weight, c[:, ::2], out=out[:, 1::2], beta=1.0)
    assert np.allclose(out[:, 1::2], x @ weight + c[:, ::2], atol=1e-4)
    assert not out[:, ::2].any()


@pytest.mark.parametrize("target", ["interpreter", "cpu"])
def test_kernels_and_checks(target: str):
    gemm = cg.Gemm("f32", epilogue=rotary, parts="interleaved", **APART)
    graph = StreamK(workgroups=3)(gemm.graph(tile=(16, 32, 16)))
    assert cg.parse(graph.text()) == graph
    assert "strides [ld_d, step_d]" in graph.text()
    assert not graph.check().refuted
    x, weight, cos, sin = draw(20, 24), draw(24, 36), draw(20, 18), draw(20, 18)
    pairs = np.zeros((20, 36), "f4")
    kernel = codegen.compile(graph, target)
    kernel(x, weight, cos=cos, sin=sin, out=pairs[:, ::2], right=pairs[:, 1::2])
    a, b = (x @ weight)[:, ::2], (x @ weight)[:, 1::2]
    assert np.allclose(pairs[:, ::2], a * cos - b * sin, atol=1e-4)
    assert np.allclose(pairs[:, 1::2], b * cos + a * sin, atol=1e-4)


@pytest.mark.parametrize("architecture", ["sm_80", "sm_90a"])
@pytest.mark.parametrize(
    ("epilogue", "fields"),
    [(rotary, {"parts": "interleaved", **APART}), (scaled, {"element_steps": ("bias", "scale")})],
    ids=["rotary", "vectors"],
)
def test_gpu_kernels_move_single_elements(architecture: str, epilogue: Any, fields: Any):
    gemm = cg.Gemm("bf16", epilogue=epilogue, transpose_b=True, **fields)
    kernel = codegen.compile(DataParallel()(gemm.graph(tile=(128, 128, 64))), architecture)
    assert_clean(assemble(kernel.ptx, architecture))
    assert "wgmma" in kernel.ptx or architecture == "sm_80"
    assert kernel.lowered is not None
    assert not kernel.lowered.check(checks=["vectors"]).refuted


def test_refusals():
    with pytest.raises(cg.VerifyError, match="add 'D' to leading_dimensions"):
        cg.Gemm(element_steps=("D",))
    with pytest.raises(cg.VerifyError, match="element_steps has 'A', but only D, operands"):
        cg.Gemm(element_steps=("A",))
    x, weight = draw(40, 24), draw(24, 30)
    with pytest.raises(cg.LaunchError, match="rows of out overlap"):
        codegen.matmul(x, weight, out=np.lib.stride_tricks.as_strided(draw(200), (40, 30), (8, 8)))
    with pytest.raises(cg.LaunchError, match="negative strides"):
        codegen.matmul(x, weight, epilogue=scaled, bias=draw(30)[::-1], scale=draw(40))
