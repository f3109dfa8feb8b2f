"""Makes numpy arrays that share the memory of CPU tensors."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import torch

from coordgraph import LaunchError

__all__ = ["copied", "on_host"]


def on_host(tensor: torch.Tensor) -> Any:
    """A numpy array with the memory, shape and strides of a CPU tensor, without a copy.

    numpy has no bf16 and no 8-bit floats of its own: the array then has the type of this name in
    `ml_dtypes`. The array keeps the tensor's memory. `Tensor.numpy` is not called, because PyTorch
    then refuses to resize the memory from then on, which FSDP does with parameters.

    Raises:
        LaunchError: PyTorch shall negate the elements when they are read, so the memory has others.
        RuntimeError: the tensor has no memory of its own, for example because it is sparse.
        TypeError: numpy and `ml_dtypes` have no element type of this name.
    """
    kind = _kind(tensor.dtype)
    if tensor.is_neg():
        raise LaunchError(
            "the elements of a tensor differ in sign from its memory; pass x.resolve_neg()"
        )
    if not tensor.numel():
        return np.empty(tuple(tensor.shape), kind)
    return np.asarray(_Memory(tensor)).view(kind)


@cache
def _kind(dtype: torch.dtype) -> np.dtype[Any]:
    """The element type of numpy or `ml_dtypes` with the name that PyTorch gives it."""
    import ml_dtypes

    name = str(dtype).removeprefix("torch.")
    return np.dtype(getattr(ml_dtypes, name, name))


def copied(array: Any) -> Any:
    """A CPU tensor with the elements of a numpy array, whose memory PyTorch may resize."""
    return torch.from_numpy(array).clone()


class _Memory:
    """The memory of a CPU tensor as `numpy.asarray` takes it: elements that are only bytes."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor.detach()
        size = tensor.element_size()
        self.__array_interface__ = {
            "version": 3,
            "shape": tuple(tensor.shape),
            "strides": tuple(step * size for step in tensor.stride()),
            "typestr": f"|V{size}",
            "data": (self.tensor.data_ptr(), False),
        }
