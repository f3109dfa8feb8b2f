"""The functions `Load` and `Search`, with which index expressions read a table of integers.

A table is an array of non-negative integers. A symbol names the table; the entries are known only
when the kernel runs. `Load` reads an entry; `Search` searches a table whose entries are
non-decreasing. `Ranges.with_table` declares bounds of the entries for proofs;
`coordgraph.tables.Table.checked` checks given entries at launch.
"""

from bisect import bisect_right
from collections.abc import Sequence
from typing import cast

from sympy import Expr, Symbol
from sympy.core.basic import Basic

from coordgraph.errors import NoEntry
from coordgraph.integers.functions import IntegerFunction, IntegerLike
from coordgraph.integers.polynomials import nodes_of


def _refuse_no_table(table: Basic) -> None:
    if not isinstance(table, Symbol):
        raise TypeError(
            f"the symbol of a table is needed, but {table!r} is given; make one by "
            "index_symbol(name)"
        )


class Load(IntegerFunction):
    """``Load(table, index)``: the entry ``table[index]``."""

    @classmethod
    def eval(cls, table: Basic, index: Expr) -> Expr | None:  # pyright: ignore
        """Check the arguments; returns None (no simplification), because entries are unknown."""
        _refuse_no_table(table)
        return None

    def _eval_is_nonnegative(self) -> bool:
        return True


class Search(IntegerFunction):
    """``Search(table, count, x)``: the last ``g < count`` with ``table[g] <= x``, or 0 if none."""

    @classmethod
    def eval(cls, table: Basic, count: Expr, x: Expr) -> Expr | None:  # pyright: ignore
        """Check the arguments; returns None (no simplification), because entries are unknown."""
        _refuse_no_table(table)
        return None

    def _eval_is_nonnegative(self) -> bool:
        return True


def load(table: Symbol, index: IntegerLike) -> Expr:
    """The expression ``table[index]``; ``table`` is the symbol that names a table."""
    return cast(Expr, Load(table, index))


def search(table: Symbol, count: IntegerLike, x: IntegerLike) -> Expr:
    """The expression for the last ``g < count`` with ``table[g] <= x``, or 0 if there is none.

    The first ``count`` entries of the table must be non-decreasing.
    """
    return cast(Expr, Search(table, count, x))


def read_table(table: Sequence[int], index: int) -> int:
    """The entry ``table[index]``.

    Raises:
        NoEntry: the index is out of bounds.
    """
    if not 0 <= index < len(table):
        raise NoEntry(
            f"entry {index} is read from a table that has {len(table)} entries; give a table with "
            "more entries, or correct the index"
        )
    return int(table[index])


def search_table(table: Sequence[int], count: int, x: int) -> int:
    """The last ``g < count`` with ``table[g] <= x``, or 0 if there is none.

    Raises:
        NoEntry: ``count`` is out of bounds.
    """
    if not 1 <= count <= len(table):
        raise NoEntry(
            f"a search covers the first {count} entries of a table that has {len(table)}; search "
            "at least one entry, and at most all of them"
        )
    return max(0, bisect_right(table, x, 0, count) - 1)


def tables_in(expr: Basic) -> set[Symbol]:
    """The symbols of the tables that an expression or a condition reads or searches."""
    return {cast(Symbol, node.args[0]) for node in nodes_of(expr, Load, Search)}
