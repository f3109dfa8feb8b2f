"""`check_laws`: test the formulas of a coordinate transform (edge) at every index."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice, product
from typing import Any

from sympy import Expr, Integer
from sympy.core.basic import Basic

from coordgraph.coordinates.edges import Edge, Law, Sizes
from coordgraph.coordinates.rules import decide
from coordgraph.errors import EvaluationError, VerifyError
from coordgraph.integers import Ranges, evaluate, tables_in
from coordgraph.validation import whole

__all__ = ["Trial", "check_laws"]

Indices = tuple[int, ...]
"""The indices along all dimensions on one side of an edge."""
MOST_PROBLEMS = 5
"""The largest number of failures that the error message of `check_laws` lists."""


def check_laws(
    edge: Edge,
    sizes: Mapping[str, int],
    tables: Mapping[str, Sequence[int]] | None = None,
    *,
    among: Callable[[Indices], bool] | None = None,
) -> None:
    """Test an edge's size rule, guard and declared laws at every index, for given sizes.

    Upstream indices whose guard holds must be inside the upstream dimensions. If the edge declares
    the law that `reverse` undoes `forward`, every upstream index must be reached from a downstream
    index, and `reverse(forward(u))` must be u.

    Args:
        edge: the edge; its operands may have any names.
        sizes: the size of every operand, by name. Take small sizes, because every index is tried.
        tables: the entries of the tables that the edge's formulas read, by name.
        among: a function that returns whether an element exists at given upstream indices; by
            default, elements exist at all indices that are less than the sizes.

    Raises:
        VerifyError: a law, the guard or the size rule fails; the message lists the first indices at
            which the test fails.
    """
    trial = Trial.of(edge, sizes, tables or {}, among)
    if problems := list(islice(trial.problems(), MOST_PROBLEMS)):
        raise VerifyError(*problems)


def _all(indices: Indices) -> bool:
    """The default of the argument `among` of `check_laws`: True for all upstream indices."""
    return True


@dataclass(frozen=True)
class Trial:
    """An edge with concrete sizes and tables, so that its formulas can be evaluated.

    Args:
        edge: the edge.
        above: the sizes of the edge's upstream dimensions.
        below: the sizes of the edge's downstream dimensions.
        tables: the entries of the tables that the edge's formulas read, by name.
        among: a function that returns whether the laws are tested at given upstream indices.
    """

    edge: Edge
    above: Indices
    below: Indices
    tables: Mapping[str, Sequence[int]] = field(default_factory=dict[str, Sequence[int]])
    among: Callable[[Indices], bool] = _all

    @classmethod
    def of(
        cls,
        edge: Edge,
        sizes: Mapping[str, int],
        tables: Mapping[str, Sequence[int]],
        among: Callable[[Indices], bool] | None,
    ) -> Trial:
        """Make a trial of an edge from sizes by operand name.

        Raises:
            VerifyError: a size is missing, or is not a non-negative integer.
        """

        def side(names: Iterable[str]) -> Indices:
            return tuple(
                whole(sizes.get(name), f"{edge}: the size of '{name}'", least=0) for name in names
            )

        return cls(edge, side(edge.upstream), side(edge.downstream), tables, among or _all)

    @property
    def sizes(self) -> Sizes:
        """The sizes of the edge's upstream and downstream dimensions, as SymPy integers."""
        return Sizes(tuple(map(Integer, self.above)), tuple(map(Integer, self.below)))

    def forward(self, indices: Indices) -> Indices:
        """The downstream indices that the edge computes from the upstream indices `indices`."""
        return self._numbers(self.edge.forward(_expressions(indices), self.sizes, Ranges()))

    def reverse(self, indices: Indices) -> Indices:
        """The upstream indices that the edge computes from the downstream indices `indices`."""
        return self._numbers(self.edge.reverse(_expressions(indices), self.sizes, Ranges()))

    def guarded(self, indices: Indices) -> bool:
        """Whether the edge's guard holds for downstream indices; if not, they are padding."""
        below = _expressions(indices)
        above = self.edge.reverse(below, self.sizes, Ranges())
        return all(self._holds(part) for part in self.edge.guard(above, below, self.sizes))

    def read(self, indices: Indices) -> tuple[bool, ...]:
        """For each downstream dimension, whether `reverse` reads its index, given `indices`.

        An edge with a selector reads only the indices that the selector chooses.
        """
        return tuple(map(self._holds, self.edge.reads_when(_expressions(indices))))

    @property
    def upstream(self) -> list[Indices]:
        """All tuples of upstream indices that are inside the sizes and that `among` accepts."""
        return [u for u in product(*map(range, self.above)) if self.among(u)]

    @property
    def downstream(self) -> list[Indices]:
        """All tuples of downstream indices that are less than their dimensions' sizes.

        Tuples for which the guard does not hold (padding) are included. If a selector in the tuple
        keeps `reverse` from reading another index, that index may be 0 in a dimension of size 0.
        """

        def inside(indices: Indices) -> bool:
            each = zip(indices, self.below, self.read(indices), strict=True)
            return all(index < size or not read for index, size, read in each)

        return [d for d in product(*(range(max(size, 1)) for size in self.below)) if inside(d)]

    def problems(self) -> Iterator[str]:
        """An error message for each failure of the size rule, the tables, the guard and a law."""
        yield from self._size_rule()
        yield from self._tables()
        reached = {self.reverse(d) for d in self.downstream if self.guarded(d)}
        every = set(self.upstream)
        for u in sorted(reached - every):
            yield (
                f"{self.edge}: the guard holds for the upstream index {u}, which is outside the "
                f"sizes {self.above}; correct the guard or reverse"
            )
        if Law.REVERSE_UNDOES_FORWARD in self.edge.laws:
            for u in sorted(every - reached):
                yield (
                    f"{self.edge}: reverse gives the upstream index {u} for no downstream index; "
                    "correct reverse, the guard or the size rule"
                )
            yield from self._reverse_undoes_forward()
        if Law.FORWARD_UNDOES_REVERSE in self.edge.laws:
            yield from self._forward_undoes_reverse()

    def _size_rule(self) -> Iterator[str]:
        for rule in self.edge.size_rule(self.sizes):
            if decide(rule, Ranges()) is False:
                yield (
                    f"{self.edge}: sizes {self.above} upstream and {self.below} downstream break "
                    "its size rule; try other sizes"
                )

    def _tables(self) -> Iterator[str]:
        """An error message for each table that the formulas read but `table_needs` does not name.

        `KernelGraph.verify` only checks tables that `table_needs` names.
        """
        said = {need.table for need in self.edge.table_needs(self.sizes)}
        above, below = (_expressions((0,) * len(side)) for side in (self.above, self.below))
        found: list[Basic] = []
        with suppress(EvaluationError):
            up = self.edge.reverse(below, self.sizes, Ranges())
            found += (*up, *self.edge.guard(up, below, self.sizes))
        with suppress(EvaluationError):
            found += self.edge.forward(above, self.sizes, Ranges())
        read = {table.name for formula in found for table in tables_in(formula)}
        for name in sorted(read - said):
            yield (
                f"{self.edge}: its formulas read the table '{name}', which table_needs does not "
                "list; add it there"
            )

    def _reverse_undoes_forward(self) -> Iterator[str]:
        for u in self.upstream:
            d = self.forward(u)
            if (back := self.reverse(d)) != u:
                law = Law.REVERSE_UNDOES_FORWARD.value
                yield (
                    f"{self.edge}: the law {law} fails at u = {u}: forward gives {d}, and reverse "
                    f"of {d} gives {back}; correct one of the formulas"
                )

    def _forward_undoes_reverse(self) -> Iterator[str]:
        for d in self.downstream:
            if not self.guarded(d):
                continue
            u = self.reverse(d)
            back, read = self.forward(u), self.read(d)
            if any(here != there for here, there, of in zip(d, back, read, strict=True) if of):
                law = Law.FORWARD_UNDOES_REVERSE.value
                yield (
                    f"{self.edge}: the law {law} fails at d = {d}: reverse gives {u}, and forward "
                    f"of {u} gives {back}; correct one of the formulas"
                )

    def _numbers(self, values: Sequence[Expr]) -> Indices:
        return tuple(int(evaluate(value, dict(self.tables))) for value in values)

    def _holds(self, condition: Any) -> bool:
        return bool(evaluate(condition, dict(self.tables)))


def _expressions(indices: Indices) -> list[Expr]:
    return [Integer(index) for index in indices]
