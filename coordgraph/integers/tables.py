"""Functions that read a table: integers, at least 0, that are known when the kernel runs.

A table is named by a symbol and stands for a list of integers; searches are for rising ones. What
is known of one is its maximum (`Ranges.with_table`); who runs a kernel sees to it that the entries
keep to that.
"""

from bisect import bisect_right
from collections.abc import Sequence
from typing import cast

from sympy import Expr, Symbol
from sympy.core.basic import Basic

from coordgraph.errors import NoEntry
from coordgraph.integers.functions import IntegerFunction, IntegerLike


def _refuse_no_table(table: Basic) -> None:
    if not isinstance(table, Symbol):
        raise TypeError(f"the name of a table expected, got {table!r}")


class Load(IntegerFunction):
    """``table[index]``."""

    @classmethod
    def eval(cls, table: Basic, index: Expr) -> Expr | None:  # pyright: ignore
        """Nothing is known before the kernel runs."""
        _refuse_no_table(table)
        return None

    def _eval_is_nonnegative(self) -> bool:
        return True


class Search(IntegerFunction):
    """The last ``g`` in ``0 .. count - 1`` with ``table[g] <= x``, or 0 where there is none."""

    @classmethod
    def eval(cls, table: Basic, count: Expr, x: Expr) -> Expr | None:  # pyright: ignore
        """Nothing is known before the kernel runs."""
        _refuse_no_table(table)
        return None

    def _eval_is_nonnegative(self) -> bool:
        return True


def load(table: Symbol, index: IntegerLike) -> Expr:
    """``table[index]``, typed as an expression."""
    return cast(Expr, Load(table, index))


def search(table: Symbol, count: IntegerLike, x: IntegerLike) -> Expr:
    """The entry of a rising table that ``x`` comes after, typed as an expression."""
    return cast(Expr, Search(table, count, x))


def read_table(table: Sequence[int], index: int) -> int:
    """The value of a `Load`; NoEntry where the table has no such entry."""
    if not 0 <= index < len(table):
        raise NoEntry(f"entry {index} of a table of {len(table)} entries")
    return int(table[index])


def search_table(table: Sequence[int], count: int, x: int) -> int:
    """The value of a `Search`; NoEntry where the table has not so many entries."""
    if not 1 <= count <= len(table):
        raise NoEntry(f"a search among {count} entries of a table of {len(table)} entries")
    return max(0, bisect_right(table, x, 0, count) - 1)


def tables_in(expr: Basic) -> set[Symbol]:
    """The tables that an expression or condition reads."""
    return {cast(Symbol, node.args[0]) for node in expr.atoms(Load, Search)}
