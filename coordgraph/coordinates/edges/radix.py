"""Mixed-radix arithmetic that several edges share."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from sympy import Expr, Integer

from coordgraph.errors import NotInvertible
from coordgraph.integers import FloorDiv, FloorMod, Ranges

__all__ = ["compose", "decompose", "product", "split_by_strides", "strided_sum"]


def product(sizes: Sequence[Expr | None]) -> Expr | None:
    """The product of the sizes, None where one is absent."""
    total: Expr = Integer(1)
    for size in sizes:
        if size is None:
            return None
        total = total * size
    return total


def compose(indices: Sequence[Expr], sizes: Sequence[Expr | None], what: object) -> Expr:
    """Horner's rule: `((i0*n1 + i1)*n2 + i2)…`; n0 is not read."""
    value = indices[0]
    for index, size in zip(indices[1:], sizes[1:], strict=True):
        value = value * _present(size, what) + index
    return value


def decompose(index: Expr, sizes: Sequence[Expr | None], what: object) -> tuple[Expr, ...]:
    """The inverse of `compose`: repeated mod and div by the last sizes; the first takes the rest."""
    digits: list[Expr] = []
    for size in reversed(sizes[1:]):
        radix = _present(size, what)
        digits.append(FloorMod(index, radix))
        index = FloorDiv(index, radix)
    return (index, *reversed(digits))


def strided_sum(indices: Sequence[Expr], strides: Sequence[Expr]) -> Expr:
    """`Σ iₖ·strideₖ`."""
    total: Expr = Integer(0)
    for index, stride in zip(indices, strides, strict=True):
        total = total + index * stride
    return total


def split_by_strides(
    value: Expr,
    strides: Sequence[Expr],
    sizes: Sequence[Expr | None],
    ranges: Ranges,
    what: object,
) -> tuple[Expr, ...]:
    """Recover the indices of `strided_sum`, where the strides nest.

    They nest when, ordered from the smallest, each stride is larger than the largest sum of the
    smaller ones; otherwise two different indices share a value and `NotInvertible` is raised.
    """
    order = _ascending(strides, sizes, ranges, what)
    reach: Expr = Integer(0)
    for position in order:
        size = sizes[position]
        if not ranges.prove_less(reach, strides[position]):
            raise NotInvertible(f"{what}: its strides {tuple(strides)} do not nest")
        if size is None:
            if position != order[-1]:
                raise NotInvertible(f"{what}: operand {position} has no size")
            continue
        reach = reach + (size - 1) * strides[position]
    digits: dict[int, Expr] = {}
    for position, above in pairwise([*order, None]):
        assert position is not None
        below = value if above is None else FloorMod(value, strides[above])
        digits[position] = FloorDiv(below, strides[position])
    return tuple(digits[position] for position in range(len(strides)))


def _ascending(
    strides: Sequence[Expr], sizes: Sequence[Expr | None], ranges: Ranges, what: object
) -> list[int]:
    """Positions by growing stride; equal strides put an axis of size one first."""

    def precedes(position: int, other: int) -> bool:
        small, large = strides[position], strides[other]
        if not ranges.prove_less(small, large + 1):
            return False
        # Sizes may make two symbolic strides equal: `1 <= ⌈n/3⌉` is all that can be proved.
        return sizes[position] == 1 or not ranges.prove_less(large, small + 1)

    order: list[int] = []
    for position in range(len(strides)):
        place = (at for at, other in enumerate(order) if precedes(position, other))
        order.insert(next(place, len(order)), position)
    return order


def _present(size: Expr | None, what: object) -> Expr:
    if size is None:
        raise NotInvertible(f"{what}: needs the size of every operand but the first")
    return size
