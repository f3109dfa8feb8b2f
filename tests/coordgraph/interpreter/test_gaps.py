"""The interpreter on tensors with gaps between rows and matrices."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coordgraph import EvaluationError, Gemm
from coordgraph.interpreter import interpret
from coordgraph.interpreter.layout import elements, has_strides, laid_out
from passes import DataParallel, StreamK

EVERY = ("A", "B", "C", "D")
GRAPHS = {
    batched: StreamK(workgroups=3)(
        Gemm("f32", batched=batched, leading_dimensions=EVERY, transposed_operands=("C",)).graph(
            (8, 8, 8)
        )
    )
    for batched in (False, True)
}
extent, gap = st.integers(1, 20), st.integers(0, 3)


def whole(*shape: int) -> np.ndarray:
    return np.random.default_rng(shape).integers(-4, 5, shape).astype(np.float32)


def spread(values: np.ndarray, gaps: tuple[int, int], swap: bool) -> np.ndarray:
    """A copy of a batch of matrices, with gaps of NaN in memory.

    In memory there is one matrix after another, or with `swap` first the row 0 of each matrix,
    then the row 1 of each, and so on. `gaps`: number of rows and of columns of NaN.
    """
    axes = (1, 0, 2) if swap else (0, 1, 2)
    extents = [values.shape[axis] for axis in axes]
    memory = np.full((extents[0], extents[1] + gaps[0], extents[2] + gaps[1]), np.nan, np.float32)
    view = memory[:, : extents[1], : extents[2]].transpose(axes)
    view[...] = values
    return view


@given(
    *(st.integers(1, 3), extent, extent, extent),
    *(st.tuples(st.tuples(gap, gap), st.booleans()) for _ in "ABC"),
    st.booleans(),
)
@settings(max_examples=60, deadline=None)
def test_products_of_arrays_with_gaps(count, m, n, k, of_a, of_b, of_c, batched):  # type: ignore[no-untyped-def]
    a, b, c = whole(count, m, k), whole(count, k, n), whole(count, m, n)
    want = a @ b + c
    a, b, turned = spread(a, *of_a), spread(b, *of_b), spread(c.swapaxes(1, 2), *of_c)
    if not batched:
        a, b, turned, want = a[0], b[0], turned[0], want[0]
    found = interpret(GRAPHS[batched], a, b, turned, beta=1.0)
    assert np.array_equal(found.d, want)
    assert found.written.all()


@pytest.mark.parametrize("step", [12, 13, 40])
def test_gaps_of_d_are_not_written(step: int):
    """The launch argument `ld_d` sets the distance between rows of D, in elements.

    The returned D is a view without the gaps. Rows that would overlap are an error.
    """
    graph = DataParallel()(Gemm("f32", leading_dimensions=("D",)).graph((8, 8, 8)))
    a, b = whole(10, 9), whole(9, 12)
    found = interpret(graph, a, b, parameters={"ld_d": step})
    assert found.d.strides == (4 * step, 4)
    assert np.array_equal(found.d, a @ b)
    with pytest.raises(EvaluationError, match="of D are written more than once"):
        interpret(graph, a, b, parameters={"ld_d": 11})


@given(
    st.lists(st.tuples(st.integers(1, 4), st.integers(0, 9)), min_size=1, max_size=3),
    st.booleans(),
)
def test_memory_is_laid_out_by_strides(axes: list[tuple[int, int]], contiguous: bool):
    """In memory, each element of a tensor is at the sum of its indices, each times its stride."""
    shape = tuple(extent for extent, _ in axes)
    strides, least = [], 1
    # Each stride is at least the extent of the axes inside, so no two elements share an address.
    for size, more in reversed(axes):
        strides.insert(0, least + (0 if contiguous else more))
        least = strides[0] * size
    values = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    memory = laid_out(values, strides, np.nan)
    assert np.array_equal(elements(memory, shape, strides), values)
    assert np.isfinite(memory).sum() == values.size
    for index in np.ndindex(shape):
        assert memory[np.dot(index, strides)] == values[index]
    view = elements(memory, shape, strides)
    assert has_strides(view, strides)
    assert np.shares_memory(laid_out(view, strides, np.nan), view)
