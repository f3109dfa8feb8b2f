"""`Sunder`: divide an index into consecutive parts; a selector chooses one of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sympy import Expr, Ge, Integer, Lt
from sympy.logic.boolalg import Boolean, true

from coordgraph.coordinates.edges.base import Edge, Law, Sizes
from coordgraph.errors import EvaluationError, NotInvertible, VerifyError
from coordgraph.integers import Ranges, equal, select

__all__ = ["Sunder"]


@dataclass(frozen=True)
class Sunder(Edge):
    """`Sunder(I; O0, …, ON-1, X)`: index i is index o_x of the part that the selector x chooses.

    - reverse: `i = o_x + Σ_{k<x} n_k`, where the sum is the length of all parts before part x.
      If the selector is a constant, only o_x must be known; if it is symbolic, the result is a
      select over all parts.
    - forward: x is the part that contains i, and o_x is i minus the first index of that part.
      The indices computed for other parts are outside those parts and have no meaning.

    Size rule: `n_0 + … + n_{N-1} = |I|`, and `|X| = N`.
    """

    arity = (1, None)
    laws = frozenset({Law.REVERSE_UNDOES_FORWARD})
    consecutive = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.downstream) < 2:
            raise VerifyError(
                f"{self}: it has only {len(self.downstream)} downstream operand; give at least "
                "two: the index in a part, and the selector last"
            )

    def size_rule(self, sizes: Sizes) -> tuple[Boolean, ...]:
        (whole,), segments, choices = sizes.upstream, sizes.downstream[:-1], sizes.downstream[-1]
        rules: list[Boolean] = []
        if whole is not None and all(size is not None for size in segments):
            rules.append(equal(whole, sum((s for s in segments if s is not None), Integer(0))))
        if choices is not None:
            rules.append(equal(choices, Integer(len(segments))))
        return tuple(rules)

    def reverse(
        self, indices: Sequence[Expr | None], sizes: Sizes, ranges: Ranges
    ) -> tuple[Expr, ...]:
        *segments, selector = indices
        assert selector is not None
        count = len(segments)
        offsets = self._offsets(sizes)
        if isinstance(selector, Integer):
            chosen = int(selector)
            if not 0 <= chosen < count:
                raise EvaluationError(
                    f"{self}: the selector is {chosen}, but there are only the parts 0 to "
                    f"{count - 1}; give the number of one of them"
                )
            index = segments[chosen]
            assert index is not None
            return (index + offsets[chosen],)
        result: Expr | None = None
        for chosen in reversed(range(count)):
            index = segments[chosen]
            assert index is not None
            value = index + offsets[chosen]
            result = value if result is None else select(equal(selector, chosen), value, result)
        assert result is not None
        return (result,)

    def forward(self, indices: Sequence[Expr], sizes: Sizes, ranges: Ranges) -> tuple[Expr, ...]:
        (index,) = indices
        offsets = self._offsets(sizes)
        selector: Expr = Integer(len(offsets) - 1)
        for chosen in reversed(range(len(offsets) - 1)):
            selector = select(Lt(index, offsets[chosen + 1]), Integer(chosen), selector)
        return (*(index - offset for offset in offsets), selector)

    def guard(
        self, upstream: Sequence[Expr], downstream: Sequence[Expr | None], sizes: Sizes
    ) -> tuple[Boolean, ...]:
        selector, count = downstream[-1], len(self.downstream) - 1
        if selector is None or isinstance(selector, Integer):
            return ()
        return (Ge(selector, 0), Lt(selector, count))

    def reads_when(self, downstream: Sequence[Expr | None]) -> tuple[Boolean, ...]:
        selector, count = downstream[-1], len(self.downstream) - 1
        if selector is None:
            return (true,) * (count + 1)
        return (*(equal(selector, chosen) for chosen in range(count)), true)

    def reverse_needs(self, known: dict[str, Expr]) -> tuple[str, ...]:
        selector = known.get(self.downstream[-1])
        if not isinstance(selector, Integer):
            return self.downstream
        segments = self.downstream[:-1]
        if 0 <= int(selector) < len(segments):
            return (segments[int(selector)], self.downstream[-1])
        # The selector, which is last in `downstream`, is out of range; `reverse` raises an error.
        return (self.downstream[-1],)

    def _offsets(self, sizes: Sizes) -> list[Expr]:
        """The first index of each part: the sum of the sizes of all parts before it."""
        offsets: list[Expr] = [Integer(0)]
        for size in sizes.downstream[:-2]:
            if size is None:
                raise NotInvertible(
                    f"{self}: a part before the last has no size; give the dimension of every "
                    "part before the last a size"
                )
            offsets.append(offsets[-1] + size)
        return offsets
