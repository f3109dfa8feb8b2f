"""Products of 8-bit floats, and results rounded to 8-bit floats, in the interpreter and on CPUs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import codegen
import coordgraph as cg
from coordgraph import epilogue as ep
from coordgraph.elements import dtype as dtype_of
from coordgraph.interpreter.arguments import numpy_dtype
from passes import DataParallel, StreamK
from tests.support.sampling import quick_cases

KINDS = ("e4m3", "e5m2")
both = pytest.mark.parametrize("kind", KINDS)
targets = pytest.mark.parametrize("target", ["interpreter", "cpu"])


def small(kind: str, *shape: int, seed: int = 0) -> Any:
    """Numbers from N(0, 1), rounded to an 8-bit float type."""
    random = np.random.default_rng((seed, *shape))
    return random.standard_normal(shape, np.float32).astype(numpy_dtype(kind))


def every(kind: str) -> Any:
    """All 256 numbers of an 8-bit float type, NaN and infinities included, as a 16 x 16 matrix."""
    return np.arange(256, dtype=np.uint8).reshape(16, 16).view(numpy_dtype(kind))


@both
@targets
@pytest.mark.parametrize("out", ["f32", "bf16", "f16"])
def test_products_are_those_of_f64(target: str, kind: str, out: str):
    a, b = small(kind, 19, 70), small(kind, 23, 70, seed=1)
    gemm = cg.Gemm(kind, out_dtype=out, transpose_b=True)
    found = codegen.compile(StreamK(workgroups=4)(gemm.graph((16, 16, 16))), target)(a, b)
    assert found.dtype == numpy_dtype(out)
    want = a.astype(np.float64) @ b.astype(np.float64).T
    rounding = dtype_of(out).roundoff
    assert np.allclose(found.astype(np.float64), want, rtol=2 * rounding, atol=1e-5)


@both
@targets
def test_every_number_is_converted_exactly(kind: str, target: str):
    """A product with the identity matrix reproduces every finite number of the type."""
    a, one = every(kind), np.eye(16, dtype=np.float32).astype(numpy_dtype(kind))
    a[~np.isfinite(a.astype(np.float32))] = 0
    kernel = codegen.compile(DataParallel()(cg.Gemm(kind).graph((16, 16, 16))), target)
    assert np.array_equal(kernel(a, one), a.astype(np.float32))


@both
def test_operands_of_epilogues_are_converted_exactly(kind: str):
    @ep.epilogue(x=ep.operand("mn", kind))
    def only(acc: Any, x: Any) -> Any:
        return x

    zero = np.zeros((16, 16), np.float32)
    graph = DataParallel()(cg.Gemm("f32", epilogue=only).graph((16, 16, 16)))
    found = codegen.compile(graph, "cpu")(zero, zero, x=every(kind))
    assert np.array_equal(found, every(kind).astype(np.float32), equal_nan=True)


@both
def test_the_cpu_rounds_as_the_interpreter(kind: str):
    """All 8-bit numbers, the numbers halfway between two, their neighbours, and random bits."""

    @ep.epilogue(x=ep.operand("mn", "f32"))
    def rounded(acc: Any, x: Any) -> Any:
        return ep.quantize(x, to=kind)

    known = every(kind).astype(np.float32).reshape(-1)
    known = np.unique(known[np.isfinite(known)])
    middle = (known[1:] + known[:-1]) / 2
    further = [np.nextafter(middle, np.float32(x)) for x in (-np.inf, np.inf)]
    odd = [np.inf, -np.inf, np.nan, -np.nan, 1e-45, -1e-45, -0.0, 464, 61440]
    bits = np.random.default_rng(0).integers(0, 1 << 32, 1 << 14, dtype=np.uint32)
    x = np.concatenate([known, middle, *further, np.array(odd, np.float32), bits.view(np.float32)])
    x = np.resize(x, (128, 128 + 16)).astype(np.float32)
    a, b = np.zeros((128, 8), np.float32), np.zeros((8, 144), np.float32)
    graph = DataParallel()(cg.Gemm("f32", epilogue=rounded).graph((16, 16, 8)))
    found = codegen.compile(graph, "cpu")(a, b, x=x)
    want = rounded.evaluate({"acc": np.zeros(1, np.float32), "x": x}, "f32", "f32")
    nan = np.isnan(want.astype(np.float32))
    assert np.array_equal(np.isnan(found.astype(np.float32)), nan)
    assert np.array_equal(found.view(np.uint8)[~nan], want.view(np.uint8)[~nan])


@quick_cases(4)
@both
@targets
@pytest.mark.parametrize("dtype", ["e4m3", "bf16", "i8"])
@pytest.mark.parametrize("axes", ["", "m", "n"])
def test_outputs_are_scaled_and_rounded(target: str, kind: str, dtype: str, axes: str):
    """D with a scale for all elements, for each row or column; `amax` is that before rounding."""

    @ep.epilogue(
        scale=ep.operand(axes, "f32", in_memory=not axes),
        amax=ep.output("", reduce="max"),
        other=ep.output(dtype=kind),
    )
    def scaled(acc: Any, scale: Any) -> Any:
        x = ep.cast(acc, to="f32") * scale
        return ep.quantize(x, to=kind), ep.abs(x), ep.quantize(-x, to=kind)

    m, n, k = 19, 23, 40
    random = np.random.default_rng(0)
    a, b = (random.integers(-3, 4, s).astype(numpy_dtype(dtype)) for s in ((m, k), (k, n)))
    shape = {"": 1, "m": m, "n": n}[axes]
    scale = 2.0 ** random.integers(-3, 8, shape).astype(np.float32)
    graph = StreamK(workgroups=3)(cg.Gemm(dtype, epilogue=scaled).graph((16, 16, 16)))
    kernel = codegen.compile(graph, target)
    found, amax, other = kernel(a, b, scale=scale if axes else scale.reshape(()))
    x = (a.astype(np.float64) @ b.astype(np.float64)) * (scale[:, None] if axes == "m" else scale)
    most = dtype_of(kind).most
    want = np.clip(x, -most, most).astype(np.float32).astype(numpy_dtype(kind))
    assert found.dtype == other.dtype == numpy_dtype(kind)
    assert np.array_equal(found, want)
    assert np.array_equal(other, -want)
    assert amax.max() == np.abs(x).max()


@both
def test_matmul_takes_small_floats(kind: str):
    a, b = small(kind, 2, 17, 50), small(kind, 2, 29, 50, seed=1)
    want = a.astype(np.float64) @ b.astype(np.float64).swapaxes(1, 2)
    found = codegen.matmul(a, b, transpose_b=True)
    assert found.dtype == np.float32
    assert np.allclose(found, want, atol=1e-4)
    offsets = np.array([0, 5, 17], np.int32)
    grouped = codegen.grouped_matmul(a[0], b, offsets, transpose_b=True)
    want = np.concatenate([a[0, :5].astype(float) @ b[0].astype(float).T, want[0, 5:]])
    want[5:] = a[0, 5:].astype(float) @ b[1].astype(float).T
    assert np.allclose(grouped, want, atol=1e-4)


def test_matmul_says_that_types_must_be_equal():
    with pytest.raises(cg.LaunchError, match="e5m2"):
        codegen.matmul(small("e4m3", 8, 8), small("e5m2", 8, 8))
