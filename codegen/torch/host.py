"""Makes numpy arrays that share the memory of CPU tensors."""

from __future__ import annotations

from typing import Any

import torch

__all__ = ["on_host"]


def on_host(tensor: torch.Tensor) -> Any:
    """A numpy array with the memory, shape and strides of a CPU tensor, without a copy.

    numpy has no bf16 and no 8-bit floats of its own: PyTorch views the elements as integers, and
    numpy views the integers as the type of this name in `ml_dtypes`.
    """
    import ml_dtypes

    tensor = tensor.detach()
    found = getattr(ml_dtypes, str(tensor.dtype).removeprefix("torch."), None)
    if found is None:
        return tensor.numpy()
    integers = torch.uint8 if tensor.element_size() == 1 else torch.int16
    return tensor.view(integers).numpy().view(found)
