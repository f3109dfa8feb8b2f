"""Mermaid diagrams of coordinate and control graphs.

Dimensions are drawn as stadiums, with tensors at the top and workgroups and loops at the bottom. An
edge between two dimensions is a labelled arrow. An edge with more operands is a box, whose arrows
have operand numbers. Green outlines mark loops, and tile numbers that no schedule has tied to
workgroups or loops yet. A diagram with more arrows than Mermaid draws is replaced by an overview.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

from coordgraph.control import graph as control_graph
from coordgraph.control.graph import ControlGraph
from coordgraph.control.operations import Assign, For, If, Inside, Locate, Operation, SetCoordinate
from coordgraph.control.tickets import DynamicFor, TakeTicket
from coordgraph.coordinates import graph as coordinate_graph
from coordgraph.coordinates.dimensions import Dimension, ForLoop, MacroTileNumber
from coordgraph.coordinates.edges import Edge
from coordgraph.coordinates.graph import CoordinateGraph
from coordgraph.integers import to_text
from coordgraph.show.fields import shown, written
from coordgraph.show.mermaid_collapsed import draw_scopes, operations_inside
from coordgraph.show.mermaid_picture import Picture

__all__ = ["control", "coordinates"]

GREEN = "stroke:#3f3"


@coordinate_graph.MERMAID.implement
def coordinates(
    graph: CoordinateGraph,
    *,
    only: str | Iterable[str] | None = None,
    compare_to: CoordinateGraph | None = None,
    notes: bool = True,
    direction: str = "TD",
) -> str:
    """The mermaid source of a diagram of a coordinate graph.

    A graph with more arrows than Mermaid draws (500) becomes an overview with a node for each
    scope: for the dimensions whose ids are equal up to the first dot, as `A.0` and `A.tile.0` are.

    Args:
        graph: the graph to draw.
        only: ids of the dimensions to draw, or a single id; an edge is drawn if all its operands
            are drawn. By default the whole graph is drawn.
        compare_to: an earlier version of the graph; new and changed dimensions and edges are
            highlighted by a fill colour.
        notes: True to print the dimensions' notes.
        direction: where arrows point: TD or TB (down), BT (up), LR (right) or RL (left).

    Raises:
        VerifyError: the graph lacks a dimension whose id is in `only`, or the direction is unknown.
    """
    shown = set(graph.dimensions) if only is None else {d.id for d in graph.listed(only, "only")}
    edges = [e for e in graph.edges if shown.issuperset((*e.upstream, *e.downstream))]
    before = compare_to or graph
    picture = Picture(direction)
    dimensions = [dimension for dimension in graph if dimension.id in shown]
    if draw_scopes(picture, dimensions, edges, before):
        return picture.text()
    for dimension in dimensions:
        node = picture.node(dimension.id, "([", _describe(dimension, notes), "])")
        if before.dimensions.get(dimension.id) != dimension:
            picture.added.append(node)
    known = Counter(before.edges)
    for edge in edges:
        known[edge] -= 1
        _draw(picture, edge, known[edge] < 0)
    dangling = {d.id for d in graph.dangling(MacroTileNumber)}
    for name in graph.dimensions:
        if name in shown and (name in dangling or isinstance(graph[name], ForLoop)):
            picture.style(name, GREEN)
    return picture.text()


@control_graph.MERMAID.implement
def control(
    graph: ControlGraph, *, compare_to: ControlGraph | None = None, direction: str = "TD"
) -> str:
    """The mermaid source of a diagram of a control graph: its operations and their order.

    If the graph has more arrows than Mermaid draws (500), the innermost operations are left out.

    Args:
        graph: the graph to draw.
        compare_to: an earlier version of the graph; operations that the earlier version lacks are
            highlighted by a fill colour.
        direction: where arrows point: TD or TB (down), BT (up), LR (right) or RL (left).

    Raises:
        VerifyError: the direction is unknown.
    """
    known = Counter(_shallow(op) for op in (compare_to or graph).operations)
    picture = Picture(direction)
    inside = operations_inside(graph)
    for position, op in enumerate(graph.operations):
        known[_shallow(op)] -= 1
        if position not in inside:
            continue
        opening, closing = _SHAPES.get(type(op), ("[", "]"))
        lines = [*_operation(op), *_left_out(inside[position])]
        node = picture.node(position, opening, lines, closing, f"op{position}")
        if known[_shallow(op)] < 0:
            picture.added.append(node)
    for start, end, kind in graph.edges:
        if start in inside and end in inside:
            picture.arrow(start, end, kind.value)
    for position, op in enumerate(graph.operations):
        if isinstance(op, For | DynamicFor) and position in inside:
            picture.style(position, GREEN)
    return picture.text()


_SHAPES: dict[type[Operation], tuple[str, str]] = {
    For: ("([", "])"),
    DynamicFor: ("([", "])"),
    If: ("{{", "}}"),
    Inside: ("{{", "}}"),
}


def _describe(dimension: Dimension, notes: bool) -> Iterator[str]:
    """The lines of a dimension's label: class and fields; id and size; note."""
    yield dimension.label
    size = "" if dimension.size is None else f", size {to_text(dimension.size)}"
    yield f"{dimension.id}{size}"
    if notes and dimension.note:
        yield dimension.note


def _draw(picture: Picture, edge: Edge, added: bool) -> None:
    """Draw an edge: an arrow if the edge has two operands, else a box with an arrow per operand."""
    upstream, downstream = edge.upstream, edge.downstream
    details = [f"{name} {written(v, to_text)}" for name, v in shown(edge).items()]
    if len(upstream) == len(downstream) == 1:
        picture.arrow(upstream[0], downstream[0], ", ".join([edge.kind, *details]), added)
        return
    key = object()
    node = picture.node(key, "[", [edge.kind, *details], "]", f"{edge.kind}_{upstream[0]}")
    if added:
        picture.added.append(node)
    for position, name in enumerate(upstream):
        picture.arrow(name, key, str(position) if len(upstream) > 1 else "", added)
    for position, name in enumerate(downstream):
        picture.arrow(key, name, str(position) if len(downstream) > 1 else "", added)


def _left_out(count: int) -> list[str]:
    """The line `… 3 operations inside` of the label of an operation; no line if `count` is 0.

    `count` is the number of operations in the operation's bodies that are not drawn.
    """
    return [f"… {count} operations inside"] if count else []


def _operation(op: Operation) -> list[str]:
    """The lines of the label of an operation in a diagram of a control graph."""
    match op:
        case For():
            step = [] if op.step == 1 else [f"step {to_text(op.step)}"]
            return [f"For {op.dim} in {to_text(op.start)} .. {to_text(op.stop)}", *step]
        case DynamicFor():
            return [f"DynamicFor {op.dim} in {to_text(op.start)} .. {to_text(op.stop)}"]
        case TakeTicket():
            return [f"TakeTicket {op.dim} = {to_text(op.first)} + ticket of {op.counter}"]
        case If():
            return [f"If {to_text(op.condition)}"]
        case Inside():
            return [f"Inside {', '.join(op.dims)}"]
        case Assign():
            return [f"{op.name} = {to_text(op.value)}"]
        case Locate():
            return [f"Locate {', '.join(op.dims)}"]
        case SetCoordinate():
            return [f"Set {op.dim} = {to_text(op.value)}"]
        case _:
            values = [written(value, to_text) for value in shown(op).values()]
            return [f"{op.kind}({'; '.join(values)})" if values else op.kind]


def _shallow(op: Operation) -> tuple[Any, ...]:
    """A hashable key of an operation without its bodies, for comparing control graphs."""
    return (type(op), *op.details.items())
