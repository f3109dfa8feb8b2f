"""`codegen.matmul` of vectors and of several batch axes gives the result of `numpy.matmul`."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import mutually_broadcastable_shapes

import codegen
from codegen.call.views import TensorView
from codegen.targets.nvptx import driver
from coordgraph import LaunchError
from tests.codegen.nvptx.fake_driver import ARCHITECTURE, CONTEXT, PROCESSORS, install

SHAPES = mutually_broadcastable_shapes(
    signature="(m?,k),(k,n?)->(m?,n?)", max_dims=4, min_side=0, max_side=5
)


def made(shape: tuple[int, ...], seed: int) -> Any:
    return np.random.default_rng(seed).integers(-4, 5, shape).astype(np.float32)


@given(SHAPES, st.booleans())
@settings(max_examples=60, deadline=None)
def test_results_are_those_of_numpy(shapes: Any, own_out: bool):
    a, b = (made(shape, seed) for seed, shape in enumerate(shapes.input_shapes))
    expected = np.matmul(a, b)
    out = np.full(expected.shape, np.nan, np.float32) if own_out else None
    found = codegen.matmul(a, b, out=out)
    assert out is None or found is out
    assert found.shape == expected.shape == shapes.result_shape
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(
    ("a", "b"), [((2, 3, 4, 5), (3, 6, 5)), ((2, 1, 4, 5), (1, 3, 6, 5)), ((5,), (2, 3, 6, 5))]
)
def test_transposes_and_addition(a: tuple[int, ...], b: tuple[int, ...]):
    left, right = made(a, 1), made(b, 2)
    product = np.matmul(left, right.swapaxes(-1, -2))
    added = made(product.shape, 3)
    found = codegen.matmul(left, right, added, alpha=2, beta=-1, transpose_b=True)
    np.testing.assert_array_equal(found, 2 * product - added)
    np.testing.assert_array_equal(codegen.matmul(left, right.swapaxes(-1, -2)), product)


def test_an_out_is_written_in_place():
    a, b = made((2, 3, 4, 5), 1), made((5, 6), 2)
    large = np.full((3, 3, 4, 6), np.nan, np.float32)
    codegen.matmul(a, b, out=large[1:])
    np.testing.assert_array_equal(large[1:], a @ b)
    assert np.isnan(large[0]).all()
    with pytest.raises(LaunchError, match="'out' cannot be reshaped to matrices in place: it has"):
        codegen.matmul(a, b, out=np.empty((2, 4, 3, 6), np.float32).swapaxes(1, 2))


@pytest.mark.parametrize(
    ("a", "b", "options", "message"),
    [
        ((2, 3, 4, 5), (3, 2, 5, 6), {}, "the batch extents 2 and 3 differ and neither is 1"),
        ((), (5, 6), {}, "a has shape a scalar; a matrix is needed"),
        ((5,), (5, 6), {"transpose_a": True}, "transpose_a = True, but a is a vector"),
        ((4, 5), (5,), {"transpose_b": True}, "transpose_b = True, but b is a vector"),
        ((4,), (5, 6), {}, "k would be 4 and 5"),
        ((5,), (5, 6), {"out": (2, 6)}, "out is 2x6, but 6 is needed"),
        ((5,), (5,), {"c": (1,), "beta": 1.0}, "c is 1, but a scalar is needed"),
    ],
)
def test_refusals(a: tuple[int, ...], b: tuple[int, ...], options: dict[str, Any], message: str):
    arrays = {name: made(x, 3) if isinstance(x, tuple) else x for name, x in options.items()}
    with pytest.raises(LaunchError) as found:
        codegen.matmul(made(a, 1), made(b, 2), **arrays)
    assert message in str(found.value)


def test_arrays_that_cannot_be_reshaped_are_refused_with_advice(monkeypatch: pytest.MonkeyPatch):
    """A product with several batch axes of views needs an array for D, whose views are written."""
    fake = install(monkeypatch)
    device = driver.Device(0, "NVIDIA H200", ARCHITECTURE, PROCESSORS, CONTEXT)
    monkeypatch.setattr(driver, "device", lambda ordinal: device)
    a = TensorView(0x100000, (2, 3, 64, 64), (3 * 64 * 64, 64 * 64, 64, 1), "bf16", 0)
    with pytest.raises(LaunchError, match="no method reshape"):
        codegen.matmul(a, a)
    assert not fake.launches
