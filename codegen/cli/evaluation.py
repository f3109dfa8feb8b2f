"""The answers of `coordgraph eval`: coordinates as expressions of known coordinates."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, cast

import typer
from sympy import Expr, Integer, Symbol

from coordgraph import KernelGraph, LaunchError, VerifyError
from coordgraph.control import Scoped
from coordgraph.coordinates.traverse import Direction, Solution, solve
from coordgraph.integers import (
    ExpressionSyntaxError,
    evaluate,
    parse_expression,
    simplify,
    to_text,
)

__all__ = ["Answer", "answer_of", "check_exists", "known_scope", "launch_values", "split_point"]


@dataclass(frozen=True)
class Answer:
    """A coordinate, computed from coordinates whose values the command line gives.

    An answer has the expression, the condition (guard) under which the coordinate is not padding,
    and the edges from which the expression was computed.
    """

    name: str
    solution: Solution
    value: Expr
    """The coordinate's expression, after the given values of parameters are substituted."""
    guard: Any

    @property
    def number(self) -> int | None:
        """The value of the expression if it is a number, else None."""
        return int(self.value) if isinstance(self.value, Integer) else None

    def as_data(self) -> dict[str, Any]:
        """Plain data for a JSON object: coordinate, expression, value, guard and path of edges."""
        return {
            "coordinate": self.name,
            "expression": to_text(self.solution.values[0]),
            "value": self.number,
            "guard": to_text(self.guard),
            "path": [str(edge) for edge in self.solution.path],
        }


def answer_of(scope: Scoped, direction: Direction, name: str, values: Mapping[str, int]) -> Answer:
    """Derive the expression, the value and the guard of the coordinate `name`.

    `values` are the known launch arguments.
    """
    found = solve(scope.coordinates, direction, scope.known, [name], scope.ranges)
    expr, guard = found.values[0], found.guard
    symbols = {s: values[s.name] for s in _symbols(expr, guard) if s.name in values}
    if symbols:
        expr = _put_in(expr, symbols, scope)
        guard = guard.xreplace({s: Integer(v) for s, v in symbols.items()})
    return Answer(name, found, expr, guard)


def _put_in(expr: Expr, symbols: Mapping[Symbol, int], scope: Scoped) -> Expr:
    if expr.free_symbols <= set(symbols):
        return Integer(evaluate(expr, symbols))
    numbers = {s: Integer(v) for s, v in symbols.items()}
    return simplify(cast(Expr, expr.xreplace(numbers)), scope.ranges)


def _symbols(*expressions: Any) -> set[Symbol]:
    return {s for e in expressions for s in e.free_symbols}


def known_scope(
    graph: KernelGraph,
    at: Mapping[str, str | None],
    direction: Direction,
    values: Mapping[str, int],
) -> Scoped:
    """A `Scoped`, which derives coordinates of the graph from the known coordinates `at`.

    If `at` is empty, a default set of coordinates is known, all as symbols. For
    `Direction.REVERSE`, which derives tensor indices, these are all dimensions that are upstream of
    no edge (hardware and loops); for `Direction.FORWARD`, all dimensions that are downstream of no
    edge (tensors).

    Args:
        graph: the graph of the kernel.
        at: for each known coordinate, by name: the text of its value on the command line; None
            keeps the coordinate a symbol.
        direction: the direction in which coordinates are derived.
        values: the values of the launch parameters.
    """
    coordinates = graph.coordinates
    scope = Scoped(coordinates, graph.parameters.ranges())
    if not at:
        beyond = (
            coordinates.edges_below if direction is Direction.REVERSE else coordinates.edges_above
        )
        return scope.hardware([d.id for d in coordinates if not beyond(d)])
    for name in at:
        check_exists(graph, name)
    scope = scope.hardware([name for name, value in at.items() if value is None])
    for name, text in at.items():
        if text is not None:
            scope = scope.binding(name, _read(graph, name, text, values))
    return scope


def check_exists(graph: KernelGraph, name: str) -> None:
    """Raise VerifyError, with a note that lists all coordinates, unless the graph has `name`."""
    try:
        graph.coordinates[name]
    except VerifyError as error:
        error.add_note(
            f"the coordinates of the graph are {', '.join(graph.coordinates.dimensions)}"
        )
        raise


def _read(graph: KernelGraph, name: str, text: str, values: Mapping[str, int]) -> Expr:
    """Parse the value of a coordinate; names in `text` are parameters or other coordinates."""

    def symbol(word: str) -> Expr:
        if word in graph.parameters:
            return graph.parameters[word].symbol
        if word in graph.coordinates:
            return graph.coordinates.symbol(word)
        raise KeyError(f"unknown symbol '{word}'")

    try:
        value = parse_expression(text, symbol)
    except ExpressionSyntaxError as error:
        raise typer.BadParameter(f"--at {name}={text}: {error}") from None
    if getattr(value, "is_Boolean", False):
        raise typer.BadParameter(f"--at {name}={text}: an integer is needed, not a condition")
    if isinstance(value, Integer):
        _check_size(name, int(value), graph.coordinates.size(name), values)
    return value


def _check_size(name: str, value: int, size: Expr | None, values: Mapping[str, int]) -> None:
    """Raise VerifyError if `value` is negative, or not below the dimension's size, if known."""
    known = size is not None and {s.name for s in _symbols(size)} <= set(values)
    end = int(evaluate(size, values)) if size is not None and known else None
    if value < 0 or (end is not None and value >= end):
        bounds = "0 or more" if end is None else f"0..{end - 1}"
        raise VerifyError(
            f"{name} = {value} is outside its dimension, whose indices are {bounds}; give one of "
            "them"
        )


def split_point(
    graph: KernelGraph, at: Mapping[str, str | None], given: Mapping[str, str]
) -> tuple[dict[str, str | None], dict[str, str]]:
    """Split --at into coordinates and launch arguments; add the launch arguments of --with.

    Raises:
        typer.BadParameter: --at and --with both give a launch argument.
    """
    arguments = {p.name for p in graph.parameters.given} - {d.id for d in graph.coordinates}
    if both := [name for name in at if name in arguments and name in given]:
        raise typer.BadParameter(f"--at and --with both give {both[0]}; leave out one")
    coordinates = {name: text for name, text in at.items() if name not in arguments}
    numbers = {name: text for name, text in at.items() if name in arguments and text is not None}
    return coordinates, {**numbers, **given}


def launch_values(graph: KernelGraph, given: Mapping[str, str]) -> dict[str, int]:
    """The values of the graph's parameters: the given values, and values computed from them.

    Raises:
        LaunchError: a name is not a launch argument of the graph, or a value is out of bounds.
    """
    known = [p.name for p in graph.parameters.given]
    numbers: dict[str, int] = {}
    for name, text in given.items():
        if name not in known:
            close = get_close_matches(name, known, n=3)
            hint = f"did you mean {', '.join(close)}?" if close else f"there are {', '.join(known)}"
            raise LaunchError(f"'{name}' is not a launch argument of this graph; {hint}")
        try:
            numbers[name] = int(text)
        except ValueError:
            raise typer.BadParameter(f"--with {name}={text}: a whole number is needed") from None
    if {p.name for p in graph.parameters.given} <= {*numbers, "read_c"}:
        return (
            graph.parameters.evaluate({**({"read_c": 0} if "read_c" in known else {}), **numbers})
            if numbers
            else {}
        )
    for p in graph.parameters.items:
        if p.name in numbers and not p.minimum <= numbers[p.name] <= p.maximum:
            raise LaunchError(
                f"{p.name} = {numbers[p.name]} is outside {p.minimum}..{p.maximum}; give a value "
                "in this range"
            )
        if p.value is not None and {s.name for s in _symbols(p.value)} <= set(numbers):
            numbers[p.name] = int(evaluate(p.value, numbers))
    return numbers
