"""What tests of batches and groups share: kernels, operands, and where groups begin."""

from __future__ import annotations

from functools import cache
from typing import Any

import codegen
from coordgraph import Gemm
from passes import Pipeline
from tests.gpu.kernels import torch_type

__all__ = ["kernel", "normal", "on_device", "poisoned"]


@cache
def kernel(schedule: str, tile: tuple[int, int, int], target: str, **gemm: Any) -> Any:
    """A kernel, compiled once a session."""
    return codegen.compile(Pipeline.parse(schedule)(Gemm(**gemm).graph(tile)), target)


def normal(*extents: int, dtype: str = "bf16") -> Any:
    """Normal numbers on the GPU."""
    import torch

    return torch.randn(*extents, device="cuda", dtype=torch.float32).to(torch_type(dtype))


def poisoned(*extents: int, dtype: str = "bf16") -> Any:
    """An output that nothing was written to."""
    import torch

    return torch.full(extents, float("nan"), device="cuda", dtype=torch_type(dtype))


def on_device(offsets: list[int]) -> Any:
    """Where groups begin, and the last one ends."""
    import torch

    return torch.tensor(offsets, device="cuda", dtype=torch.int32)
