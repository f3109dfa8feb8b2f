"""`Curve`: the places of whole square blocks of a plane in the order of a space-filling curve."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from sympy import Expr, Integer, Lt
from sympy.logic.boolalg import Boolean

from coordgraph.coordinates.edges.base import Edge, Law, Sizes
from coordgraph.errors import NotInvertible, VerifyError
from coordgraph.integers import Ranges, equal, floor_div, floor_mod, minimum, select
from coordgraph.validation import whole

__all__ = ["Curve"]

Bits = list[Expr]
"""Of an index, the lowest first; each is 0 or 1."""


@dataclass(frozen=True)
class Curve(Edge):
    """`Curve(I, J; I', J')`: column by column in a block of (I', J') is along a curve in (I, J).

    The plane is cut into blocks of `side` x `side` places, a power of two. In a block that is
    whole, the place `(i', j')`, number `d = j'·side + i'` column by column, is `(i, j)`, number d
    of the curve; blocks that the end of the plane cuts off keep their places. With bits `dₖ`:

    - `morton`: `iₖ = d₂ₖ`, `jₖ = d₂ₖ₊₁`;
    - `hilbert`: with `a = d₂ₖ₊₁`, `b = d₂ₖ`, `jₖ = a ^ (s & b) ^ f` and `iₖ = jₖ ^ b`. Higher bits
      decide s and f: digits 0 and 3 swap i and j below them (s changes), and 3 also turns both
      round (f changes). Neighbours on the curve are neighbours in the plane; it begins at (0, 0)
      and ends at (0, side - 1), beside the block that follows.

    Forward undoes this. Sizes: equal, operand by operand.
    """

    function: str = "hilbert"
    side: int = 8

    arity = (2, 2)
    laws = frozenset({Law.REVERSE_UNDOES_FORWARD, Law.FORWARD_UNDOES_REVERSE})
    FUNCTIONS: ClassVar[tuple[str, ...]] = ("hilbert", "morton")
    MOST: ClassVar[int] = 64
    """The longest side: formulas grow with its logarithm."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.function not in self.FUNCTIONS:
            known = ", ".join(self.FUNCTIONS)
            raise VerifyError(f"{self}: unknown function '{self.function}'; there are {known}")
        object.__setattr__(self, "side", whole(self.side, f"{self}: side"))
        if not 2 <= self.side <= self.MOST or self.side & (self.side - 1):
            raise VerifyError(f"{self}: the side of a block is a power of two, 2 to {self.MOST}")

    @property
    def _bits(self) -> int:
        return self.side.bit_length() - 1

    def size_rule(self, sizes: Sizes) -> tuple[Boolean, ...]:
        return tuple(
            equal(above, below)
            for above, below in zip(sizes.upstream, sizes.downstream, strict=True)
            if above is not None and below is not None
        )

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
        """Both indices, changed inside their block where it is whole."""
        extents = [size for size in sizes.upstream if size is not None]
        if len(extents) != 2:
            raise NotInvertible(f"{self}: needs the sizes of both operands")
        begins = [floor_div(index, self.side) * self.side for index in indices]
        rows, columns = along(*(self._split(index) for index in indices))
        # The minimum changes nothing: proofs see from it that a place is inside the plane.
        changed = [
            minimum(begin + sum((bit * 2**k for k, bit in enumerate(bits)), Integer(0)), extent - 1)
            for begin, bits, extent in zip(begins, (rows, columns), extents, strict=True)
        ]
        for begin, extent in zip(begins, extents, strict=True):
            whole = Lt(begin + self.side - 1, extent)
            changed = [select(whole, new, old) for new, old in zip(changed, indices, strict=True)]
        return tuple(changed)

    def _split(self, index: Expr) -> Bits:
        """The bits of an index that say where in a block it is."""
        return [floor_mod(floor_div(index, 2**k), 2) for k in range(self._bits)]


def _xor(*bits: Expr) -> Expr:
    return floor_mod(sum(bits, Integer(0)), 2)


def _and(a: Expr, b: Expr) -> Expr:
    return floor_div(a + b, 2)


def _from_curve(function: str, low: Bits, high: Bits) -> tuple[Bits, Bits]:
    """Row and column, by the lower and the higher bit of each digit of the number on the curve."""
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
    """The lower and the higher bit of each digit of the number on the curve."""
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
    """How the curve lies in the quarter that a digit chooses."""
    return _xor(swapped, a, b, Integer(1)), _xor(turned, _and(a, b))
