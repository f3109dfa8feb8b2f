"""Mixed-radix arithmetic for coordinate transforms: row-major and strided indices."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import cast

from sympy import Expr, Integer

from coordgraph.errors import NotInvertible
from coordgraph.integers import Ranges, floor_div, floor_mod
from coordgraph.integers.polynomials import to_polynomial

__all__ = ["compose", "decompose", "product", "same", "split_by_strides", "strided_sum"]


def product(sizes: Sequence[Expr | None]) -> Expr | None:
    """The product of sizes; None if one of the sizes is None."""
    return None if None in sizes else _product(tuple(cast(Sequence[Expr], sizes)))


@lru_cache(maxsize=1 << 12)
def _product(sizes: tuple[Expr, ...]) -> Expr:
    total: Expr = Integer(1)
    for size in sizes:
        total = total * size
    return total


def same(a: Expr, b: Expr) -> bool:
    """Whether two expressions are equal after expansion."""
    return to_polynomial(a) == to_polynomial(b)


def compose(indices: Sequence[Expr], sizes: Sequence[Expr | None], what: object) -> Expr:
    """The row-major index `((i0*n1 + i1)*n2 + i2)…` by Horner's rule; the size n0 is not needed.

    Args:
        indices: i0, i1, …
        sizes: n0, n1, …
        what: the edge, for the error message.

    Raises:
        NotInvertible: a size after the first is None.
    """
    value = indices[0]
    for index, size in zip(indices[1:], sizes[1:], strict=True):
        value = value * _present(size, what) + index
    return value


def decompose(index: Expr, sizes: Sequence[Expr | None], what: object) -> tuple[Expr, ...]:
    """The indices i0, i1, … of a row-major index: repeated mod and div, the inverse of `compose`.

    Args:
        index: the row-major index.
        sizes: n0, n1, …; n0 is not needed.
        what: the edge, for the error message.

    Raises:
        NotInvertible: a size after the first is None.
    """
    digits: list[Expr] = []
    for size in reversed(sizes[1:]):
        radix = _present(size, what)
        digits.append(floor_mod(index, radix))
        index = floor_div(index, radix)
    return (index, *reversed(digits))


def strided_sum(indices: Sequence[Expr], strides: Sequence[Expr]) -> Expr:
    """The sum of `indices[k]·strides[k]` over all k."""
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
    """Recover indices from their sum `Σ iₖ·strideₖ`, if the strides nest.

    Strides nest if, in ascending order, each stride is larger than the largest sum that the smaller
    strides can make. Otherwise different indices may have the same sum. An axis of size 1 has the
    index 0 and may have any stride.

    Args:
        value: the strided sum.
        strides, sizes: the stride and the size of each axis.
        ranges: the known ranges of symbols, for the proof that the strides nest.
        what: the edge, for error messages.

    Raises:
        NotInvertible: the strides do not provably nest, or a needed size is None.
    """
    order = _ascending([i for i, size in enumerate(sizes) if size != 1], strides, ranges)
    reach: Expr = Integer(0)
    for position in order:
        size = sizes[position]
        if not ranges.prove_less(reach, strides[position]):
            raise NotInvertible(
                f"{what}: its strides {tuple(strides)} do not nest, so different indices may have "
                "the same sum; make each stride larger than the sum that smaller strides reach"
            )
        if size is None:
            if position != order[-1]:
                raise NotInvertible(
                    f"{what}: operand {position} has no size; give that dimension a size"
                )
            continue
        reach = reach + (size - 1) * strides[position]
    digits: dict[int, Expr] = {}
    for position in reversed(order):
        digits[position] = floor_div(value, strides[position])
        value = floor_mod(value, strides[position])
    return tuple(digits.get(position, Integer(0)) for position in range(len(strides)))


def _ascending(positions: Sequence[int], strides: Sequence[Expr], ranges: Ranges) -> list[int]:
    """Sort positions of axes by ascending strides.

    Axes whose strides have no provable order keep the order of `positions`.
    """

    def precedes(small: Expr, large: Expr) -> bool:
        # Prove <=, not <: symbolic strides may be equal for some sizes. For 1 and ⌈n/3⌉, only
        # 1 <= ⌈n/3⌉ can be proved.
        return ranges.prove_less(small, large + 1) and not ranges.prove_less(large, small + 1)

    order: list[int] = []
    for position in positions:
        places = (i for i, at in enumerate(order) if precedes(strides[position], strides[at]))
        order.insert(next(places, len(order)), position)
    return order


def _present(size: Expr | None, what: object) -> Expr:
    """Return the size of an operand, by which an index is multiplied or divided.

    Raises:
        NotInvertible: the size is None.
    """
    if size is None:
        raise NotInvertible(
            f"{what}: an operand after the first has no size; give every dimension after the first "
            "a size"
        )
    return size
