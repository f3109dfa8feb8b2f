"""Traversal of a coordinate graph: compute wanted indices from known indices.

The traversal first finds, in time linear in the graph, every edge that can be evaluated from the
known indices. Then it evaluates only the edges on the path to the wanted indices, and simplifies
each result under the known ranges of symbols.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, cast

from sympy import And, Expr
from sympy.logic.boolalg import Boolean, Not, Or, false, true

from coordgraph.coordinates.dimensions import Dimension
from coordgraph.coordinates.edges import Edge
from coordgraph.coordinates.rules import simplify_condition
from coordgraph.coordinates.structure import DimensionLike, Structure
from coordgraph.errors import AmbiguousPath, EvaluationError, NoPath, VerifyError
from coordgraph.integers import Ranges, simplify, symbols_of
from coordgraph.validation import integer

__all__ = ["Direction", "Solution", "derivative", "solve"]

Known = Mapping[Any, Any] | Iterable[Any] | DimensionLike
"""Type of the argument `known`: a mapping from dimensions to indices, or one or several dimensions
whose indices are their symbols."""


class Direction(Enum):
    """The direction of a traversal of the coordinate graph."""

    REVERSE = "reverse"
    """From workgroups, loops and threads (downstream) to the tensors (upstream)."""
    FORWARD = "forward"
    """From the tensors (upstream) to workgroups, loops and threads (downstream)."""


@dataclass(frozen=True)
class Solution:
    """The result of a traversal: indices, with the condition under which they are valid.

    Args:
        values: the index of each wanted dimension, in order.
        guard: the condition under which every index on the path is inside its dimension, not in
            padding. A `Sunder` edge uses one of several indices, which the value of another index
            (the selector) chooses; the condition on such an index applies only if it is chosen.
        path: the edges that were evaluated, in order.
        indices: the known and the computed index of every dimension on the path, by id.
    """

    values: tuple[Expr, ...]
    guard: Boolean
    path: tuple[Edge, ...]
    indices: Mapping[str, Expr] = field(repr=False, compare=False, default_factory=dict)


def solve(
    graph: Structure,
    direction: Direction,
    known: Known,
    wanted: DimensionLike | Iterable[DimensionLike],
    ranges: Ranges | None = None,
) -> Solution:
    """Find the edges that lead from known to wanted dimensions, and evaluate them.

    Args:
        graph: the coordinate graph.
        direction: whether to compute upstream or downstream indices.
        known: the known dimensions with their indices, as in `CoordinateGraph.reverse`.
        wanted: the dimensions whose index is computed.
        ranges: the known ranges of symbols; by default each index is inside its dimension.

    Raises:
        VerifyError, NoPath, AmbiguousPath, NotInvertible: an argument is wrong, there is no path,
            there are two paths, or an edge on the path has no formula in this direction.
        EvaluationError: an index would be divided by a size of 0.
    """
    if ranges is not None and not isinstance(ranges, Ranges):
        raise VerifyError(
            f"ranges = {ranges!r} is no Ranges; leave it out, or give graph.parameters.ranges()"
        )
    start = _normalise(graph, known)
    targets = [dimension.id for dimension in graph.listed(wanted, "wanted")]
    path = _path(graph, direction, start, targets)
    if ranges is None:
        ranges = _default_ranges(graph, start)
    values = {name: simplify(value, ranges) for name, value in start.items()}
    steps: list[_Step] = []
    for edge in path:
        sizes = graph.sizes(edge)
        try:
            if direction is Direction.REVERSE:
                below = [values.get(name) for name in edge.downstream]
                found = _reuse_known(edge.upstream, edge.reverse(below, sizes, ranges), start)
                result = [simplify(e, ranges) for e in found]
                steps.append(_Step(edge, tuple(below), edge.guard(result, below, sizes)))
            else:
                above = [values[name] for name in edge.upstream]
                result = [simplify(e, ranges) for e in edge.forward(above, sizes, ranges)]
        except ZeroDivisionError as error:
            raise EvaluationError(
                f"{edge}: an operand has the size 0, so there is no index to compute ({error}); "
                "make every size at least 1"
            ) from error
        for name, value in zip(_sides(edge, direction)[1], result, strict=True):
            values.setdefault(name, value)
    guard = _guard(steps, targets, ranges)
    return Solution(tuple(values[name] for name in targets), guard, path, values)


def _reuse_known(
    names: Sequence[str], found: Sequence[Expr], start: Mapping[str, Expr]
) -> Sequence[Expr]:
    """Replace indices that an edge computed by indices that the caller already knows.

    If the edge computed the index of a known dimension, the known index replaces the computed
    expression, also where the other results contain this expression.

    Args:
        names: the ids of the dimensions whose indices the edge computed.
        found: the computed index of each of these dimensions.
        start: the indices that the caller knows, by dimension id.
    """
    known = {
        value: start[name]
        for name, value in zip(names, found, strict=True)
        if name in start and not value.is_Atom
    }
    return [cast(Expr, value.xreplace(known)) for value in found] if known else found


@dataclass(frozen=True)
class _Step:
    """An edge that was evaluated in reverse, with its downstream indices and its guards.

    Args:
        edge: the edge.
        below: the downstream indices from which the edge was evaluated; None for an index that was
            not needed.
        guards: the conditions under which the upstream indices are not padding.
    """

    edge: Edge
    below: tuple[Expr | None, ...]
    guards: tuple[Boolean, ...]


def _guard(steps: list[_Step], targets: list[str], ranges: Ranges) -> Boolean:
    """The condition under which no index that the target dimensions depend on is padding.

    The condition is the conjunction of the guards of all evaluated edges. An edge's guard is
    required only for values of selectors for which the targets depend on the edge's result.
    """
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
    """For each evaluated edge, the condition under which the target dimensions depend on it."""
    conditions = [step.edge.reads_when(step.below) for step in steps]
    if all(each is true for of_step in conditions for each in of_step):
        return [true] * len(steps)
    read: dict[str, Boolean] = dict.fromkeys(targets, true)
    needed: list[Boolean] = []
    # Walk backward: an index is read only by steps after the step that computes the index.
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
    """The change of the upstream index of `wanted` when the index of `by` grows by 1.

    Args:
        graph: the coordinate graph.
        wanted: an upstream dimension, whose index depends on `by`.
        by: a downstream dimension; its index is its symbol if `known` does not contain it.
        known: the known dimensions with their indices, as in `CoordinateGraph.reverse`.
        ranges: the known ranges of symbols; by default each index is inside its dimension.
    """
    start = _normalise(graph, known)
    name = graph[by].id
    here = start.setdefault(name, graph[by].symbol)
    ranges = ranges or _default_ranges(graph, start)
    (at,) = solve(graph, Direction.REVERSE, start, [wanted], ranges).values
    (after,) = solve(graph, Direction.REVERSE, {**start, name: here + 1}, [wanted], ranges).values
    return simplify((after - at).expand(), ranges)


def _normalise(graph: Structure, known: Known) -> dict[str, Expr]:
    """The known indices as a dictionary from dimension id to expression."""
    if isinstance(known, Mapping):
        pairs = known.items()
        return {graph[name].id: _value(graph, name, value) for name, value in pairs}
    if not isinstance(known, Iterable | Dimension):
        raise VerifyError(
            f"known = {known!r} gives no indices; give a mapping, such as {{'workgroup': 3}}, or "
            "ids of dimensions, whose indices are then symbols"
        )
    return {dimension.id: dimension.symbol for dimension in graph.listed(known, "known")}


def _value(graph: Structure, name: DimensionLike, value: Any) -> Expr:
    """The index `value` of a dimension as an expression; its symbol if `value` is None."""
    if value is None:
        return graph[name].symbol
    return integer(value, f"the index '{graph[name].id}'")


def _default_ranges(graph: Structure, start: Mapping[str, Expr]) -> Ranges:
    """Ranges that bound the symbols of known dimensions: at least 0, less than the size.

    The same holds for dimensions whose symbols occur in the known indices.
    """
    read = set[object](start)
    for value in start.values():
        read |= symbols_of(value)
    inside = (d for d in graph if d.id in read or d.symbol in read)
    return Ranges().with_indices((d.symbol, d.size) for d in inside if d.size is not None)


def _sides(edge: Edge, direction: Direction) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The operands that an edge reads in a direction, and the operands that it computes."""
    if direction is Direction.REVERSE:
        return edge.downstream, edge.upstream
    return edge.upstream, edge.downstream


def _needs(edge: Edge, direction: Direction, start: dict[str, Expr]) -> tuple[str, ...]:
    """The dimensions whose indices must be known to evaluate an edge in a direction."""
    return edge.reverse_needs(start) if direction is Direction.REVERSE else edge.upstream


def _path(
    graph: Structure, direction: Direction, start: dict[str, Expr], targets: list[str]
) -> tuple[Edge, ...]:
    """The edges to evaluate for the targets, in order.

    The graph caches the result. The key has the direction, the targets, and the dimensions whose
    indices are known, with the values of constant indices.
    """
    given = frozenset([(name, int(v) if v.is_Integer else None) for name, v in start.items()])
    known = graph.cached_paths.get(key := (direction.value, given, tuple(targets)))
    if known is None:
        definers = graph.cached_definers.get(key[:2])
        if definers is None:
            definers = graph.cached_definers[key[:2]] = _find_definers(graph, direction, start)
        known = graph.cached_paths[key] = tuple(_plan(graph, direction, start, targets, definers))
    return known


def _find_definers(
    graph: Structure, direction: Direction, start: dict[str, Expr]
) -> dict[str, list[Edge]]:
    """Find all dimensions whose indices can be computed, and for each the edges that compute it."""
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
            needs = _needs(edge, direction, start)
            if id(edge) not in waiting:
                waiting[id(edge)] = len(set(needs))
            if name not in needs:
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
    """The edges to evaluate for the targets, in an order in which each reads only earlier results.

    A loop with a stack replaces recursion: graphs can be deeper than Python's recursion limit.
    """
    path: list[Edge] = []
    done: set[str] = set(start)
    placed: set[int] = set()
    stack: list[tuple[str, bool]] = [(name, False) for name in reversed(targets)]
    while stack:
        name, ready = stack.pop()
        if name in done:
            continue
        edge = _defining_edge(graph, direction, name, start, definers)
        if ready:
            done.add(name)
            if id(edge) not in placed:
                placed.add(id(edge))
                path.append(edge)
            continue
        stack.append((name, True))
        stack += [(n, False) for n in _needs(edge, direction, start) if n not in done]
    return path


def _defining_edge(
    graph: Structure,
    direction: Direction,
    name: str,
    start: dict[str, Expr],
    definers: dict[str, list[Edge]],
) -> Edge:
    """The only edge that defines the index of the dimension `name`.

    Raises:
        AmbiguousPath: several edges define the index.
        NoPath: no edge defines the index.
    """
    edges = definers.get(name, [])
    if len(edges) > 1:
        raise AmbiguousPath(
            f"the index of '{name}' is defined twice from {', '.join(sorted(start))}: by "
            + " and by ".join(map(str, edges))
            + "; leave out one of the known indices"
        )
    if not edges:
        missing = sorted(_missing(graph, direction, name, start, definers))
        raise NoPath(
            f"no {direction.value} path leads to '{name}' from "
            + (", ".join(sorted(start)) or "nothing")
            + (f"; give more indices, such as {', '.join(map(repr, missing))}" if missing else "")
        )
    return edges[0]


def _missing(
    graph: Structure,
    direction: Direction,
    name: str,
    start: dict[str, Expr],
    definers: dict[str, list[Edge]],
) -> set[str]:
    """The nearest dimensions that the index of `name` depends on and that cannot be computed."""
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
