"""Traversal: which edges lead from known coordinates to wanted ones, and what they compute.

First every edge whose whole starting side is known fires, in time linear in the graph; then only
what the wanted coordinates need is computed, each step simplified under what is known of ranges.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, cast

from sympy import And, Expr
from sympy.logic.boolalg import Boolean, Not, Or, false, true

from coordgraph.coordinates.edges import Edge
from coordgraph.coordinates.rules import simplify_condition
from coordgraph.coordinates.structure import DimensionLike, Structure
from coordgraph.errors import AmbiguousPath, EvaluationError, NoPath
from coordgraph.integers import Ranges, simplify, symbols_of
from coordgraph.validation import integer

__all__ = ["Direction", "Solution", "derivative", "solve"]

Known = Mapping[Any, Any] | Iterable[Any]


class Direction(Enum):
    """Which way a traversal goes."""

    REVERSE = "reverse"
    FORWARD = "forward"


@dataclass(frozen=True)
class Solution:
    """The values of the wanted coordinates, and the path that gave them.

    The guard says where the values are inside the coordinates' sizes. What guards an index that
    only some values of a selector read holds for those values alone.
    """

    values: tuple[Expr, ...]
    guard: Boolean
    path: tuple[Edge, ...]


def solve(
    graph: Structure,
    direction: Direction,
    known: Known,
    wanted: Iterable[DimensionLike],
    ranges: Ranges | None = None,
) -> Solution:
    """Find the path and compute along it; see `CoordinateGraph.reverse` for the errors."""
    start = _normalise(graph, known)
    targets = [graph[name].id for name in wanted]
    definers = _fire(graph, direction, start)
    path = _plan(graph, direction, start, targets, definers)
    if ranges is None:
        ranges = _default_ranges(graph, start)
    values = {name: simplify(value, ranges) for name, value in start.items()}
    steps: list[_Step] = []
    for edge in path:
        sizes = graph.sizes(edge)
        try:
            if direction is Direction.REVERSE:
                below = [values.get(name) for name in edge.downstream]
                found = _with_known(edge.upstream, edge.reverse(below, sizes, ranges), start)
                result = [simplify(e, ranges) for e in found]
                steps.append(_Step(edge, tuple(below), edge.guard(result, below, sizes)))
            else:
                above = [values[name] for name in edge.upstream]
                result = [simplify(e, ranges) for e in edge.forward(above, sizes, ranges)]
        except ZeroDivisionError as error:
            raise EvaluationError(f"{edge}: a size of 0 leaves no index ({error})") from error
        for name, value in zip(_sides(edge, direction)[1], result, strict=True):
            values.setdefault(name, value)
    guard = _guard(steps, targets, ranges)
    return Solution(tuple(values[name] for name in targets), guard, tuple(path))


def _with_known(
    names: Sequence[str], found: Sequence[Expr], start: Mapping[str, Expr]
) -> Sequence[Expr]:
    """What an edge gives, with indices that are known already written as they are known.

    The others are then worked out of those, and not of how the edge would find them once more.
    """
    known = {
        value: start[name]
        for name, value in zip(names, found, strict=True)
        if name in start and not value.is_Atom
    }
    return [cast(Expr, value.xreplace(known)) for value in found] if known else found


@dataclass(frozen=True)
class _Step:
    """An edge that was reversed, the indices below it, and what guards those above."""

    edge: Edge
    below: tuple[Expr | None, ...]
    guards: tuple[Boolean, ...]


def _guard(steps: list[_Step], targets: list[str], ranges: Ranges) -> Boolean:
    """The guards of all steps, each where what it guards is read."""
    guards: list[Boolean] = []
    for step, needed in zip(steps, _needed(steps, targets), strict=True):
        if needed is true:
            guards += (simplify_condition(g, ranges) for g in step.guards)
        elif step.guards:
            needed = simplify_condition(needed, ranges)
            inside = ranges.with_guard(needed)
            guards += (Or(Not(needed), simplify_condition(g, inside)) for g in step.guards)
    return And(*guards)


def _needed(steps: list[_Step], targets: list[str]) -> list[Boolean]:
    """The condition under which the targets depend on what each step gives."""
    conditions = [step.edge.reads_when(step.below) for step in steps]
    if all(each is true for of_step in conditions for each in of_step):
        return [true] * len(steps)
    read: dict[str, Boolean] = dict.fromkeys(targets, true)
    needed: list[Boolean] = []
    # An index is read by edges that come after its own.
    for step, of_step in zip(reversed(steps), reversed(conditions), strict=True):
        here = Or(*(read[name] for name in step.edge.upstream if name in read))
        needed.append(here)
        for name, condition in zip(step.edge.downstream, of_step, strict=True):
            read[name] = Or(read.get(name, false), And(here, condition))
    return needed[::-1]


def derivative(
    graph: Structure,
    wanted: DimensionLike,
    by: DimensionLike,
    known: Known,
    ranges: Ranges | None = None,
) -> Expr:
    """The difference quotient of a reversed coordinate: its value at `by + 1` less that at `by`."""
    start = _normalise(graph, known)
    name = graph[by].id
    here = start.setdefault(name, graph[by].symbol)
    ranges = ranges or _default_ranges(graph, start)
    (at,) = solve(graph, Direction.REVERSE, start, [wanted], ranges).values
    (after,) = solve(graph, Direction.REVERSE, {**start, name: here + 1}, [wanted], ranges).values
    return simplify((after - at).expand(), ranges)


def _normalise(graph: Structure, known: Known) -> dict[str, Expr]:
    if isinstance(known, Mapping):
        pairs = known.items()
        return {graph[name].id: _value(graph, name, value) for name, value in pairs}
    return {graph[name].id: graph[name].symbol for name in known}


def _value(graph: Structure, name: DimensionLike, value: Any) -> Expr:
    """What a known dimension is given as: None keeps its symbol."""
    if value is None:
        return graph[name].symbol
    return integer(value, f"the index '{graph[name].id}'")


def _default_ranges(graph: Structure, start: Mapping[str, Expr]) -> Ranges:
    """That the known dimensions, and those that known values mention, are inside their sizes."""
    read = set[object](start)
    for value in start.values():
        read |= symbols_of(value)
    inside = (d for d in graph if d.id in read or d.symbol in read)
    return Ranges().with_indices((d.symbol, d.size) for d in inside if d.size is not None)


def _sides(edge: Edge, direction: Direction) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """(starting side, ending side)."""
    if direction is Direction.REVERSE:
        return edge.downstream, edge.upstream
    return edge.upstream, edge.downstream


def _needs(edge: Edge, direction: Direction, start: dict[str, Expr]) -> tuple[str, ...]:
    return edge.reverse_needs(start) if direction is Direction.REVERSE else edge.upstream


def _fire(graph: Structure, direction: Direction, start: dict[str, Expr]) -> dict[str, list[Edge]]:
    """For every coordinate that can be computed, the edges that would define it."""
    waiting: dict[int, int] = {}
    reached = set(start)
    definers: dict[str, list[Edge]] = {}
    queue = list(start)
    while queue:
        name = queue.pop()
        edges = (
            graph.edges_above(name) if direction is Direction.REVERSE else graph.edges_below(name)
        )
        for edge in edges:
            if id(edge) not in waiting:
                needs = set(_needs(edge, direction, start))
                waiting[id(edge)] = len(needs)
            if name not in _needs(edge, direction, start):
                continue
            waiting[id(edge)] -= 1
            if waiting[id(edge)]:
                continue
            for target in dict.fromkeys(_sides(edge, direction)[1]):
                if target in start:
                    continue
                definers.setdefault(target, []).append(edge)
                if target not in reached:
                    reached.add(target)
                    queue.append(target)
    return definers


def _plan(
    graph: Structure,
    direction: Direction,
    start: dict[str, Expr],
    targets: list[str],
    definers: dict[str, list[Edge]],
) -> list[Edge]:
    """The edges that the targets need, each after those it reads (a stack: graphs are deep)."""
    path: list[Edge] = []
    done: set[str] = set(start)
    placed: set[int] = set()
    stack: list[tuple[str, bool]] = [(name, False) for name in reversed(targets)]
    while stack:
        name, ready = stack.pop()
        if name in done:
            continue
        edge = _only(graph, direction, name, start, definers)
        if ready:
            done.add(name)
            if id(edge) not in placed:
                placed.add(id(edge))
                path.append(edge)
            continue
        stack.append((name, True))
        stack += [(n, False) for n in _needs(edge, direction, start) if n not in done]
    return path


def _only(
    graph: Structure,
    direction: Direction,
    name: str,
    start: dict[str, Expr],
    definers: dict[str, list[Edge]],
) -> Edge:
    edges = definers.get(name, [])
    if len(edges) > 1:
        raise AmbiguousPath(
            f"'{name}' is defined twice from {', '.join(sorted(start))}: by "
            + " and by ".join(map(str, edges))
        )
    if not edges:
        missing = sorted(_missing(graph, direction, name, start, definers))
        raise NoPath(
            f"no {direction.value} path leads to '{name}' from "
            + (", ".join(sorted(start)) or "nothing")
            + (f"; a value of {', '.join(map(repr, missing))} is missing" if missing else "")
        )
    return edges[0]


def _missing(
    graph: Structure,
    direction: Direction,
    name: str,
    start: dict[str, Expr],
    definers: dict[str, list[Edge]],
) -> set[str]:
    """The nearest coordinates with no definition at all that stand in the way."""
    seen, stack, missing = {name}, [name], set[str]()
    while stack:
        here = stack.pop()
        edges = (
            graph.edges_below(here) if direction is Direction.REVERSE else graph.edges_above(here)
        )
        if not edges:
            missing.add(here)
        for edge in edges:
            for needed in _sides(edge, direction)[0]:
                if needed not in seen and needed not in start and needed not in definers:
                    seen.add(needed)
                    stack.append(needed)
    return missing
