"""Random tensors: extents, types, strides, and whether they require a gradient."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

import torch
from torch import Tensor

__all__ = ["DTYPES", "OTHER_DTYPES", "Drawn", "extent"]

DTYPES = (torch.bfloat16, torch.float16, torch.float32, torch.float64)
OTHER_DTYPES = (torch.int32, torch.int8, torch.bool, torch.complex64, torch.float8_e4m3fn)


def extent(draw: Random) -> int:
    """An extent of an axis: mostly small, often 0 or 1, sometimes longer than a tile."""
    if draw.random() < 0.15:
        return draw.choice((0, 1))
    return (
        draw.choice((2, 3, 5, 7, 8, 16, 17, 33)) if draw.random() < 0.9 else draw.randint(60, 140)
    )


def _row_major(shape: tuple[int, ...], draw: Random) -> tuple[tuple[int, ...], Any]:
    return shape, lambda x: x


def _transposed(shape: tuple[int, ...], draw: Random) -> tuple[tuple[int, ...], Any]:
    if len(shape) < 2:
        return shape, lambda x: x
    return (*shape[:-2], shape[-1], shape[-2]), lambda x: x.mT


def _permuted(shape: tuple[int, ...], draw: Random) -> tuple[tuple[int, ...], Any]:
    order = draw.sample(range(len(shape)), len(shape))
    return tuple(shape[axis] for axis in order), lambda x: x.permute(
        tuple(order.index(axis) for axis in range(len(shape)))
    )


def _stepped(shape: tuple[int, ...], draw: Random) -> tuple[tuple[int, ...], Any]:
    steps = [draw.choice((1, 1, 2, 3)) for _ in shape]
    base = tuple(size * step for size, step in zip(shape, steps, strict=True))
    return base, lambda x: x[tuple(slice(None, None, step) for step in steps)]


def _within(shape: tuple[int, ...], draw: Random) -> tuple[tuple[int, ...], Any]:
    before, after = ([draw.randint(0, 3) for _ in shape] for _ in range(2))
    base = tuple(map(sum, zip(shape, before, after, strict=True)))
    spans = tuple(slice(b, b + size) for b, size in zip(before, shape, strict=True))
    return base, lambda x: x[spans]


def _expanded(shape: tuple[int, ...], draw: Random) -> tuple[tuple[int, ...], Any]:
    base = tuple(1 if draw.random() < 0.4 else size for size in shape)
    return base, lambda x: x.expand(shape)


def _windows(shape: tuple[int, ...], draw: Random) -> tuple[tuple[int, ...], Any]:
    """(shape of a leaf, a function that views it as rows that overlap in memory).

    Row `i` begins at element `i` of the leaf.
    """
    if len(shape) != 2 or 0 in shape:
        return shape, lambda x: x
    return (shape[0] + shape[1] - 1,), lambda x: x.unfold(0, shape[1], 1)


def _negated(shape: tuple[int, ...], draw: Random) -> tuple[tuple[int, ...], Any]:
    """(shape of a leaf, a function that returns a view of it that PyTorch negates when read)."""
    return shape, torch._neg_view


def _sparse(shape: tuple[int, ...], draw: Random) -> tuple[tuple[int, ...], Any]:
    return shape, lambda x: x.to_sparse()


VIEWS = {
    **{"row-major": _row_major, "transposed": _transposed, "permuted": _permuted},
    **{"stepped": _stepped, "within": _within, "expanded": _expanded, "windows": _windows},
    **{"negated": _negated, "sparse": _sparse},
}
WEIGHTS = (6, 5, 2, 3, 3, 3, 1, 1, 0.3)


@dataclass(frozen=True)
class Drawn:
    """A tensor to make: a leaf, and a view of it.

    Args:
        shape: the shape of the view.
        dtype: the element type.
        kind: the name of the view in `VIEWS`.
        base: the shape of the leaf.
        view: makes the view of the leaf.
        gradient: whether the leaf requires a gradient.
        seed: the seed of the random values.
        elsewhere: whether the leaf lies on another device than the other tensors of the call.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype
    kind: str
    base: tuple[int, ...]
    view: Callable[[Tensor], Tensor]
    gradient: bool
    seed: int
    elsewhere: bool = False

    @classmethod
    def of(cls, draw: Random, shape: tuple[int, ...], dtype: torch.dtype) -> Drawn:
        """A random tensor of a shape and a type."""
        (kind,) = draw.choices(list(VIEWS), WEIGHTS)
        # PyTorch cannot read negated views of float8. Its public functions make none: they make
        # imaginary parts of conjugates, which hold no float8.
        kind = "row-major" if kind == "negated" and dtype not in DTYPES else kind
        base, view = VIEWS[kind](shape, draw)
        gradient = draw.random() < 0.6 and (dtype.is_floating_point or dtype.is_complex)
        return cls(shape, dtype, kind, base, view, gradient, draw.getrandbits(32))

    def leaf(self, device: str) -> Tensor:
        """Make the leaf, with equal values at every call; some leaves have an infinite value."""
        random = torch.Generator().manual_seed(self.seed)
        values = torch.randn(self.base, generator=random, dtype=torch.float64)
        if self.seed % 16 == 0 and values.numel():
            values.view(-1)[self.seed % values.numel()] = float("inf")
        if self.elsewhere:
            device = "cpu" if device == "cuda" else "meta"
        made = values.bool() if self.dtype is torch.bool else values.to(self.dtype)
        return made.to(device).requires_grad_(self.gradient and made.dtype.is_floating_point)

    def __str__(self) -> str:
        kind = str(self.dtype).removeprefix("torch.")
        rest = " with gradient" * self.gradient + " elsewhere" * self.elsewhere
        return f"{list(self.shape)} {kind} {self.kind}{rest}"
