"""Search for launches in which a parameter or an assumption of a graph divides by 0."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import cast

from sympy import Basic, Expr

from coordgraph.errors import CoordGraphError, DivisionByZero
from coordgraph.integers import FloorDiv, FloorMod, evaluate, nodes_of, to_text
from coordgraph.kernel import KernelGraph
from coordgraph.verification.launch import Launch
from coordgraph.verification.launch_candidates import far_launches, launch_candidates
from coordgraph.verification.verdicts import Counterexample

__all__ = ["zero_divisions"]

CONSTANTS = 9
"""Largest number of constants in the graph's formulas that are tried: for each, launches are made
whose sizes are just above the constant."""


def zero_divisions(graph: KernelGraph) -> Iterator[Counterexample]:
    """Yield a launch for each parameter or assumption of the graph that divides by 0 in it.

    The host evaluates parameters and assumptions before a launch, and refuses a launch in which one
    divides by 0, even if the graph's bounds and assumptions allow the launch.

    Args:
        graph: a scheduled graph.
    """
    parameters = graph.parameters
    values = {p.name: p.value for p in parameters.items if p.value is not None}
    open_ = {name for name, value in values.items() if _may_divide(graph, value)}
    open_ -= parameters.deferred
    assumptions = [a for a in parameters.assumptions if parameters.known_to_host(a.expr)]
    open_ |= {text for a in assumptions if _may_divide(graph, a.expr) and (text := to_text(a.expr))}
    if not open_:
        return
    for launch in chain(launch_candidates(graph), far_launches(graph, CONSTANTS)):
        name = _divides(graph, launch)
        if name in open_:
            open_.discard(name)
            what = f"parameter {name} = {to_text(values[name])}" if name in values else name
            yield Counterexample(
                f"{what} divides by 0; make its divisor at least 1, or exclude such launches by "
                "the bounds of an earlier parameter",
                launch,
            )
        if not open_:
            return


def _may_divide(graph: KernelGraph, value: Basic) -> bool:
    """Whether the expression has a divisor that is not proved to be at least 1."""
    ranges = graph.parameters.ranges(definitions=True)
    divisors = (cast(Expr, node.args[1]) for node in nodes_of(value, FloorDiv, FloorMod))
    return any(not ranges.prove_nonnegative(divisor - 1) for divisor in divisors)


def _divides(graph: KernelGraph, launch: Launch) -> str | None:
    """The first parameter, or the text of the first assumption, that divides by 0 in `launch`.

    The result is None if no formula divides by 0, or if a parameter's bounds or an assumption
    exclude the launch.
    """
    parameters, values, zero = graph.parameters, dict[str, int](), None
    for p in parameters.items:
        if p.name in parameters.deferred:
            continue
        try:
            value = launch.values.get(p.name, 0) if p.value is None else evaluate(p.value, values)
        except (DivisionByZero, ZeroDivisionError):
            zero = zero or p.name
            continue
        except (CoordGraphError, ArithmeticError, LookupError):
            continue
        if not p.minimum <= int(value) <= p.maximum:
            return None
        values[p.name] = int(value)
    for a in parameters.assumptions:
        try:
            if int(evaluate(a.expr, values)) > a.maximum:
                return None
        except (DivisionByZero, ZeroDivisionError):
            zero = zero or to_text(a.expr)
        except (CoordGraphError, ArithmeticError, LookupError):
            continue
    return zero
