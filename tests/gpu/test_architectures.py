"""Kernels are right if a test registers an architecture, or gives a lowering as an argument."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import codegen
from codegen.architectures import unregister
from codegen.targets.nvptx import CudaKernel
from codegen.targets.nvptx.driver import device
from coordgraph import Gemm
from passes import StreamK
from passes.lowering import LowerToTensorCores
from tests.codegen.outside_architecture import SM_8X, SM_8Y, SM_9X, register_all

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.usefixtures("gpu")

SHAPES = ((520, 392, 2056), (517, 390, 2051))
"""Problems (m, n, k): one whose bf16 rows are multiples of 16 bytes, and one whose rows are not."""


@pytest.fixture(autouse=True)
def _known() -> Iterator[None]:
    register_all()
    yield
    for made in (SM_8X, SM_8Y, SM_9X):
        unregister(made.name)


def is_right(kernel: Any, shape: tuple[int, int, int]) -> None:
    m, n, k = shape
    a, b = (
        torch.randint(-3, 4, extents, device="cuda").to(torch.bfloat16)
        for extents in ((m, k), (k, n))
    )
    out = torch.empty(m, n, device="cuda")
    assert torch.equal(kernel(a, b, out=out), a.float() @ b.float())


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("target", ["sm_8x", "sm_9x"])
def test_architectures_from_outside(target: str, shape: tuple[int, int, int]):
    graph = StreamK()(Gemm("bf16", "f32").graph((128, 128, 64)))
    made = codegen.compile(graph, target)
    assert isinstance(made, CudaKernel)
    wanted = {"sm_8x": "mma.sync", "sm_9x": "wgmma"}[target]
    assert made.instructions == wanted
    if wanted == "wgmma" and device(0).architecture != "sm_90a":
        pytest.skip("wgmma needs compute capability 9.0")
    is_right(made, shape)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_lesser_lowering(shape: tuple[int, int, int]):
    here = device(0).architecture
    graph = StreamK()(Gemm("bf16", "f32").graph((128, 128, 64)))
    made = codegen.compile(graph, here, lowering=LowerToTensorCores(here, stages=3))
    assert isinstance(made, CudaKernel)
    assert made.instructions == "mma.sync"
    is_right(made, shape)
