"""`check_laws`: an edge held to what it says of itself, by trying every index."""

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
MOST_PROBLEMS = 5


def check_laws(
    edge: Edge,
    sizes: Mapping[str, int],
    tables: Mapping[str, Sequence[int]] | None = None,
    *,
    among: Callable[[Indices], bool] | None = None,
) -> None:
    """Hold an edge to its size rule, its guard and the laws that it declares, at every index.

    What the guard lets through must be inside the upstream dimensions; where the edge declares
    that `reverse` undoes `forward`, every upstream index must be reached, and found again.

    Args:
        edge: the edge; ids are the names of its operands.
        sizes: of every operand, by id. Every index is tried, so take small ones.
        tables: the entries of tables that its formulas read.
        among: whether there is such an upstream index, where not all inside the sizes are.

    Raises:
        VerifyError: with the first few indices at which something does not hold.
    """
    trial = Trial.of(edge, sizes, tables or {}, among)
    if problems := list(islice(trial.problems(), MOST_PROBLEMS)):
        raise VerifyError(*problems)


def _all(indices: Indices) -> bool:
    return True


@dataclass(frozen=True)
class Trial:
    """An edge with numbers for sizes and tables, to try its formulas with."""

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
        """Sizes are by id; VerifyError where one is missing or no size."""

        def side(names: Iterable[str]) -> Indices:
            return tuple(
                whole(sizes.get(name), f"{edge}: the size of '{name}'", least=0) for name in names
            )

        return cls(edge, side(edge.upstream), side(edge.downstream), tables, among or _all)

    @property
    def sizes(self) -> Sizes:
        """As formulas take them."""
        return Sizes(tuple(map(Integer, self.above)), tuple(map(Integer, self.below)))

    def forward(self, indices: Indices) -> Indices:
        """The downstream indices."""
        return self._numbers(self.edge.forward(_expressions(indices), self.sizes, Ranges()))

    def reverse(self, indices: Indices) -> Indices:
        """The upstream indices."""
        return self._numbers(self.edge.reverse(_expressions(indices), self.sizes, Ranges()))

    def guarded(self, indices: Indices) -> bool:
        """Whether the guard holds for downstream indices."""
        below = _expressions(indices)
        above = self.edge.reverse(below, self.sizes, Ranges())
        return all(self._holds(part) for part in self.edge.guard(above, below, self.sizes))

    def read(self, indices: Indices) -> tuple[bool, ...]:
        """Which of the downstream indices `reverse` depends on."""
        return tuple(map(self._holds, self.edge.reads_when(_expressions(indices))))

    @property
    def upstream(self) -> list[Indices]:
        """Every upstream index."""
        return [u for u in product(*map(range, self.above)) if self.among(u)]

    @property
    def downstream(self) -> list[Indices]:
        """Every downstream index inside the sizes, padding too; what is not read is any number."""

        def inside(indices: Indices) -> bool:
            each = zip(indices, self.below, self.read(indices), strict=True)
            return all(index < size or not read for index, size, read in each)

        return [d for d in product(*(range(max(size, 1)) for size in self.below)) if inside(d)]

    def problems(self) -> Iterator[str]:
        """All that does not hold."""
        yield from self._size_rule()
        yield from self._tables()
        reached = {self.reverse(d) for d in self.downstream if self.guarded(d)}
        every = set(self.upstream)
        for u in sorted(reached - every):
            yield f"{self.edge}: the guard lets {u} through, which is outside {self.above}"
        if Law.REVERSE_UNDOES_FORWARD in self.edge.laws:
            for u in sorted(every - reached):
                yield f"{self.edge}: no downstream index leads to {u}"
            yield from self._reverse_undoes_forward()
        if Law.FORWARD_UNDOES_REVERSE in self.edge.laws:
            yield from self._forward_undoes_reverse()

    def _size_rule(self) -> Iterator[str]:
        for rule in self.edge.size_rule(self.sizes):
            if decide(rule, Ranges()) is False:
                yield f"{self.edge}: sizes {self.above} and {self.below} break its rule"

    def _tables(self) -> Iterator[str]:
        """Tables that the formulas read and that a graph with the edge would not be checked for."""
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
            yield f"{self.edge}: reads the table '{name}', of which its table_needs says nothing"

    def _reverse_undoes_forward(self) -> Iterator[str]:
        for u in self.upstream:
            d = self.forward(u)
            if (back := self.reverse(d)) != u:
                law = Law.REVERSE_UNDOES_FORWARD.value
                yield f"{self.edge}: {law} does not hold: u = {u} becomes {d}, and that {back}"

    def _forward_undoes_reverse(self) -> Iterator[str]:
        for d in self.downstream:
            if not self.guarded(d):
                continue
            u = self.reverse(d)
            back, read = self.forward(u), self.read(d)
            if any(here != there for here, there, of in zip(d, back, read, strict=True) if of):
                law = Law.FORWARD_UNDOES_REVERSE.value
                yield f"{self.edge}: {law} does not hold: d = {d} becomes {u}, and that {back}"

    def _numbers(self, values: Sequence[Expr]) -> Indices:
        return tuple(int(evaluate(value, dict(self.tables))) for value in values)

    def _holds(self, condition: Any) -> bool:
        return bool(evaluate(condition, dict(self.tables)))


def _expressions(indices: Indices) -> list[Expr]:
    return [Integer(index) for index in indices]
