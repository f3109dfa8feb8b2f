"""`Curve`: reorder the points in square blocks of a grid along a Hilbert or Morton curve."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from sympy import Expr, Integer, Lt
from sympy.logic.boolalg import Boolean

from coordgraph.coordinates.edges.base import Edge, Law, Sizes
from coordgraph.errors import NotInvertible, VerifyError
from coordgraph.integers import Ranges, floor_div, floor_mod, minimum, select
from coordgraph.validation import whole

__all__ = ["Curve"]

Bits = list[Expr]
"""The bits of an index, lowest bit first; each bit is an expression with the value 0 or 1."""


@dataclass(frozen=True)
class Curve(Edge):
    """`Curve(I, J; I', J')`: permute the points within square blocks along a space-filling curve.

    The grid is cut into blocks of `side` x `side` points. In a complete block, the point (i', j')
    has the number `d = j'·side + i'`; reverse maps it to the point (i, j) that is number d on the
    curve. A block that the grid's end cuts off is not permuted. Let dₖ be bit k of d. Reverse is

    - `morton`: `iₖ = d₂ₖ`, `jₖ = d₂ₖ₊₁`;
    - `hilbert`: with `a = d₂ₖ₊₁` and `b = d₂ₖ`, `jₖ = a ^ (s & b) ^ f` and `iₖ = jₖ ^ b`. The bits
      s and f are 0 at the highest digit. Below a digit (a, b) of value 0 or 3, i and j are swapped
      (s is inverted); below a digit of value 3, both are also mirrored (f is inverted). Consecutive
      points of the curve are adjacent in the grid. The curve begins at `(0, 0)` and ends at
      `(0, side - 1)`, adjacent to the next block along j.

    Forward is the inverse. Size rule: `|I| = |I'|` and `|J| = |J'|`.

    Args:
        function: `hilbert` or `morton`.
        side: the side of a block, a power of two from 2 to 64.

    Raises:
        VerifyError: the function is unknown, or `side` is not a power of two from 2 to 64.
    """

    function: str = "hilbert"
    side: int = 8

    arity = (2, 2)
    laws = frozenset({Law.REVERSE_UNDOES_FORWARD, Law.FORWARD_UNDOES_REVERSE})
    FUNCTIONS: ClassVar[tuple[str, ...]] = ("hilbert", "morton")
    MOST: ClassVar[int] = 64
    """The largest `side` of the square blocks of points in which a curve permutes the points. A
    larger side raises `VerifyError`, because the formulas grow with the side's logarithm."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.function not in self.FUNCTIONS:
            known = ", ".join(self.FUNCTIONS)
            raise VerifyError(f"{self}: unknown function '{self.function}'; choose one of {known}")
        object.__setattr__(self, "side", whole(self.side, f"{self}: side"))
        if not 2 <= self.side <= self.MOST or self.side & (self.side - 1):
            raise VerifyError(
                f"{self}: side = {self.side} is not a power of two from 2 to {self.MOST}; choose "
                "one that is"
            )

    @property
    def _bits(self) -> int:
        return self.side.bit_length() - 1

    def size_rule(self, sizes: Sizes) -> tuple[Boolean, ...]:
        return sizes.unchanged

    def reverse(
        self, indices: Sequence[Expr | None], sizes: Sizes, ranges: Ranges
    ) -> tuple[Expr, ...]:
        def along(rows: Bits, columns: Bits) -> tuple[Bits, Bits]:
            number = rows + columns
            return _from_curve(self.function, number[0::2], number[1::2])

        return self._in_blocks([i for i in indices if i is not None], sizes, along)

    def forward(self, indices: Sequence[Expr], sizes: Sizes, ranges: Ranges) -> tuple[Expr, ...]:
        def along(rows: Bits, columns: Bits) -> tuple[Bits, Bits]:
            low, high = _to_curve(self.function, rows, columns)
            number = [bit for pair in zip(low, high, strict=True) for bit in pair]
            return number[: self._bits], number[self._bits :]

        return self._in_blocks(indices, sizes, along)

    def _in_blocks(
        self,
        indices: Sequence[Expr],
        sizes: Sizes,
        along: Callable[[Bits, Bits], tuple[Bits, Bits]],
    ) -> tuple[Expr, ...]:
        """Permute a point within its block if the grid's end does not cut off the block.

        Args:
            indices: the row and the column of the point.
            sizes: the sizes of the operands.
            along: maps the bits of the row and of the column within a block to the permuted bits.
        """
        extents = [size for size in sizes.upstream if size is not None]
        if len(extents) != 2:
            raise NotInvertible(
                f"{self}: an upstream operand has no size; give both upstream dimensions a size"
            )
        begins = [floor_div(index, self.side) * self.side for index in indices]
        rows, columns = along(*(self._split(index) for index in indices))
        # The `minimum` does not change the point; it shows proofs that the point is in the grid.
        changed = [
            minimum(begin + sum((bit * 2**k for k, bit in enumerate(bits)), Integer(0)), extent - 1)
            for begin, bits, extent in zip(begins, (rows, columns), extents, strict=True)
        ]
        for begin, extent in zip(begins, extents, strict=True):
            whole = Lt(begin + self.side - 1, extent)
            changed = [select(whole, new, old) for new, old in zip(changed, indices, strict=True)]
        return tuple(changed)

    def _split(self, index: Expr) -> Bits:
        """The low bits of an index, which are its position within a block."""
        return [floor_mod(floor_div(index, 2**k), 2) for k in range(self._bits)]


def _xor(*bits: Expr) -> Expr:
    return floor_mod(sum(bits, Integer(0)), 2)


def _and(a: Expr, b: Expr) -> Expr:
    return floor_div(a + b, 2)


def _from_curve(function: str, low: Bits, high: Bits) -> tuple[Bits, Bits]:
    """The bits of the row and of the column of a point in a block, from its number on the curve.

    Args:
        function: `hilbert` or `morton`.
        low, high: the lower and the higher bit of each base-4 digit of the number.
    """
    if function == "morton":
        return low, high
    rows: Bits = []
    columns: Bits = []
    swapped: Expr = Integer(0)
    turned: Expr = Integer(0)
    for a, b in zip(reversed(high), reversed(low), strict=True):
        column = _xor(a, _and(swapped, b), turned)
        rows.insert(0, _xor(column, b))
        columns.insert(0, column)
        swapped, turned = _below(a, b, swapped, turned)
    return rows, columns


def _to_curve(function: str, rows: Bits, columns: Bits) -> tuple[Bits, Bits]:
    """The lower and the higher bits of the base-4 digits of a point's number on the curve.

    Args:
        function: `hilbert` or `morton`.
        rows, columns: the bits of the point's row and column in its block.
    """
    if function == "morton":
        return rows, columns
    low: Bits = []
    high: Bits = []
    swapped: Expr = Integer(0)
    turned: Expr = Integer(0)
    for row, column in zip(reversed(rows), reversed(columns), strict=True):
        b = _xor(row, column)
        a = _xor(column, _and(swapped, b), turned)
        low.insert(0, b)
        high.insert(0, a)
        swapped, turned = _below(a, b, swapped, turned)
    return low, high


def _below(a: Expr, b: Expr, swapped: Expr, turned: Expr) -> tuple[Expr, Expr]:
    """The bits `swapped` and `turned` in the quadrant of a square that a base-4 digit selects.

    Args:
        a, b: the higher and the lower bit of the digit.
        swapped: 1 if the Hilbert curve's rows and columns are swapped in the square, else 0.
        turned: 1 if the curve's rows and columns are both mirrored in the square, else 0.
    """
    return _xor(swapped, a, b, Integer(1)), _xor(turned, _and(a, b))
