"""Mixed-radix arithmetic that several edges share."""

from __future__ import annotations

from collections.abc import Sequence

from sympy import Expr, Integer

from coordgraph.errors import NotInvertible
from coordgraph.integers import Ranges, floor_div, floor_mod

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
    """The inverse of `compose`: repeated mod and div by the last sizes, the rest to the first."""
    digits: list[Expr] = []
    for size in reversed(sizes[1:]):
        radix = _present(size, what)
        digits.append(floor_mod(index, radix))
        index = floor_div(index, radix)
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
    smaller ones; otherwise two different indices share a value and `NotInvertible` is raised. An
    axis of size one has the index 0, whatever its stride.
    """
    order = _ascending([i for i, size in enumerate(sizes) if size != 1], strides, ranges)
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
    for position in reversed(order):
        digits[position] = floor_div(value, strides[position])
        value = floor_mod(value, strides[position])
    return tuple(digits.get(position, Integer(0)) for position in range(len(strides)))


def _ascending(positions: Sequence[int], strides: Sequence[Expr], ranges: Ranges) -> list[int]:
    """Positions by growing stride, as far as that is known."""

    def precedes(small: Expr, large: Expr) -> bool:
        # Sizes may make two symbolic strides equal: `1 <= ⌈n/3⌉` is all that can be proved.
        return ranges.prove_less(small, large + 1) and not ranges.prove_less(large, small + 1)

    order: list[int] = []
    for position in positions:
        places = (i for i, at in enumerate(order) if precedes(strides[position], strides[at]))
        order.insert(next(places, len(order)), position)
    return order


def _present(size: Expr | None, what: object) -> Expr:
    if size is None:
        raise NotInvertible(f"{what}: needs the size of every operand but the first")
    return size
