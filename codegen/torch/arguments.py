"""Checks of arguments that all functions of `codegen.torch` share."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from coordgraph import LaunchError

__all__ = ["check_dense"]


def check_dense(names: str, *given: Any) -> None:
    """Raise LaunchError unless each argument is None or a tensor with strides.

    Args:
        names: the names of the arguments, separated by spaces.
        given: the arguments. Sparse and nested tensors have no strides.
    """
    for index, x in enumerate(given):
        if x is None:
            continue
        if not isinstance(x, Tensor):
            raise LaunchError(
                f"{names.split()[index]} is a {type(x).__name__}, but a tensor is needed; pass one "
                "tensor, as made by torch.as_tensor, torch.stack or torch.cat"
            )
        if x.layout is not torch.strided or x.is_nested:
            kind = "nested" if x.is_nested else str(x.layout)
            raise LaunchError(
                f"{names.split()[index]} is {kind}, but kernels read dense tensors with strides; "
                "convert it, as by .to_dense(), or use PyTorch's function"
            )
