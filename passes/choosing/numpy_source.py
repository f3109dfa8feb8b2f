"""Generate NumPy source for integer expressions, to evaluate them for whole columns in float64.

Integer quotients are exact for integers a < 2**53 and b > 0: if the exact quotient is less than an
integer, the quotient rounded to float64 is less than that integer too. So `floor(a / b)` is right.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sympy import Integer, Symbol
from sympy.core.add import Add
from sympy.core.basic import Basic
from sympy.core.mul import Mul
from sympy.core.power import Pow
from sympy.core.relational import Relational
from sympy.logic.boolalg import And, BooleanAtom, Not, Or

from coordgraph.integers import BitXor, FloorDiv, FloorMod, Maximum, Minimum, Select
from coordgraph.integers.text import comparison_sign
from passes.choosing.tally import Doublings

__all__ = ["SCOPE", "Statements"]

Column = NDArray[np.float64]
"""A column of numbers: a one-dimensional array with one entry for each row or each workgroup."""


def _xor(a: Column, b: Column) -> Column:
    """The bitwise exclusive or of integers that are stored as floats."""
    whole = np.asarray(a, np.int64), np.asarray(b, np.int64)
    return np.bitwise_xor(*whole).astype(np.float64)


def _doublings(a: Column, b: Column) -> Column:
    """For each row, the number of doublings of the integer `a` until it is at least `b`."""
    return np.ceil(np.log2(np.maximum(b, a) / a))


SCOPE: dict[str, Any] = {
    "floor": np.floor,
    "xor": _xor,
    "doublings": _doublings,
    "minimum": np.minimum,
    "maximum": np.maximum,
    "where": np.where,
}
"""The functions that the generated source calls, by their names in the source."""
_CALLS: dict[type[Basic], str] = {
    FloorDiv: "floor({} / {})",
    BitXor: "xor({}, {})",
    Doublings: "doublings({}, {})",
    Minimum: "minimum({}, {})",
    Maximum: "maximum({}, {})",
    Select: "where({}, {}, {})",
    Not: "~({})",
}
"""Template of the source for each kind of expression; `{}` stands for an argument."""
_NAME = re.compile(r"[A-Za-z_]\w*")
"""Pattern of a name in the generated source."""
_KEPT = frozenset({"spread", "True", "False"})
"""Names for which the generated source has no `del` statement; it deletes every other name after
the name's last use."""
_JOINED: dict[type[Basic], str] = {Mul: " * ", Pow: "**", And: " & ", Or: " | "}
"""For each kind of expression, the operator that joins its arguments in the source."""


class Statements:
    """Python source that computes expressions for many problems and all workgroups of each.

    A column has one entry for each problem (a row of a table), or one for each workgroup of each
    problem (a lane). A value that all workgroups of a problem share is computed once for the
    problem, then repeated (`spread`) for its workgroups. Subexpressions that are used twice are
    computed once.

    Args:
        values: named expressions of the inputs and of earlier names.
        inputs: the Python name of each symbol that is a column with an entry for each problem.
        lane: the symbol for the number of a workgroup, from 0, in its launch.
    """

    def __init__(
        self, values: Mapping[Symbol, Basic], inputs: Mapping[Symbol, str], lane: Symbol
    ) -> None:
        self.rows: list[str] = []
        self.lanes: list[str] = []
        self._row_names: dict[Basic, str] = {**inputs}
        self._lane_names: dict[Basic, str] = {lane: lane.name}
        self._varying: dict[Basic, bool] = {lane: True}
        self._uses = Counter[Basic]()
        divided = {symbol: _without_remainders(value) for symbol, value in values.items()}
        for value in dict.fromkeys(divided.values()):
            self._count(value)
        for symbol, value in divided.items():
            if self.varies(value):
                self._varying[symbol] = True
                self.lanes.append(f"{symbol.name} = {_text(value, self._lane)}")
                self._lane_names[symbol] = self._lane_names[value] = symbol.name
            else:
                self.rows.append(f"{symbol.name} = {_text(value, self._row)}")
                self._row_names[symbol] = self._row_names[value] = symbol.name

    def varies(self, expr: Basic) -> bool:
        """Whether the value of an expression differs between the workgroups of a problem."""
        if expr not in self._varying:
            self._varying[expr] = any(self.varies(part) for part in expr.args)
        return self._varying[expr]

    def text(self, expr: Basic) -> str:
        """NumPy source of an expression that contains only inputs and named values."""
        return self._lane(expr) if self.varies(expr) else self._row(expr)

    def function(self, head: str, results: Iterable[Basic]) -> str:
        """The source of a function that computes the values and returns the results.

        Columns are deleted after their last use, so that new columns reuse memory that is still in
        the CPU's caches.

        Args:
            head: the source line with `def`, the name and the parameters.
            results: the expressions to return.
        """
        returned = f"return ({''.join(f'{self.text(each)}, ' for each in results)})"
        lines = [*self.rows, *self.lanes, returned]
        used: set[str] = set()
        for i, line in reversed(tuple(enumerate(lines))):
            names = set(_NAME.findall(line)) - used
            own = line.partition(" = ")[0]
            dead = sorted(name for name in names if name != own and name not in SCOPE)
            used |= names
            if dead and i < len(lines) - 1 and (gone := [d for d in dead if d not in _KEPT]):
                lines[i] = f"{line}; del {', '.join(gone)}"
        return "\n    ".join([head, *lines]) + "\n"

    def _count(self, expr: Basic) -> None:
        """Count how often each subexpression of `expr` is used."""
        for part in expr.args:
            self._uses[part] += 1
            if self._uses[part] == 1:
                self._count(part)

    def _row(self, expr: Basic) -> str:
        """Source of an expression whose value is a column with one entry for each problem."""
        return self._part(expr, self._row_names, self.rows, self._row)

    def _lane(self, expr: Basic) -> str:
        """Source of an expression whose value is a column with one entry for each workgroup."""
        if expr in self._lane_names or (not expr.args and not isinstance(expr, Symbol)):
            return self._part(expr, self._lane_names, self.lanes, self._lane)
        if self.varies(expr):
            return self._part(expr, self._lane_names, self.lanes, self._lane)
        row, name = self._row(expr), f"each_{len(self.lanes)}"
        self.lanes.append(f"{name} = spread({row})")
        self._lane_names[expr] = name
        return name

    def _part(
        self,
        expr: Basic,
        names: dict[Basic, str],
        lines: list[str],
        at: Callable[[Basic], str],
    ) -> str:
        """Python source for an expression; it is assigned to a name first if it is used twice.

        Args:
            expr: the expression.
            names: the Python names of expressions that are assigned already.
            lines: source lines of the assignments so far; this method may append one.
            at: a function that returns the source of an operand of the expression.
        """
        if expr in names:
            return names[expr]
        text = _text(expr, at)
        if self._uses[expr] > 1 and expr.args:
            name = f"{'lane' if lines is self.lanes else 'row'}_{len(lines)}"
            lines.append(f"{name} = {text}")
            names[expr] = text = name
        return text


def _without_remainders(expr: Basic) -> Basic:
    """Replace `a % b` by `a - a // b * b`, because `a // b` is often needed anyway."""
    return expr.replace(
        lambda e: isinstance(e, FloorMod),
        lambda e: e.args[0] - e.args[1] * FloorDiv(*e.args),
    )


def _text(expr: Basic, at: Callable[[Basic], str]) -> str:
    """NumPy source of an expression; the function `at` returns the source of an argument."""
    if isinstance(expr, Integer):
        return f"{int(expr)}.0" if expr >= 0 else f"({int(expr)}.0)"
    if isinstance(expr, BooleanAtom):
        return str(bool(expr))
    if isinstance(expr, Add):
        return _sum(expr, at)
    parts = [at(each) for each in expr.args]
    if isinstance(expr, Relational):
        return f"({parts[0]} {comparison_sign(expr)} {parts[1]})"
    for kind, text in _JOINED.items():
        if isinstance(expr, kind):
            return f"({text.join(parts)})"
    for kind, text in _CALLS.items():
        if isinstance(expr, kind):
            return text.format(*parts)
    raise TypeError(
        f"{type(expr).__name__} has no NumPy form; add one to the table _CALLS in "
        "passes/choosing/numpy_source.py"
    )


def _sum(expr: Add, at: Callable[[Basic], str]) -> str:
    """The source of a sum. Terms with a factor of -1 are subtracted, to save a multiplication."""
    added = [term for term in expr.args if not _is_negated(term)]
    taken = [-term for term in expr.args if _is_negated(term)]
    if not added:
        added = [Integer(0)]
    text = " + ".join(map(at, added))
    return f"({text}{''.join(f' - {at(term)}' for term in taken)})"


def _is_negated(term: Basic) -> bool:
    """Whether a term of a sum has a negative coefficient."""
    coefficient = term.args[0] if isinstance(term, Mul) else term
    return isinstance(coefficient, Integer) and int(coefficient) < 0
