"""Tables of integers in device memory that index expressions of a kernel read.

A *given* table is an argument of the kernel call; its entries are non-decreasing, unless its rule
is `any` or `distinct`: then they are in any order, and with `distinct` all differ. A *derived*
table is computed by the kernel from its *step*, an expression in earlier tables that is evaluated
at each position. A derived table with the rule `sums` holds prefix sums of the steps: entry 0 is 0,
and entry i + 1 is entry i plus step i. A derived table with the rule `sorts` is an argsort of the
steps: entry i is the position of the i-th largest step.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, NoReturn

from sympy import Expr, Symbol

from coordgraph.errors import LaunchError, NoEntry, VerifyError
from coordgraph.integers import Ranges, evaluate, index_symbol, load, tables_in, to_text

__all__ = [
    "ANY",
    "DISTINCT",
    "RULES",
    "SORTS",
    "SUMS",
    "UNORDERED",
    "Table",
    "TableNeed",
    "place_of",
    "tabulate",
]

RULES = SUMS, SORTS, ANY, DISTINCT = ("sums", "sorts", "any", "distinct")
"""The rules of tables, which say what the entries of a table are.

A derived table is computed from a list of numbers, its steps. `sums`: a derived table holds the
prefix sums of its steps; a given table has non-decreasing entries. `sorts`: a derived table holds
an argsort of its steps in descending order, so entry 0 is the position of the largest step. `any`:
a given table has entries in any order. `distinct`: the same, and no two entries are equal.
"""
UNORDERED = (ANY, DISTINCT)
"""The rules of given tables whose entries may be in any order."""


@dataclass(frozen=True)
class Table:
    """A table of integers in device memory: `length` entries, each between 0 and `maximum`.

    Args:
        name: the name of the table and of its symbol in expressions.
        length, maximum: the number of entries and the largest allowed entry, both expressions in
            launch parameters that the host can evaluate.
        step: for a derived table, a non-negative expression in the symbol `place` (the position)
            and in earlier tables; None for a table that the caller gives.
        note: what the table means, for diagrams and error messages.
        rule: how entries follow from steps: `sums` for prefix sums from 0, or `sorts` for the
            positions of the steps from the largest to the smallest (a stable argsort). A table that
            the caller gives has no steps: its entries are non-decreasing with the rule `sums`,
            in any order with `any`, and in any order but all different with `distinct`.

    Raises:
        VerifyError: `length` or `maximum` reads a table, the rule is unknown, a table with the rule
            `sorts` has no step, or one with `any` or `distinct` has a step.
    """

    name: str
    length: Expr
    maximum: Expr
    step: Expr | None = None
    note: str = ""
    rule: str = SUMS

    def __post_init__(self) -> None:
        if tables_in(self.length) | tables_in(self.maximum):
            raise VerifyError(
                f"table '{self.name}': its length {to_text(self.length)} or its maximum "
                f"{to_text(self.maximum)} reads a table; use launch parameters only"
            )
        if self.rule not in RULES:
            raise VerifyError(
                f"table '{self.name}': rule={self.rule!r} must be one of {', '.join(RULES)}"
            )
        if self.rule == SORTS and self.step is None:
            raise VerifyError(
                f"table '{self.name}' has rule={SORTS!r} but no step to sort by; give a step"
            )
        if self.rule in UNORDERED and self.step is not None:
            raise VerifyError(
                f"table '{self.name}' has a step, but rule={self.rule!r} is for tables that the "
                "caller gives; leave out the step, or choose another rule"
            )

    @property
    def symbol(self) -> Symbol:
        """The symbol of the table in expressions: the first argument of `load` and `search`."""
        return index_symbol(self.name)

    @property
    def place(self) -> Symbol:
        """The symbol, in the expression `step`, of the position at which `step` is evaluated."""
        return place_of(self.name)

    @property
    def derived(self) -> bool:
        """Whether the kernel computes the table from earlier tables; else the caller gives it."""
        return self.step is not None

    @property
    def rises(self) -> bool:
        """Whether the entries are non-decreasing: True for the rule `sums`."""
        return self.rule == SUMS

    @property
    def steps(self) -> Expr:
        """How often a derived table's formula `step` is evaluated: at position 0, 1, and so on."""
        return self.length - 1 if self.rule == SUMS else self.length

    def problems(self, ranges: Ranges) -> Iterator[str]:
        """Sentences about contradictions in the table's declaration.

        A table with the rule `sorts` holds every position, so its `maximum` must be at least
        `length - 1`.

        Args:
            ranges: the known ranges of the launch parameters.
        """
        if self.rule == SORTS and not ranges.prove_nonnegative(self.maximum - self.length + 1):
            yield (
                f"table '{self.name}' sorts {to_text(self.length)} positions, so its entries reach "
                f"{to_text(self.length - 1)}, but its declared maximum is {to_text(self.maximum)}; "
                f"declare the maximum {to_text(self.length - 1)}"
            )

    def inverts(self, other: Table) -> bool:
        """Whether this table is declared as the inverse permutation of `other`.

        That is so if this table has the rule `sorts` and its step is a constant minus
        `other[place]`: sorting the entries of a permutation in ascending order inverts it.
        """
        if self.step is None or self.rule != SORTS:
            return False
        return self.place not in (self.step + load(other.symbol, self.place)).free_symbols

    def known_in(self, ranges: Ranges) -> Ranges:
        """A copy of `ranges` that also knows the declared bounds and monotonicity of the table."""
        if not self.rises:
            return ranges.with_table(self.symbol, self.maximum, step=None)
        least = None if self.step is None else ranges.interval(self.step)[0]
        step = max(least or 0, 0)
        return ranges.with_table(self.symbol, self.maximum, from_zero=self.derived, step=step)

    def checked(self, entries: Sequence[int], values: Mapping[str, Any]) -> tuple[int, ...]:
        """Check the entries of one launch against the table's declaration, and return them as ints.

        Args:
            entries: the table's entries in one launch.
            values: the values of the launch parameters, by name.

        Raises:
            LaunchError: the number of entries is not `length`, an entry is negative or larger than
                `maximum`, the entries of a table with the rule `sums` decrease, or two entries of a
                table with the rule `distinct` are equal.
        """
        found = tuple(int(entry) for entry in entries)
        length, most = int(evaluate(self.length, values)), int(evaluate(self.maximum, values))
        if len(found) != length:
            raise LaunchError(
                f"{self.name} has {len(found)} entries, but the kernel needs {length}; "
                f"give {length} entries"
            )
        for i, (before, entry) in enumerate(zip((0, *found), found, strict=False)):
            if self.rises and entry < before:
                below = f"less than {self.name}[{i - 1}] = {before}" if i else "negative"
                raise LaunchError(
                    f"{self.name}[{i}] = {entry} is {below}; entries must be non-decreasing "
                    "and at least 0"
                )
        if found and (least := min(found)) < 0:
            raise LaunchError(
                f"{self.name}[{found.index(least)}] = {least} is negative; give entries >= 0"
            )
        if found and (largest := max(found)) > most:
            raise LaunchError(
                f"{self.name}[{found.index(largest)}] = {largest} is larger than {most}, the "
                f"maximum in this launch; give entries up to {most}"
            )
        if self.rule == DISTINCT and len({*found}) < len(found):
            self._refuse_repeated(found)
        return found

    def _refuse_repeated(self, entries: Sequence[int]) -> NoReturn:
        """Raise LaunchError for the first entry that is equal to an earlier one."""
        seen: dict[int, int] = {}
        at = next(i for i, entry in enumerate(entries) if seen.setdefault(entry, i) != i)
        raise LaunchError(
            f"{self.name}[{at}] = {entries[at]} is equal to {self.name}[{seen[entries[at]]}]; give "
            "entries that all differ"
        )


@dataclass(frozen=True, slots=True)
class TableNeed:
    """The properties that a table must have for the index formulas of an edge to be valid.

    Args:
        table: the name of the table.
        length: the number of entries that the table must have; None if any number is right.
        rule: `sums` if the entries must be non-decreasing, `sorts` if they must be a permutation of
            all positions, `any` if they may be in any order.
        inverse_of: the name of a table whose inverse permutation the table must be, or ''.
        from_zero: whether the first entry must be 0.
        below: an exclusive upper bound that all entries must have; None if there is none.
    """

    table: str
    length: Expr | None
    rule: str = SUMS
    inverse_of: str = ""
    from_zero: bool = False
    below: Expr | None = None

    def unmet(self, tables: Mapping[str, Table], ranges: Ranges) -> Iterator[str]:
        """Sentences about the needed properties that the tables' declarations do not prove.

        Args:
            tables: the declared tables, by name.
            ranges: the known ranges of the launch parameters.
        """
        table = tables.get(self.table)
        if table is None:
            missing = f"there is no table '{self.table}'" if self.table else "it names no table"
            yield f"{missing}; the kernel has {', '.join(tables) or 'none'}"
            return
        if self.rule == ANY:
            pass  # the edge accepts entries in any order, so the table may have any rule
        elif table.rule != self.rule:
            yield _wrong_rule(table, self.rule)
        elif self.from_zero and not table.derived:
            yield (
                f"the table '{table.name}' must begin with 0, but the caller gives its entries; "
                "name a derived table with the rule 'sums'"
            )
        wanted, found = self.length, table.length
        if wanted is not None and not ranges.prove_equal(wanted, found):
            yield (
                f"the table '{table.name}' must have {to_text(wanted)} entries, but it has "
                f"{to_text(found)}; correct its length, or name another table"
            )
        if self.below is not None and not ranges.prove_less(table.maximum, self.below):
            yield (
                f"entries of the table '{table.name}' may be {to_text(table.maximum)}, but must be "
                f"less than {to_text(self.below)}; lower its maximum, or name another table"
            )
        other = tables.get(self.inverse_of)
        if other is not None and not (table.inverts(other) or other.inverts(table)):
            step = to_text(other.length - 1 - load(other.symbol, index_symbol("place")))
            yield (
                f"the table '{table.name}' is not declared as the inverse of '{other.name}'; name "
                f"a table with the rule 'sorts' and the step {step}"
            )


def _wrong_rule(table: Table, needed: str) -> str:
    """The message that the table has another rule than `needed`, which is `sums` or `sorts`."""
    if needed == SORTS:
        kind = "has the rule 'sums'" if table.derived else "is given by the caller"
        return (
            f"the table '{table.name}' must be a permutation, but it {kind}; name a table with the "
            "rule 'sorts'"
        )
    given = "that the caller gives, or one " if table.rule == SORTS else ""
    return (
        f"the entries of the table '{table.name}' must be non-decreasing, but it has the rule "
        f"'{table.rule}'; name a table {given}with the rule 'sums'"
    )


def place_of(name: str) -> Symbol:
    """The symbol `NAME.at`, which stands for 0, 1, 2, … in the formula of the derived table `name`.

    The formula (`Table.step`) is evaluated once for each of these positions.
    """
    return index_symbol(f"{name}.at")


def tabulate(
    tables: Sequence[Table], given: Mapping[str, Sequence[int]], values: Mapping[str, int]
) -> dict[str, tuple[int, ...]]:
    """Compute the entries of every table of a launch, given and derived, and check them.

    Args:
        tables: the declared tables; each reads only tables before it.
        given: the entries of each table that the caller gives, by name.
        values: the values of launch parameters that the host knows, by name.

    Raises:
        LaunchError: a table is missing, unknown, or contradicts its declaration.
    """
    if unknown := sorted(given.keys() - {t.name for t in tables if not t.derived}):
        known = ", ".join(t.name for t in tables if not t.derived)
        raise LaunchError(
            f"not a table of this kernel: {', '.join(unknown)}; leave it out, or give one of: "
            f"{known or 'none'}"
        )
    found: dict[str, tuple[int, ...]] = {}
    for table in tables:
        entries: Sequence[int]
        if table.step is None:
            if table.name not in given:
                raise LaunchError(
                    f"the table '{table.name}' ({table.note}) is missing; give its entries"
                )
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
    """Evaluate `step`, the formula of a derived table, at every position: 0, 1, 2, and so on.

    Args:
        table: the table.
        step: the expression that is evaluated at each position.
        values: the launch parameters and the entries of earlier tables, by name.

    Raises:
        LaunchError: a step reads an earlier table outside its bounds.
    """
    steps: list[int] = []
    try:
        for i in range(int(evaluate(table.steps, values))):
            steps.append(int(evaluate(step, {**values, table.place.name: i})))
    except NoEntry as error:
        raise LaunchError(
            f"the formula `step` of table '{table.name}' at position {len(steps)} reads outside an "
            f"earlier table: {error}"
        ) from error
    return steps
