"""The batch-invariant Triton kernel, run with a stand-in for Triton: its indices."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.benchmarks.peers.fake_triton import modules

KERNELS = ("benchmarks.peers.triton_matmul", "benchmarks.peers.triton_invariant")
PROCESSORS = 5


@pytest.fixture(scope="module")
def kernels() -> Any:
    """The module `benchmarks.peers.triton_invariant`, imported with a stand-in for Triton."""
    with pytest.MonkeyPatch.context() as patch:
        for name, module in modules().items():
            patch.setitem(sys.modules, name, module)
        for name in KERNELS:
            patch.delitem(sys.modules, name, raising=False)
        found = importlib.import_module("benchmarks.peers.triton_invariant")
        patch.setattr(found, "processors", lambda: PROCESSORS)
        yield found
        for name in KERNELS:
            patch.delitem(sys.modules, name, raising=False)


class Matrix(np.ndarray[Any, Any]):
    """An array whose strides are counted in elements, as those of PyTorch's tensors are."""

    def stride(self) -> tuple[int, ...]:
        return tuple(step // self.itemsize for step in self.strides)


@given(
    sizes=st.tuples(st.integers(1, 40), st.integers(1, 20), st.integers(1, 24)),
    transpose_b=st.booleans(),
    persistent=st.booleans(),
)
@settings(max_examples=40, deadline=None)
def test_every_element_is_right_and_written_once(
    kernels: ModuleType, sizes: tuple[int, int, int], transpose_b: bool, persistent: bool
):
    m, n, k = sizes
    random = np.random.default_rng(m + n + k)
    a = random.integers(-4, 5, (m, k)).astype(np.float32)
    b = random.integers(-4, 5, (n, k) if transpose_b else (k, n)).astype(np.float32)
    d = np.full((m, n), np.nan, np.float32)

    def as_multiplied(a: Any, b: Any) -> tuple[Any, Any]:
        return a.view(Matrix), (b.T if transpose_b else b).view(Matrix)

    problem: Any = SimpleNamespace(
        shape=SimpleNamespace(m=m, n=n, k=k), as_multiplied=as_multiplied
    )
    contender = kernels.InvariantTriton(persistent=persistent, tile=(8, 4, 16))
    contender.prepare(problem)(a, b, d)
    assert np.array_equal(d, a @ (b.T if transpose_b else b))
