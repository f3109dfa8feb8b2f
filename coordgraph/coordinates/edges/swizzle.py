"""`Swizzle`: permute an index depending on another index, by a self-inverse function."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from sympy import Expr
from sympy.logic.boolalg import Boolean

from coordgraph.coordinates.edges.base import Edge, Law, Sizes
from coordgraph.errors import NotInvertible, VerifyError
from coordgraph.integers import Ranges, bit_xor, equal, floor_div, floor_mod, select
from coordgraph.validation import whole

__all__ = ["Swizzle"]


@dataclass(frozen=True)
class Swizzle(Edge):
    """`Swizzle(Y, …, I; Y', …, O)`: permute the last index; the other indices are unchanged.

    Let y be the first index and n the size of the last operand. The functions are their own
    inverses, so forward and reverse are the same:

    - `xor`: `o = i ^ ((y div divisor) mod modulus)`, which avoids bank conflicts in shared memory;
      the modulus is a power of two that divides n;
    - `reflect`: `o = n - 1 - i`; no other operand is needed;
    - `snake`: `o = n - 1 - i` if y is odd, else `o = i` (boustrophedon order).

    Size rule: corresponding operands have equal sizes.

    Args:
        function: `xor`, `reflect` or `snake`.
        divisor, modulus: parameters of `xor`.

    Raises:
        VerifyError: the function is unknown, or the operands or the parameters are not valid for
            the function.
    """

    function: str = "xor"
    divisor: int = 1
    modulus: int = 0

    arity = (None, None)
    laws = frozenset({Law.REVERSE_UNDOES_FORWARD, Law.FORWARD_UNDOES_REVERSE})
    FUNCTIONS: ClassVar[tuple[str, ...]] = ("xor", "reflect", "snake")

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "divisor", whole(self.divisor, f"{self}: divisor", least=1))
        object.__setattr__(self, "modulus", whole(self.modulus, f"{self}: modulus", least=0))
        if len(self.upstream) != len(self.downstream):
            raise VerifyError(
                f"{self}: it has {len(self.upstream)} operands upstream and "
                f"{len(self.downstream)} downstream; give equally many"
            )
        if self.function not in self.FUNCTIONS:
            known = ", ".join(self.FUNCTIONS)
            raise VerifyError(f"{self}: unknown function '{self.function}'; choose one of {known}")
        if self.function != "reflect" and len(self.upstream) < 2:
            raise VerifyError(
                f"{self}: '{self.function}' has only {len(self.upstream)} operand on each side; "
                "give at least two: the index that selects the permutation, and the permuted index"
            )
        if self.function == "xor" and not _power_of_two(self.modulus):
            raise VerifyError(
                f"{self}: modulus = {self.modulus} is not a power of two, as '{self.function}' "
                "needs; choose one that is, such as 8"
            )

    def size_rule(self, sizes: Sizes) -> tuple[Boolean, ...]:
        rules = [*sizes.unchanged]
        last = sizes.upstream[-1]
        if self.function == "xor" and last is not None:
            rules.append(equal(floor_mod(last, self.modulus), 0))
        return tuple(rules)

    def reverse(
        self, indices: Sequence[Expr | None], sizes: Sizes, ranges: Ranges
    ) -> tuple[Expr, ...]:
        return self._apply([i for i in indices if i is not None], sizes)

    def forward(self, indices: Sequence[Expr], sizes: Sizes, ranges: Ranges) -> tuple[Expr, ...]:
        return self._apply(indices, sizes)

    def _apply(self, indices: Sequence[Expr], sizes: Sizes) -> tuple[Expr, ...]:
        *others, index = indices
        if self.function == "xor":
            by = floor_mod(floor_div(others[0], self.divisor), self.modulus)
            return (*others, bit_xor(index, by))
        size = sizes.upstream[-1]
        if size is None:
            raise NotInvertible(
                f"{self}: the last upstream operand has no size, which '{self.function}' needs; "
                "give that dimension a size"
            )
        mirrored = size - 1 - index
        if self.function == "reflect":
            return (*others, mirrored)
        return (*others, select(equal(floor_mod(others[0], 2), 1), mirrored, index))


def _power_of_two(number: int) -> bool:
    return number > 0 and number & (number - 1) == 0
