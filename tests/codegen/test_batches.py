"""Products with several batch axes of arrays that cannot be reshaped: launches on views."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import codegen
from codegen.call import matmul
from codegen.call.arrays import row_major
from codegen.call.batches import launches
from codegen.call.views import TensorView
from codegen.targets.nvptx import driver
from tests.codegen.nvptx.fake_driver import ARCHITECTURE, CONTEXT, PROCESSORS, install

M, N, K = 3, 5, 4


@st.composite
def batches(draw: st.DrawFn) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Batch axes of A and B that can be broadcast, with axes of extent 1 and missing axes."""
    batch = draw(st.lists(st.sampled_from([0, 1, 2, 3]), max_size=4))
    one, other = (
        tuple(1 if draw(st.booleans()) else extent for extent in batch)[draw(st.integers(0, 4)) :]
        for _ in range(2)
    )
    return one, other


def view(array: Any) -> TensorView:
    return TensorView(array.ctypes.data, array.shape, row_major(array.shape), "f32")


def memory_of(whole: Any, part: TensorView) -> Any:
    """The elements of an array that a view of its memory covers."""
    first = (part.pointer - whole.ctypes.data) // whole.itemsize
    strides = tuple(step * whole.itemsize for step in part.strides)
    return np.lib.stride_tricks.as_strided(whole.reshape(-1)[first:], part.shape, strides)


@given(batches(), st.sampled_from([(M, N, K), (0, N, K), (M, N, 0), (1, 1, 1)]))
def test_launches_multiply_all_matrices_of_a_broadcast_batch(shapes: Any, extents: Any):
    """Each launch has at most one batch axis; together, the launches compute `numpy.matmul`."""
    m, n, k = extents
    random = np.random.default_rng(0)
    a = random.integers(-8, 8, (*shapes[0], m, k)).astype("f4")
    b = random.integers(-8, 8, (*shapes[1], k, n)).astype("f4")
    exact = np.matmul(a, b)
    d = np.full_like(exact, np.nan)
    for left, right, out in launches(view(a), view(b), view(d)):
        assert len(out.shape) <= len("lmn")
        assert max(len(left.shape), len(right.shape)) == len(out.shape)
        memory_of(d, out)[...] = memory_of(a, left) @ memory_of(b, right)
    np.testing.assert_array_equal(d, exact)


@pytest.mark.parametrize(
    ("a", "b", "count"),
    [((2, 3), (2, 3), 1), ((2, 3), (), 1), ((2, 1), (1, 6), 2), ((2, 2, 1), (1, 1, 6), 4)],
)
def test_axes_that_can_be_joined_need_one_launch(a: Any, b: Any, count: int):
    """Only axes along which A or B changes from stored to repeated need further launches."""
    views = (
        TensorView(0x1000, shape, row_major(shape), "bf16")
        for shape in ((*a, M, K), (*b, K, N), (*np.broadcast_shapes(a, b), M, N))
    )
    assert len(list(launches(*views))) == count


@pytest.mark.parametrize(("a", "b"), [((2, 2, 1), (2, 1, 6)), ((2, 1), (6,)), ((1,), (6,))])
def test_a_call_on_a_gpu_launches_kernels_for_all_batch_axes(
    monkeypatch: pytest.MonkeyPatch, a: tuple[int, ...], b: tuple[int, ...]
):
    """`codegen.matmul` multiplies views of memory, which it can neither reshape nor copy."""
    fake = install(monkeypatch)
    device = driver.Device(0, "NVIDIA H200", ARCHITECTURE, PROCESSORS, CONTEXT)
    monkeypatch.setattr(driver, "device", lambda ordinal: device)
    batch = np.broadcast_shapes(a, b)
    left, right, add, out = (
        TensorView(pointer, shape, row_major(shape), "bf16", 0)
        for pointer, shape in (
            (0x100000, (*a, 64, 72)),
            (0x200000, (*b, 72, 40)),
            (0x300000, (*batch, 64, 40)),
            (0x400000, (*batch, 64, 40)),
        )
    )
    count = len(list(launches(left, right, out)))
    assert codegen.matmul(left, right, out=out) is out
    assert len(fake.launches) == count
    assert codegen.matmul(left, right, add, out=out) is out
    assert len(fake.launches) == 2 * count
    matmul.forget()
