"""Transforms of `torch.func` that a random call is computed in."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

__all__ = ["TRANSFORMS", "transformed"]

SCALES = (1.0, 0.5, 2.0)
"""Factors of the arguments of the three calls that vmap makes."""


def _stacked(tensors: list[Tensor]) -> Tensor:
    """Stack tensors outside of autocast, under which `torch.stack` refuses or casts some types."""
    with torch.autocast(tensors[0].device.type, enabled=False):
        return torch.stack(tensors)


def _vmap(
    function: Callable[..., Tensor], views: list[Tensor], seed: int, *, loop: bool = False
) -> Tensor:
    """The results for three multiples of the arguments; bits of `seed` leave out some of these.

    Args:
        function: a function of tensors.
        views: its arguments.
        seed: decides which arguments have an axis that is mapped.
        loop: whether to call the function once for each index of the axis, not in `torch.vmap`.
            There PyTorch's functions may give other types, and NaNs of values that are not read.
    """
    axes = [0 if seed >> number & 1 else None for number in range(len(views))]
    axes[seed % len(axes)] = 0
    given = [
        x if axis is None else _stacked([(x * scale).to(x.dtype) for scale in SCALES])
        for x, axis in zip(views, axes, strict=True)
    ]
    if loop:
        calls = [
            [x if axis is None else x[number] for x, axis in zip(given, axes, strict=True)]
            for number in range(len(SCALES))
        ]
        return _stacked([function(*call) for call in calls])
    return torch.vmap(function, in_dims=tuple(axes))(*given)


def _jvp(function: Callable[..., Tensor], views: list[Tensor], seed: int) -> Tensor:
    """The tangent of the result; bits of `seed` leave out tangents of some arguments."""
    chosen = [n for n in range(len(views)) if seed >> n & 1] or [seed % len(views)]

    def of_chosen(*given: Tensor) -> Tensor:
        every = dict(enumerate(views)) | dict(zip(chosen, given, strict=True))
        return function(*every.values())

    given = tuple(views[n] for n in chosen)
    return torch.func.jvp(of_chosen, given, tuple(x.detach() * 0.75 for x in given))[1]


def _vjp(function: Callable[..., Tensor], views: list[Tensor], seed: int) -> Tensor:
    """The gradient of one argument."""
    number = seed % len(views)
    d, pull = torch.func.vjp(
        lambda x: function(*views[:number], x, *views[number + 1 :]), views[number]
    )
    return pull(torch.full_like(d, 0.5))[0]


TRANSFORMS: dict[str, Callable[..., Tensor]] = {"vmap": _vmap, "jvp": _jvp, "vjp": _vjp}


def transformed(
    name: str | None,
    function: Callable[..., Tensor],
    views: list[Tensor],
    seed: int,
    *,
    loop: bool,
    **options: Any,
) -> Tensor:
    """What the transform `name` computes of a function; None calls the function.

    `loop` says whether the transform vmap is a loop over the mapped axis.
    """
    if name is None:
        return function(*views, **options)

    def of_tensors(*given: Tensor) -> Tensor:
        return function(*given, **options)

    if name == "vmap":
        return _vmap(of_tensors, views, seed, loop=loop)
    return TRANSFORMS[name](of_tensors, views, seed)
