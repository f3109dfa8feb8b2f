"""Tables: integers that are known when a kernel runs, and parameters that follow from them.

A *given* table is an argument of the call, in the memory of the device; its entries rise. A
*derived* one follows from others by a rule. Prefix sums rise, too: entry 0 is 0, entry i + 1 is
entry i plus the table's step at i. Or entry i is the place of the i-th largest step.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from sympy import Expr, Symbol

from coordgraph.errors import LaunchError, NoEntry, VerifyError
from coordgraph.integers import Ranges, evaluate, index_symbol, load, tables_in, to_text

__all__ = ["RULES", "SORTS", "SUMS", "Table", "TableNeed", "place_of", "tabulate"]

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

    def problems(self, ranges: Ranges) -> Iterator[str]:
        """What contradicts itself: an order holds every place, so the last one is in it."""
        if self.rule == SORTS and not ranges.prove_nonnegative(self.maximum - self.length + 1):
            yield (
                f"table '{self.name}' holds every place of {to_text(self.length)}, and they are "
                f"declared to be at most {to_text(self.maximum)}; declare "
                f"<= {to_text(self.length - 1)}"
            )

    def inverts(self, other: Table) -> bool:
        """Whether an order is declared as the inverse of another: from its largest entry back."""
        if self.step is None or self.rule != SORTS:
            return False
        return self.place not in (self.step + load(other.symbol, self.place)).free_symbols

    def known_in(self, ranges: Ranges) -> Ranges:
        """The ranges with what is declared of the entries."""
        if not self.rises:
            return ranges.with_table(self.symbol, self.maximum, step=None)
        least = None if self.step is None else ranges.interval(self.step)[0]
        step = max(least or 0, 0)
        return ranges.with_table(self.symbol, self.maximum, from_zero=self.derived, step=step)

    def checked(self, entries: Sequence[int], values: Mapping[str, Any]) -> tuple[int, ...]:
        """The entries as whole numbers.

        Raises:
            LaunchError: they are not what is declared: so many, at most the maximum, and rising
                unless they are an order.
        """
        found = tuple(int(entry) for entry in entries)
        length, most = int(evaluate(self.length, values)), int(evaluate(self.maximum, values))
        if len(found) != length:
            raise LaunchError(f"{self.name} has {len(found)} entries, {length} are needed")
        for i, (before, entry) in enumerate(zip((0, *found), found, strict=False)):
            if self.rises and entry < before:
                below = f"after {before}" if i else "below 0"
                raise LaunchError(f"{self.name}[{i}] = {entry} is {below}; entries must rise")
        if found and (largest := max(found)) > most:
            raise LaunchError(f"{self.name}[{found.index(largest)}] = {largest} is over {most}")
        return found


@dataclass(frozen=True, slots=True)
class TableNeed:
    """What an edge needs of a table that it names, for its formulas to have values.

    Args:
        table: its name.
        length: how many entries it has; None where that is the size of a dimension without one.
        rule: `sums` where its entries must rise, or `sorts` where it must hold every place once.
        inverse_of: the table, if there is one, whose inverse it must be.
        from_zero: its first entry must be 0.
    """

    table: str
    length: Expr | None
    rule: str = SUMS
    inverse_of: str = ""
    from_zero: bool = False

    def unmet(self, tables: Mapping[str, Table], ranges: Ranges) -> Iterator[str]:
        """What of that does not hold, or does not follow from what is declared."""
        table = tables.get(self.table)
        if table is None:
            missing = f"there is no table '{self.table}'" if self.table else "it names no table"
            yield f"{missing}; there are {', '.join(tables) or 'none'}"
            return
        if table.rule != self.rule:
            yield _of_another_rule(table)
        elif self.from_zero and not table.derived:
            yield (
                f"the entries of the table '{table.name}' must begin at 0, and it is given; name "
                "one of sums"
            )
        wanted, found = self.length, table.length
        if wanted is not None and not ranges.prove_equal(wanted, found):
            yield (
                f"the length of the table '{table.name}' must be {to_text(wanted)}, and it is "
                f"{to_text(found)}; correct it, or name another table"
            )
        other = tables.get(self.inverse_of)
        if other is not None and not (table.inverts(other) or other.inverts(table)):
            step = to_text(other.length - 1 - load(other.symbol, index_symbol("place")))
            yield (
                f"the table '{table.name}' is not declared as the inverse of '{other.name}'; name "
                f"one that sorts {step}"
            )


def _of_another_rule(table: Table) -> str:
    if table.rises:
        kind = "adds up its steps" if table.derived else "is given, and rises"
        return (
            f"the table '{table.name}' must hold every place once, and it {kind}; name one that "
            "sorts"
        )
    return (
        f"the entries of the table '{table.name}' must rise, and it sorts; name a given table, or "
        "one of sums"
    )


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
            steps = _steps(table, table.step, {**values, **found})
            if table.rule == SORTS:
                entries = sorted(range(len(steps)), key=lambda i: -steps[i])
            else:
                entries = tuple(accumulate(steps, initial=0))
        found[table.name] = table.checked(entries, values)
    return found


def _steps(table: Table, step: Expr, values: Mapping[str, Any]) -> list[int]:
    """The step at every place; LaunchError where one reads what an earlier table has not."""
    steps: list[int] = []
    try:
        for i in range(int(evaluate(table.steps, values))):
            steps.append(int(evaluate(step, {**values, table.place.name: i})))
    except NoEntry as error:
        raise LaunchError(
            f"{table.name}: its step at {len(steps)} reads {error}; their lengths do not fit"
        ) from error
    return steps
