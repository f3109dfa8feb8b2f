"""Makes numpy arrays that share the memory of CPU tensors."""

from __future__ import annotations

from typing import Any

import torch

__all__ = ["on_host"]


def on_host(tensor: torch.Tensor) -> Any:
    """A numpy array with the memory, shape and strides of a CPU tensor, without a copy.

    numpy has no bf16 of its own: PyTorch views the elements as 16-bit integers, and numpy views the
    integers as `ml_dtypes.bfloat16`.
    """
    tensor = tensor.detach()
    if tensor.dtype is not torch.bfloat16:
        return tensor.numpy()
    import ml_dtypes

    return tensor.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
