"""Dynamic tile schedulers on the CPU: threads take tiles from an atomic counter."""

from __future__ import annotations

import numpy as np
import pytest

import codegen
from coordgraph import Gemm
from passes import DataParallel
from tests.support.sampling import quick_cases

DYNAMIC = DataParallel(persistent=True, scheduler="dynamic")


@pytest.fixture(scope="module")
def kernel() -> codegen.Kernel:
    return codegen.compile(DYNAMIC(Gemm("f32").graph((16, 16, 16))), target="cpu")


@quick_cases(2)
@pytest.mark.parametrize("workgroups", [1, 3, 16, 200])
def test_every_launch_computes_d(kernel: codegen.Kernel, workgroups: int):
    """Later launches find the counter of tiles at 0, also with more workgroups than tiles."""
    random = np.random.default_rng(workgroups)
    for m, n, k in ((70, 33, 40), (16, 16, 16), (200, 100, 5)):
        a = random.integers(-3, 4, (m, k)).astype(np.float32)
        b = random.integers(-3, 4, (k, n)).astype(np.float32)
        for _ in range(3):
            assert (kernel(a, b, workgroups=workgroups) == a @ b).all()


def test_the_increment_wraps(kernel: codegen.Kernel):
    assert "atomicrmw uinc_wrap" in kernel.llvm_ir
