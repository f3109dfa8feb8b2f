"""The check whether D overlaps A, B or C in memory is exact, also for arrays with gaps."""

from __future__ import annotations

from itertools import product
from operator import mul
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import codegen
from codegen.call import overlap
from codegen.call.overlap import check_overlap
from codegen.call.views import TensorView
from codegen.targets.nvptx import cuda_kernel
from coordgraph import LaunchError
from tests.codegen.nvptx.fake_driver import FakeDriver, matrix

SIZES = {"f32": 4, "bf16": 2}


def view(
    at: int, count: int, rows: int, columns: int, gaps: tuple[int, int], order: bool, kind: str
) -> TensorView:
    """A batch of `count` matrices at address `at`, with elements of type `kind`.

    `gaps` are the numbers of elements after each row and after each matrix. With `order`, rows of
    the matrices alternate in memory.
    """
    step = columns + gaps[0]
    steps = ((count if order else rows) * step + gaps[1], step)
    strides = (*(reversed(steps) if order else steps), 1)
    return TensorView(at, (count, rows, columns), strides, kind)


def addresses(array: TensorView) -> set[int]:
    """The addresses of all bytes of an array."""
    size = SIZES[array.dtype]
    return {
        array.pointer + size * sum(map(mul, index, array.strides)) + byte
        for index in product(*map(range, array.shape))
        for byte in range(size)
    }


extent, gap, kind = st.integers(0, 4), st.integers(0, 7), st.sampled_from([*SIZES])


@given(
    *(
        st.tuples(
            *(st.integers(0, 60), extent, extent, extent, st.tuples(gap, gap)), st.booleans(), kind
        )
        for _ in "AD"
    ),
    st.sampled_from(["as drawn", "in step", "one for all"]),
)
@settings(max_examples=400, deadline=None)
def test_as_the_addresses_of_all_bytes_say(of_a: Any, of_d: Any, how: str):
    a, d = view(100 + of_a[0], *of_a[1:]), view(100 + of_d[0], *of_d[1:])
    if how != "as drawn":
        step = a.strides[0] * SIZES[a.dtype] // SIZES[d.dtype] * (how == "in step")
        a = TensorView(a.pointer, a.shape, (step, *a.strides[1:]), d.dtype)
    said = ""
    try:
        check_overlap({"A": a, "D": d})
    except LaunchError as error:
        said = str(error)
    assert not said or said.startswith("argument 'out' overlaps a; pass an array for 'out'")
    assert bool(said) == bool(addresses(a) & addresses(d))


def test_c_may_be_d_only_element_by_element():
    """C at the address of D is refused if its elements are at other addresses than those of D."""
    d = TensorView(1 << 20, (3, 3, 4), (12, 4, 1), "f32")
    check_overlap({"C": d, "D": d})
    turned = TensorView(1 << 20, (3, 3, 4), (4, 12, 1), "f32")
    with pytest.raises(LaunchError, match="'out' overlaps c"):
        check_overlap({"C": turned, "D": d})


def test_an_overlap_that_takes_long_to_find_is_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(overlap, "MOST_WORK", 1)
    a = TensorView(1 << 20, (50, 30, 17), (7001, 101, 3), "f32")
    d = TensorView((1 << 20) + 4, (40, 20, 13), (6007, 203, 5), "f32")
    with pytest.raises(LaunchError, match=r"argument 'out' may overlap a: .*; pass an array"):
        check_overlap({"A": a, "D": d})


def test_matrices_of_one_array_may_be_a_b_c_and_d():
    every = np.random.default_rng(0).integers(-4, 5, (5, 4, 8, 8)).astype(np.float32)
    a, b, c, out = (every[:, which] for which in range(4))
    want = a @ b + c
    kept = every[:, :3].copy()
    assert codegen.matmul(a, b, c, out, beta=1.0) is out
    assert np.array_equal(out, want)
    assert np.array_equal(every[:, :3], kept)
    for name, call in {
        "a": (out, b),
        "b": (a, out),
        "c": (a, b, every[:4].reshape(16, 8, 8)[2:7]),
    }.items():
        with pytest.raises(LaunchError, match=f"'out' (may )?overlaps? {name}"):
            codegen.matmul(*call, out=out, beta=float(name == "c"))
    # A, B and `out` are views of one array, but of different matrices, so none overlaps another.
    few = every[:4:2, 1]
    want = a[:2] @ every[:2, 2]
    assert np.array_equal(codegen.matmul(a[:2], every[:2, 2], out=few), want)


@pytest.mark.usefixtures("forgotten")
def test_a_gpu_launches_where_matrices_lie_between_each_other(
    fake: FakeDriver, monkeypatch: pytest.MonkeyPatch
):
    def part(which: int) -> TensorView:
        at = (1 << 30) + which * 64 * 64 * 2
        return matrix(64, 64, at, shape=(5, 64, 64), strides=(3 * 64 * 64, 64, 1))

    a, b, d = part(0), part(1), part(2)
    codegen.matmul(a, b, out=d)
    # The next calls have the cache key of the first call, so their arguments are not checked again.
    # Only overlaps are checked, because the address ranges of D and of A or B overlap.
    monkeypatch.setattr(cuda_kernel, "check_call", None)
    codegen.matmul(a, b, out=d)
    assert len(fake.launches) == 2
    assert fake.launches[0] == fake.launches[1]
    with pytest.raises(LaunchError, match="'out' overlaps b"):
        codegen.matmul(a, b, out=part(1))
    assert len(fake.launches) == 2
