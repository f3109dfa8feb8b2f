"""Compile index expressions to Python functions of integers, or of numpy grids for a whole tile."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, cast

import numpy as np
import numpy.typing as npt
from sympy import Expr, Symbol
from sympy.core.basic import Basic
from sympy.core.relational import Eq, Ne, Relational
from sympy.logic.boolalg import And, Boolean, Not, Or, true

from coordgraph.errors import EvaluationError
from coordgraph.integers import IntegerFunction, compile_function, nodes_of, symbols_of
from coordgraph.integers.columns import compile_columns

__all__ = ["Elements", "Environment", "Formula", "Slots", "linear"]

Environment = list[Any]
"""The values of a kernel's symbols for one workgroup, as a list; `Slots` maps symbols to positions.

The value of a table's symbol is the sequence of the table's entries.
"""


class Slots:
    """Maps each symbol of a kernel to the position of its value in an `Environment`."""

    def __init__(self) -> None:
        self._places: dict[Symbol, int] = {}

    def add(self, symbol: Symbol) -> int:
        """The position of a symbol's value in an `Environment`; new symbols get a new position."""
        return self._places.setdefault(symbol, len(self._places))

    def of(self, symbol: Symbol) -> int:
        """The position of a symbol's value in an `Environment`.

        Raises:
            EvaluationError: the symbol has no position, because `add` was never called with it.
        """
        if symbol not in self._places:
            raise EvaluationError(
                f"the symbol '{symbol}' has no value here: it is neither a parameter nor bound by "
                "an enclosing operation; bind it with For, SetCoordinate, Locate or Assign"
            )
        return self._places[symbol]

    def find(self, symbol: Symbol) -> int | None:
        """The position of a symbol's value in an `Environment`; None if `add` has not given one."""
        return self._places.get(symbol)

    def __len__(self) -> int:
        return len(self._places)


class Formula:
    """Integer expressions and conditions, compiled to one Python function of an `Environment`.

    `roots` has the expressions and conditions, which are compiled when they are first evaluated.
    """

    __slots__ = ("_columns", "_function", "_places", "_symbols", "roots")

    def __init__(self, expressions: Iterable[Basic], slots: Slots) -> None:
        self.roots = tuple(expressions)
        self._symbols = sorted(frozenset[Symbol]().union(*map(symbols_of, self.roots)), key=str)
        self._function: Callable[..., tuple[int, ...]] | None = None
        self._columns: Callable[..., tuple[Any, ...]] | None = None
        self._places = tuple(slots.of(symbol) for symbol in self._symbols)

    def __call__(self, env: Environment) -> tuple[int, ...]:
        """Evaluate all expressions, in their order, for the symbols' values in `env`."""
        if self._function is None:
            self._function = compile_function(self.roots, self._symbols)
        return self._function(*[env[place] for place in self._places])

    def columns(self, value: Callable[[int], Any]) -> tuple[Any, ...]:
        """Evaluate all expressions for many workgroups at once; see `compile_columns`.

        Args:
            value: a function that is called with a symbol's position in the environment, and
                returns the symbol's values: an array with an entry for each workgroup, or one
                integer for all workgroups.
        """
        if self._columns is None:
            self._columns = compile_columns(self.roots, self._symbols)
        return self._columns(*map(value, self._places))


class Elements:
    """Computes the offsets of a tile's elements in a tensor, and which of them are not padding.

    Args:
        offset: the offset of one element from the start of the tensor, in elements.
        guard: the condition under which that element is inside the tensor.
        axes: the symbols of the element's indices inside the tile, one per axis.
        extents: the size of the tile along each of `axes`, in elements.
        slots: the positions in an `Environment` of all other symbols of `offset` and `guard`.
    """

    def __init__(
        self,
        offset: Expr,
        guard: Boolean,
        axes: Sequence[Symbol],
        extents: Sequence[int],
        slots: Slots,
    ) -> None:
        parts = guard.args if isinstance(guard, And) else () if guard == true else (guard,)
        self._parts = [_OnGrid(part, axes, slots) for part in (offset, *parts)]
        self._grid = np.ogrid[tuple(slice(extent) for extent in extents)]
        self.extents = tuple(extents)

    def __call__(self, env: Environment) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
        """Offsets and mask of the elements of a tile, as two arrays of the tile's shape.

        Offsets are in elements from the start of the tensor. The mask is True where an element is
        inside the tensor; where it is False, the offset is meaningless.
        """
        offset, *conditions = (part(env, self._grid) for part in self._parts)
        mask = np.ones(self.extents, np.bool_)
        for condition in conditions:
            mask &= np.asarray(condition, np.bool_)
        return np.broadcast_to(np.asarray(offset, np.int64), self.extents), mask


class _OnGrid:
    """An expression, compiled to be evaluated for all elements of a tile.

    Sums and products are evaluated by numpy for the whole tile. An expression that applies an
    integer function such as FloorDiv to an index inside the tile is evaluated in Python, element by
    element.
    """

    def __init__(self, expr: Basic, axes: Sequence[Symbol], slots: Slots) -> None:
        symbols = sorted(symbols_of(expr) - set(axes), key=str)
        self._places = tuple(slots.of(symbol) for symbol in symbols)
        self._function = compile_function([expr], [*symbols, *axes])
        self._by_element = any(
            not symbols_of(node).isdisjoint(axes)
            for node in nodes_of(expr, IntegerFunction, And, Or, Not)
        )

    def __call__(self, env: Environment, grid: Sequence[npt.NDArray[Any]]) -> Any:
        values = [env[place] for place in self._places]
        if not self._by_element:
            return self._function(*values, *grid)[0]
        function: Callable[..., Any] = np.frompyfunc(
            lambda *at: self._function(*values, *(int(i) for i in at))[0], len(grid), 1
        )
        return function(*grid)


def linear(guard: Boolean, symbol: Symbol) -> bool:
    """True if `guard` is a conjunction of inequalities, each linear in `symbol` or without it."""
    for part in guard.args if isinstance(guard, And) else (guard,):
        if symbol not in symbols_of(part):
            continue
        if not isinstance(part, Relational) or isinstance(part, Eq | Ne):
            return False
        left, right = cast(tuple[Expr, Expr], part.args)
        difference = (left - right).expand()
        slope = cast(Expr, difference.coeff(symbol))
        rest = (difference - slope * symbol).expand()
        if symbol in symbols_of(slope) | symbols_of(rest):
            return False
    return True
