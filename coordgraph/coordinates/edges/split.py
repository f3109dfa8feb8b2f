"""`Split`: express an index as a strided sum of several indices, such as the offset in a tensor."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sympy import Expr, Integer
from sympy.logic.boolalg import Boolean

from coordgraph.coordinates.edges.base import Edge, Law, Sizes
from coordgraph.coordinates.edges.radix import split_by_strides, strided_sum
from coordgraph.errors import VerifyError
from coordgraph.integers import Ranges, equal
from coordgraph.validation import integers

__all__ = ["Split"]


@dataclass(frozen=True)
class Split(Edge):
    """`Split(I; O0, O1, …)`: express an index as a strided sum, such as a tensor's offset.

    - reverse: `i = Σ oₖ·strideₖ`;
    - forward: by mixed radix if the strides nest (each stride is larger than the largest sum that
      smaller strides can make), else forward raises `NotInvertible`; strides (1, 1) do not nest.

    Size rule: `|I| = 1 + Σ (nₖ - 1)·strideₖ`.

    Args:
        strides: one stride for each downstream operand.

    Raises:
        VerifyError: the number of strides is not the number of operands.
    """

    strides: tuple[Expr, ...] = ()

    arity = (1, None)
    laws = frozenset({Law.FORWARD_UNDOES_REVERSE})
    consecutive = True

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "strides", integers(self.strides, f"{self}: strides"))
        if len(self.strides) != len(self.downstream):
            raise VerifyError(
                f"{self}: {len(self.strides)} strides are given; give one per downstream operand"
            )

    def size_rule(self, sizes: Sizes) -> tuple[Boolean, ...]:
        (whole,) = sizes.upstream
        if whole is None or any(size is None for size in sizes.downstream):
            return ()
        last = [size - 1 for size in sizes.downstream if size is not None]
        return (equal(whole, (strided_sum(last, self.strides) + Integer(1)).expand()),)

    def reverse(
        self, indices: Sequence[Expr | None], sizes: Sizes, ranges: Ranges
    ) -> tuple[Expr, ...]:
        return (strided_sum([i for i in indices if i is not None], self.strides),)

    def forward(self, indices: Sequence[Expr], sizes: Sizes, ranges: Ranges) -> tuple[Expr, ...]:
        return split_by_strides(indices[0], self.strides, sizes.downstream, ranges, self)
