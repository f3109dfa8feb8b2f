"""`records_of`: an upper bound of a workgroup's number of timeline records, from loop bounds."""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from math import prod
from operator import add

from sympy import Add, Expr, Integer, Mul, Symbol

from coordgraph import KernelGraph
from coordgraph.control.operations import Assign, Body, For, Operation, SetCoordinate
from coordgraph.control.tickets import DynamicFor
from coordgraph.control.timeline import Begin
from coordgraph.integers import (
    FloorDiv,
    FloorMod,
    Maximum,
    Minimum,
    index_symbol,
    maximum,
    minimum,
    operands,
)

__all__ = ["records_of"]

ZERO, ONE = Integer(0), Integer(1)
_FOLDS = {Maximum: maximum, Add: add}
"""For each class of expressions: the function that computes an upper bound of an expression from
the upper bounds of its two operands."""


def records_of(graph: KernelGraph, body: Body) -> Expr | None:
    """Upper bound of the number of marks that one thread executes; None if no bound is known.

    Args:
        graph: the graph, whose launch parameters bound the loops.
        body: operations, some of which are marks (`Begin`, which record a time). The bound is an
            expression in the launch parameters.
    """
    known = {p.symbol for p in graph.parameters.items if p.name not in graph.parameters.deferred}
    machine = {d.symbol: d.size - 1 for d in graph.coordinates if d.hardware and d.size is not None}
    return _Bound(known, machine).marks(body)


class _Bound:
    """Computes upper bounds of expressions, and of how often marks (`Begin`) are executed.

    Args:
        known: the symbols of launch parameters, whose values the host knows.
        machine: the largest value of each index that the hardware provides (such as the thread
            number), by symbol.
    """

    def __init__(self, known: set[Symbol], machine: Mapping[Symbol, Expr]) -> None:
        self.known = known
        self.largest = dict(machine)
        """For each symbol, an expression that its value never exceeds."""

    def marks(self, body: Body) -> Expr | None:
        """Upper bound of the number of `Begin` operations (marks) that a thread executes in `body`.

        The result is None if the number of iterations of a loop is unbounded.
        """
        total: Expr = ZERO
        for op in body:
            if isinstance(op, Begin):
                total = total + 1
            elif isinstance(op, Assign):
                self.largest[op.symbol] = op.value
            elif isinstance(op, For | DynamicFor):
                self.largest[op.symbol] = op.stop - 1
            elif isinstance(op, SetCoordinate):
                self.largest.setdefault(index_symbol(op.dim), op.value)
            found = [self.marks(getattr(op, name)) for name in op.BODIES]
            inside = _all(found)
            trips = self._trips(op) if any(found) else ONE
            if inside is None or trips is None:
                return None
            # an `If` executes one of its branches, so the larger bound of the branches counts
            total = total + reduce(maximum, inside, ZERO) * trips
        return total

    def _trips(self, op: Operation) -> Expr | None:
        """An upper bound of how often an operation executes its body; None if unknown."""
        if isinstance(op, DynamicFor):
            return self.most(op.stop)  # one workgroup may execute all iterations of the loop
        return self.most(op.stop - op.start) if isinstance(op, For) else ONE

    def most(self, expr: Expr) -> Expr | None:
        """An upper bound of `expr` as an expression in launch parameters; None if unknown."""
        if expr.free_symbols <= self.known:
            return expr
        match expr:
            case Symbol() if expr in self.largest:
                return self.most(self.largest[expr])
            case Minimum():
                found = [bound for part in operands(expr) if (bound := self.most(part)) is not None]
                return reduce(minimum, found) if found else None
            case Maximum() | Add():
                bounds = _all([self.most(part) for part in operands(expr)])
                return None if bounds is None else reduce(_FOLDS[type(expr)], bounds)
            case Mul():
                number, rest = expr.as_coeff_Mul()
                # indices are not negative, so a negative multiple of them is at most 0
                if number < 0:
                    return ZERO
                parts = _all([self.most(part) for part in operands(rest)])
                return None if parts is None else prod(parts, start=number)
            case FloorDiv():
                return self.most(operands(expr)[0])
            case FloorMod():
                divisor = self.most(operands(expr)[1])
                return None if divisor is None else divisor - 1
            case _:
                return None


def _all(found: list[Expr | None]) -> list[Expr] | None:
    """`found` without change if all its entries are expressions; None if an entry is None."""
    known = [each for each in found if each is not None]
    return known if len(known) == len(found) else None
