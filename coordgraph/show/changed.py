"""Pictures of what a pass changed in a coordinate graph.

A picture has the dimensions and edges of the graphs before and after the pass. CSS classes say
which were added, removed or changed, so one drawing shows the graph before, after, or both.

A large graph is drawn with one box for each scope: for the dimensions whose ids are equal up to the
first dot.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from coordgraph.coordinates.dimensions import Dimension
from coordgraph.coordinates.edges import Edge
from coordgraph.coordinates.graph import CoordinateGraph
from coordgraph.integers import to_text
from coordgraph.show.fields import shown, written
from coordgraph.show.layered import Arrow, Box, Drawing, draw_layered

__all__ = ["MOST_EDGES", "ChangedGraph"]

MOST_EDGES = 200
"""Largest number of edges for which every dimension is drawn; of a larger graph, one box is drawn
for each scope (the dimensions whose ids are equal up to the first dot)."""
LONGEST = 44
"""Largest number of characters of a line in a box; longer lines end in an ellipsis."""
SAME, ADDED, REMOVED, CHANGED = "same", "added", "removed", "changed"


@dataclass(frozen=True)
class ChangedGraph:
    """The dimensions and edges of two graphs, each marked as added, removed, changed or kept.

    Args:
        dimensions: by id, the dimension (the later graph's, if both graphs have it) and its mark:
            whether it was added, removed, changed or kept.
        edges: the edges of both graphs, each with its mark.
    """

    dimensions: Mapping[str, tuple[Dimension, str]]
    edges: tuple[tuple[Edge, str], ...]

    @classmethod
    def of(cls, before: CoordinateGraph, after: CoordinateGraph) -> ChangedGraph:
        """Compare two graphs by the ids of dimensions and the operands of edges."""
        old, new = dict(before.dimensions), dict(after.dimensions)
        dimensions = {
            name: (d, SAME if old.get(name) == d else CHANGED if name in old else ADDED)
            for name, d in new.items()
        }
        dimensions |= {name: (d, REMOVED) for name, d in old.items() if name not in new}
        gone = Counter(before.edges) - Counter(after.edges)
        come = Counter(after.edges) - Counter(before.edges)
        replaced = {_operands(edge) for edge in gone}
        edges = list[tuple[Edge, str]]()
        for edge in after.edges:
            if come[edge] > 0:
                come[edge] -= 1
                edges.append((edge, CHANGED if _operands(edge) in replaced else ADDED))
            else:
                edges.append((edge, SAME))
        kept = {_operands(edge) for edge in after.edges}
        edges += [(e, REMOVED) for e in gone.elements() if _operands(e) not in kept]
        return cls(dimensions, tuple(edges))

    @property
    def large(self) -> bool:
        """Whether the graph has more than `MOST_EDGES` edges."""
        return len(self.edges) > MOST_EDGES

    @property
    def scopes(self) -> tuple[str, ...]:
        """Names of the scopes: the parts of dimension ids up to the first dot."""
        return tuple(dict.fromkeys(map(scope_of, self.dimensions)))

    def draw(self) -> Drawing:
        """Draw the whole graph, or one box for each scope if the graph is large.

        A scope has the dimensions whose ids are equal up to the first dot.
        """
        return self._collapsed() if self.large else self._drawn(set(self.dimensions), self.edges)

    def draw_scope(self, scope: str) -> Drawing:
        """Draw the dimensions whose id is `scope` up to the first dot, and all their edges."""
        own = {name for name in self.dimensions if scope_of(name) == scope}
        touching = [(e, c) for e, c in self.edges if own & {*e.upstream, *e.downstream}]
        shown_here = own.union(*({*e.upstream, *e.downstream} for e, _ in touching))
        return self._drawn(shown_here, touching)

    def _drawn(self, names: set[str], edges: Iterable[tuple[Edge, str]]) -> Drawing:
        boxes = [
            Box(name, tuple(_describe(d)), f"round {change}")
            for name, (d, change) in self.dimensions.items()
            if name in names
        ]
        arrows = list[Arrow]()
        for number, (edge, change) in enumerate(edges):
            details = ", ".join(f"{n} {written(v, to_text)}" for n, v in shown(edge).items())
            if len(edge.upstream) == len(edge.downstream) == 1:
                label = edge.kind + (f" {details}" if details else "")
                arrows.append(Arrow(edge.upstream[0], edge.downstream[0], _short(label), change))
                continue
            lines = (edge.kind, _short(details)) if details else (edge.kind,)
            boxes.append(Box(number, lines, f"edge {change}"))
            arrows += [
                Arrow(name, number, _place(i, edge.upstream), change)
                for i, name in enumerate(edge.upstream)
            ]
            arrows += [
                Arrow(number, name, _place(i, edge.downstream), change)
                for i, name in enumerate(edge.downstream)
            ]
        return draw_layered(boxes, arrows)

    def _collapsed(self) -> Drawing:
        counts = {scope: Counter[str]() for scope in self.scopes}
        for name, (_, change) in self.dimensions.items():
            counts[scope_of(name)][change] += 1
        pairs = dict[tuple[str, str], Counter[str]]()
        for edge, change in self.edges:
            ends = {(scope_of(u), scope_of(d)) for u in edge.upstream for d in edge.downstream}
            for start, end in ends:
                if start == end:
                    counts[start]["edges"] += 1
                else:
                    pairs.setdefault((start, end), Counter())[change] += 1
        boxes = [Box(s, tuple(_scope(s, c)), f"round {_overall(c)}") for s, c in counts.items()]
        arrows = [
            Arrow(start, end, str(sum(changes.values())), _overall(changes))
            for (start, end), changes in pairs.items()
        ]
        return draw_layered(boxes, arrows)


def scope_of(name: str) -> str:
    """The scope of a dimension: its id up to the first dot."""
    return name.partition(".")[0]


def _operands(edge: Edge) -> tuple[Any, ...]:
    return type(edge), edge.upstream, edge.downstream


def _overall(changes: Counter[str]) -> str:
    """The change of a box or arrow that represents several dimensions or edges.

    The result is the change that all these dimensions or edges have, or `CHANGED` if they differ.
    """
    found = {change for change in (SAME, ADDED, REMOVED, CHANGED) if changes[change]}
    return found.pop() if len(found) == 1 else CHANGED


def _scope(scope: str, counts: Counter[str]) -> Iterator[str]:
    total = sum(counts[c] for c in (SAME, ADDED, REMOVED, CHANGED))
    yield scope if total == 1 else f"{scope}.…"
    if total > 1:
        yield f"{total} dimensions, {counts['edges']} edges"
    marks = ((ADDED, "+"), (REMOVED, "−"), (CHANGED, "~"))
    if changes := [f"{mark}{counts[change]}" for change, mark in marks if counts[change]]:
        yield " ".join(changes)


def _place(position: int, operands: tuple[str, ...]) -> str:
    return str(position) if len(operands) > 1 else ""


def _describe(dimension: Dimension) -> Iterator[str]:
    yield dimension.id
    size = "" if dimension.size is None else f" size {to_text(dimension.size)}"
    yield _short(f"{dimension.kind}{size}")


def _short(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"
