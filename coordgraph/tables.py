"""Tables: integers that are known when a kernel runs, and parameters that follow from them.

A *given* table is an argument of the call, in the memory of the device; its entries rise. A
*derived* one follows from others by a rule. Prefix sums rise, too: entry 0 is 0, entry i + 1 is
entry i plus the table's step at i. Or entry i is the place of the i-th largest step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from sympy import Expr, Symbol

from coordgraph.errors import LaunchError, VerifyError
from coordgraph.integers import Ranges, evaluate, index_symbol, tables_in

__all__ = ["RULES", "SORTS", "SUMS", "Table", "place_of", "tabulate"]

RULES = SUMS, SORTS = ("sums", "sorts")
"""How derived tables follow from their steps."""


@dataclass(frozen=True)
class Table:
    """A table of `length` entries, none of which exceeds `maximum`; both are host's expressions.

    Args:
        name: also of its symbol in expressions.
        length, maximum: expressions in the parameters that the host knows.
        step: of a derived table; reads earlier tables at `place`, and is at least 0.
        rule: what is made of the steps: `sums`, or `sorts`: the places of the steps from the
            largest one on, equal ones in their order.
    """

    name: str
    length: Expr
    maximum: Expr
    step: Expr | None = None
    note: str = ""
    rule: str = SUMS

    def __post_init__(self) -> None:
        if tables_in(self.length) | tables_in(self.maximum):
            raise VerifyError(f"table '{self.name}': the host must know its length and maximum")
        if self.rule not in RULES:
            raise VerifyError(
                f"table '{self.name}': rule={self.rule!r} is none of {', '.join(RULES)}"
            )
        if self.rule == SORTS and self.step is None:
            raise VerifyError(f"table '{self.name}' sorts nothing: it has no step")

    @property
    def symbol(self) -> Symbol:
        """The table as it stands in `load` and `search`."""
        return index_symbol(self.name)

    @property
    def place(self) -> Symbol:
        """The entry at hand, in the step."""
        return place_of(self.name)

    @property
    def derived(self) -> bool:
        """Whether the kernel works it out itself."""
        return self.step is not None

    @property
    def rises(self) -> bool:
        """No entry is less than the one before."""
        return self.rule == SUMS

    @property
    def steps(self) -> Expr:
        """In how many places a derived table has a step."""
        return self.length - 1 if self.rule == SUMS else self.length

    def known_in(self, ranges: Ranges) -> Ranges:
        """The ranges with what is declared of the entries."""
        if not self.rises:
            return ranges.with_table(self.symbol, self.maximum, step=None)
        least = None if self.step is None else ranges.interval(self.step)[0]
        step = max(least or 0, 0)
        return ranges.with_table(self.symbol, self.maximum, from_zero=self.derived, step=step)

    def checked(self, entries: Sequence[int], values: Mapping[str, Any]) -> tuple[int, ...]:
        """The entries of a rising table as whole numbers.

        Raises:
            LaunchError: they are not what is declared: so many, rising, at most the maximum.
        """
        found = tuple(int(entry) for entry in entries)
        length, most = int(evaluate(self.length, values)), int(evaluate(self.maximum, values))
        if len(found) != length:
            raise LaunchError(f"{self.name} has {len(found)} entries, {length} are needed")
        for i, (before, entry) in enumerate(zip((0, *found), found, strict=False)):
            if entry < before:
                below = f"after {before}" if i else "below 0"
                raise LaunchError(f"{self.name}[{i}] = {entry} is {below}; entries must rise")
        if found and found[-1] > most:
            raise LaunchError(f"{self.name}[{length - 1}] = {found[-1]} is over {most}")
        return found


def place_of(name: str) -> Symbol:
    """The symbol of the entry at hand in the step of a table."""
    return index_symbol(f"{name}.at")


def tabulate(
    tables: Sequence[Table], given: Mapping[str, Sequence[int]], values: Mapping[str, int]
) -> dict[str, tuple[int, ...]]:
    """All tables, derived ones too, checked.

    Args:
        tables: in an order in which each reads only earlier ones.
        given: the entries of the others, by name.
        values: of the parameters that the host knows.

    Raises:
        LaunchError: a table is missing, unknown, or not as declared.
    """
    if unknown := sorted(given.keys() - {t.name for t in tables if not t.derived}):
        raise LaunchError(f"not a table of this kernel: {', '.join(unknown)}")
    found: dict[str, tuple[int, ...]] = {}
    for table in tables:
        entries: Sequence[int]
        if table.step is None:
            if table.name not in given:
                raise LaunchError(f"the table '{table.name}' is missing ({table.note})")
            entries = given[table.name]
        else:
            steps = [
                int(evaluate(table.step, {**values, **found, table.place.name: i}))
                for i in range(int(evaluate(table.steps, values)))
            ]
            if table.rule == SORTS:
                places = sorted(range(len(steps)), key=lambda i: -steps[i])
                found[table.name] = tuple(places)
                continue
            entries = tuple(accumulate(steps, initial=0))
        found[table.name] = table.checked(entries, values)
    return found
