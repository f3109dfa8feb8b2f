"""`Join`: combine several indices into one strided sum, the inverse of `Split`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sympy import Expr, Integer
from sympy.logic.boolalg import Boolean

from coordgraph.coordinates.edges.base import Edge, Law, Sizes
from coordgraph.coordinates.edges.radix import product, same, split_by_strides, strided_sum
from coordgraph.errors import VerifyError
from coordgraph.integers import Ranges, equal, less
from coordgraph.validation import integers

__all__ = ["Join"]


@dataclass(frozen=True)
class Join(Edge):
    """`Join(I0, I1, …; O)`: combine several indices into one index, with arbitrary strides.

    - forward: `o = Σ iₖ·strideₖ`;
    - reverse: by mixed radix if the strides nest (each stride is larger than the largest sum that
      smaller strides can make), else reverse raises `NotInvertible`.

    Size rule: `|O| = 1 + Σ (nₖ - 1)·strideₖ`. Strides may leave gaps: values of o that are no sum
    of indices inside the sizes. For such an o, the guard `iₖ < nₖ` does not hold.

    Args:
        strides: one stride for each upstream operand.

    Raises:
        VerifyError: the number of strides is not the number of operands.
    """

    strides: tuple[Expr, ...] = ()

    arity = (None, 1)
    laws = frozenset({Law.REVERSE_UNDOES_FORWARD})
    consecutive = True

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "strides", integers(self.strides, f"{self}: strides"))
        if len(self.strides) != len(self.upstream):
            raise VerifyError(
                f"{self}: {len(self.strides)} strides are given; give one per upstream operand"
            )

    def size_rule(self, sizes: Sizes) -> tuple[Boolean, ...]:
        (whole,) = sizes.downstream
        if whole is None or any(size is None for size in sizes.upstream):
            return ()
        last = [size - 1 for size in sizes.upstream if size is not None]
        return (equal(whole, (strided_sum(last, self.strides) + Integer(1)).expand()),)

    def reverse(
        self, indices: Sequence[Expr | None], sizes: Sizes, ranges: Ranges
    ) -> tuple[Expr, ...]:
        (index,) = indices
        assert index is not None
        return split_by_strides(index, self.strides, sizes.upstream, ranges, self)

    def forward(self, indices: Sequence[Expr], sizes: Sizes, ranges: Ranges) -> tuple[Expr, ...]:
        return (strided_sum(indices, self.strides),)

    def guard(
        self, upstream: Sequence[Expr], downstream: Sequence[Expr | None], sizes: Sizes
    ) -> tuple[Boolean, ...]:
        (whole,), covered = sizes.downstream, product(sizes.upstream)
        if whole is not None and covered is not None and same(covered, whole):
            return ()
        return tuple(
            less(index, size)
            for index, size in zip(upstream, sizes.upstream, strict=True)
            if size is not None
        )
