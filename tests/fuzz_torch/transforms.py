"""Transforms of `torch.func` that a random call is computed in."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

__all__ = ["TRANSFORMS", "transformed"]

SCALES = (1.0, 0.5, 2.0)
"""Factors of the arguments of the three calls that vmap makes."""


def _vmap(function: Callable[..., Tensor], views: list[Tensor], seed: int) -> Tensor:
    """The results for three multiples of the arguments; bits of `seed` leave out some of these."""
    axes = [0 if seed >> number & 1 else None for number in range(len(views))]
    axes[seed % len(axes)] = 0
    given = [
        x if axis is None else torch.stack([x * scale for scale in SCALES])
        for x, axis in zip(views, axes, strict=True)
    ]
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
    **options: Any,
) -> Tensor:
    """What the transform `name` computes of a function; None calls the function."""
    if name is None:
        return function(*views, **options)
    return TRANSFORMS[name](lambda *given: function(*given, **options), views, seed)
