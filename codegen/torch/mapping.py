"""Rules of `torch.vmap` that several operators share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

__all__ = ["in_front", "one_by_one", "without_axis"]


def in_front(x: Tensor, axis: int | None, count: int) -> Tensor:
    """`x` with vmap's axis, of extent `count`, in front; if `axis` is None, `x` is expanded."""
    return x.expand(count, *x.shape) if axis is None else x.movedim(axis, 0)


def without_axis(x: Tensor, axis: int | None) -> Tensor:
    """A tensor with the shape of `x` without the axis that vmap maps, for checks of shapes.

    Its elements mean nothing. `axis` is None if vmap maps no axis of `x`.
    """
    if axis is None:
        return x
    return x.select(axis, 0) if x.shape[axis] else x.new_empty(x.movedim(axis, 0).shape[1:])


def one_by_one(op: Any) -> Callable[..., Any]:
    """A rule of vmap that calls the operator `op` once for each index of the mapped axis."""

    def mapped(info: Any, in_dims: tuple[Any, ...], *arguments: Any) -> Any:
        axes = (*in_dims, *(None for _ in arguments[len(in_dims) :]))
        count = info.batch_size
        if not count:  # the shapes and types of the results are those of any other call
            arguments = tuple(
                x if axis is None else torch.zeros_like(without_axis(x, axis)).unsqueeze(0)
                for x, axis in zip(arguments, axes, strict=True)
            )
            axes = tuple(None if axis is None else 0 for axis in axes)
        calls = [
            op(
                *(
                    x if axis is None else x.select(axis, index)
                    for x, axis in zip(arguments, axes, strict=True)
                )
            )
            for index in range(max(count, 1))
        ]
        if isinstance(calls[0], Tensor):
            return torch.stack(calls)[:count], 0
        stacked = tuple(torch.stack(each)[:count] for each in zip(*calls, strict=True))
        return stacked, (0,) * len(stacked)

    return mapped
