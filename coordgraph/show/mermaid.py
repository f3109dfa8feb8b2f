"""Mermaid diagrams of coordinate and control graphs.

Dimensions are drawn as stadiums, with tensors at the top and workgroups and loops at the bottom. An
edge between two dimensions is a labelled arrow. An edge with more operands is a box, whose arrows
have operand numbers. Green outlines mark loops, and tile numbers that no schedule has tied to
workgroups or loops yet.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

from coordgraph.control import graph as control_graph
from coordgraph.control.graph import ControlGraph
from coordgraph.control.operations import Assign, For, If, Inside, Locate, Operation, SetCoordinate
from coordgraph.coordinates import graph as coordinate_graph
from coordgraph.coordinates.dimensions import Dimension, ForLoop, MacroTileNumber
from coordgraph.coordinates.edges import Edge
from coordgraph.coordinates.graph import CoordinateGraph
from coordgraph.errors import VerifyError
from coordgraph.integers import to_text
from coordgraph.show.fields import shown, written

__all__ = ["control", "coordinates"]

GREEN = "stroke:#3f3"
ADDED = "fill:#dbeafe,color:#111"
ADDED_ARROW = "stroke:#2563eb,stroke-width:2px"
DIRECTIONS = ("TD", "TB", "BT", "LR", "RL")


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
    picture = _Picture(direction)
    for dimension in graph:
        if dimension.id in shown:
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

    Args:
        graph: the graph to draw.
        compare_to: an earlier version of the graph; operations that the earlier version lacks are
            highlighted by a fill colour.
        direction: where arrows point: TD or TB (down), BT (up), LR (right) or RL (left).

    Raises:
        VerifyError: the direction is unknown.
    """
    known = Counter(_shallow(op) for op in (compare_to or graph).operations)
    picture = _Picture(direction)
    for position, op in enumerate(graph.operations):
        opening, closing = _SHAPES.get(type(op), ("[", "]"))
        node = picture.node(position, opening, _operation(op), closing, f"op{position}")
        known[_shallow(op)] -= 1
        if known[_shallow(op)] < 0:
            picture.added.append(node)
    for start, end, kind in graph.edges:
        picture.arrow(start, end, kind.value)
    for position, op in enumerate(graph.operations):
        if isinstance(op, For):
            picture.style(position, GREEN)
    return picture.text()


_SHAPES: dict[type[Operation], tuple[str, str]] = {
    For: ("([", "])"),
    If: ("{{", "}}"),
    Inside: ("{{", "}}"),
}


class _Picture:
    """Collects the lines of one diagram, and gives every node a name that mermaid accepts."""

    def __init__(self, direction: str) -> None:
        if direction not in DIRECTIONS:
            known = ", ".join(DIRECTIONS)
            raise VerifyError(f"unknown direction '{direction}'; choose one of {known}")
        self.added: list[str] = []
        self._head = f"graph {direction}"
        self._lines: list[str] = []
        self._styles: list[str] = []
        self._nodes: dict[object, str] = {}
        self._names: set[str] = set()
        self._arrows = 0
        self._added_arrows: list[str] = []

    def node(
        self, key: object, opening: str, lines: Iterable[str], closing: str, name: str = ""
    ) -> str:
        """Add a node to the diagram; returns the node's name in the Mermaid source.

        Args:
            key: the object that identifies the node in later calls of `arrow` and `style`.
            opening: mermaid's bracket before the label, which selects the node's shape.
            lines: the lines of the label.
            closing: mermaid's bracket after the label.
            name: the preferred name of the node; by default `key` as text.
        """
        node = self._nodes[key] = self._name(name or str(key))
        label = "<br/>".join(map(escape, lines))
        self._lines.append(f'  {node}{opening}"{label}"{closing}')
        return node

    def arrow(self, start: object, end: object, label: str = "", added: bool = False) -> None:
        """Add an arrow between the nodes that `start` and `end` identify.

        Args:
            start, end: the keys of the nodes.
            label: the text on the arrow.
            added: whether to highlight the arrow, because an earlier version of the graph lacks it.
        """
        middle = f'-- "{escape(label)}" -->' if label else "-->"
        self._lines.append(f"  {self._nodes[start]} {middle} {self._nodes[end]}")
        if added:
            self._added_arrows.append(str(self._arrows))
        self._arrows += 1

    def style(self, key: object, style: str) -> None:
        """Give the node that `key` identifies a Mermaid style such as `stroke:#3f3`."""
        self._styles.append(f"  style {self._nodes[key]} {style}")

    def text(self) -> str:
        """The Mermaid source of the whole diagram."""
        lines = [self._head, *self._lines, *self._styles]
        if self.added:
            lines += [f"  classDef added {ADDED}", f"  class {','.join(self.added)} added"]
        if self._added_arrows:
            lines.append(f"  linkStyle {','.join(self._added_arrows)} {ADDED_ARROW}")
        return "\n".join(lines) + "\n"

    def _name(self, wanted: str) -> str:
        """An unused Mermaid name for a node, similar to `wanted`.

        It has only letters, digits and underscores, and is no word that Mermaid reserves.
        """
        name = re.sub(r"[^A-Za-z0-9]+", "_", wanted)
        if not name[:1].isalpha() or name.lower().startswith(_WORDS):
            name = f"n_{name}"
        candidate, number = name, 1
        while candidate in self._names:
            number += 1
            candidate = f"{name}_{number}"
        self._names.add(candidate)
        return candidate


# Reserved words of Mermaid, and properties of the JavaScript objects in which Mermaid stores nodes.
# Node names must not start with these words, because some Mermaid versions misread such names.
_WORDS = (
    *("accdescr", "acctitle", "call", "class", "click", "default", "direction", "end"),
    *("flowchart", "graph", "href", "interpolate", "linkstyle", "style", "subgraph"),
    *("constructor", "hasownproperty", "isprototypeof", "propertyisenumerable", "prototype"),
    *("tolocalestring", "tostring", "valueof"),
)


def escape(text: str) -> str:
    """Escape a label so that mermaid shows it verbatim: syntax characters become entities."""
    escaped = _SYNTAX.sub(lambda match: f"#{ord(match[0])};", text)
    # Mermaid decodes entities before it looks for `\n` (line break), `$$` (formula) and `fa:`
    # (icon). A word joiner (U+2060) after an entity prevents that these are found.
    escaped = re.sub("#(36|58|92);", r"\g<0>#8288;", escaped)
    return " ".join(escaped.split()) or " "


# Characters that start mermaid syntax: quotes, entities, tags, markdown, formulas, icons (fa:name).
_SYNTAX = re.compile(r'["#&<>`\\$]|:(?=\S)')


def _describe(dimension: Dimension, notes: bool) -> Iterator[str]:
    """The lines of a dimension's label: class and fields; id and size; note."""
    yield dimension.label
    size = "" if dimension.size is None else f", size {to_text(dimension.size)}"
    yield f"{dimension.id}{size}"
    if notes and dimension.note:
        yield dimension.note


def _draw(picture: _Picture, edge: Edge, added: bool) -> None:
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


def _operation(op: Operation) -> list[str]:
    """The lines of the label of an operation in a diagram of a control graph."""
    match op:
        case For():
            step = [] if op.step == 1 else [f"step {to_text(op.step)}"]
            return [f"For {op.dim} in {to_text(op.start)} .. {to_text(op.stop)}", *step]
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
