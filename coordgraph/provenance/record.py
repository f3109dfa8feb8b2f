"""Provenance: which passes made and changed each dimension, edge, operation… of a graph."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

from coordgraph.control.graph import ControlGraph
from coordgraph.coordinates.edges import Edge
from coordgraph.coordinates.graph import CoordinateGraph
from coordgraph.parameters import Parameters
from coordgraph.tensors import Tensor

__all__ = ["PROBLEM", "History", "Key", "Origin", "Part", "Provenance", "Snapshot", "Step"]

PROBLEM = "problem"
"""Value of `Origin.made` for a part of a graph that existed before the first pass."""


class Part(Enum):
    """The kinds of graph parts for which provenance records the pass that made them.

    A member's value is the name of the kind in messages and in text.
    """

    PARAMETER = "parameter"
    TABLE = "table"
    TENSOR = "tensor"
    DIMENSION = "dimension"
    EDGE = "edge"
    OPERATION = "operation"


Key = str | Edge | int
"""Type of a key that identifies one part of a graph among the parts of its kind (`Part`): a name or
id, an edge itself, or the id of an operation."""


@dataclass(frozen=True)
class Origin:
    """Where a part of a graph, such as a dimension or an edge, comes from.

    Args:
        made: the text of the pass that added the part; `problem` if it existed before the first
            pass, `edit` if it was added outside of passes, '' if unknown.
        sources: the parts from which the pass made this part. For a dimension, the nearest
            dimensions that existed before; for a parameter, the names in its value; for an edge,
            the edges that it replaced; for an operation, the operations that it replaced.
        changed: the texts of the passes that changed the part afterwards, in order.
    """

    made: str = ""
    sources: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()

    def by(self, step: str) -> Origin:
        """The origin of a part of a graph after the pass `step` has changed that part."""
        return replace(self, changed=(*self.changed, step))

    def __str__(self) -> str:
        text = self.made or "unknown"
        if self.sources:
            text += f" from {'; '.join(self.sources)}"
        return text + (f", changed by {', '.join(self.changed)}" if self.changed else "")


UNKNOWN = Origin()
"""The origin of a dimension, edge or other part of a graph if nothing is known about it."""


@dataclass(frozen=True)
class Provenance:
    """The origins of the parts (dimensions, edges, …) of one graph.

    Args:
        origins: the origin of each part of the graph, by the part's kind (`Part`) and its key.
    """

    origins: Mapping[tuple[Part, Key], Origin] = field(
        default_factory=dict[tuple[Part, Key], Origin]
    )

    def __getitem__(self, key: tuple[Part, Key]) -> Origin:
        return self.origins.get(key, UNKNOWN)

    def __iter__(self) -> Iterator[tuple[Part, Key]]:
        return iter(self.origins)

    def dimension(self, name: str) -> Origin:
        """The passes that made and changed the dimension with the id `name`."""
        return self[Part.DIMENSION, name]

    def edge(self, edge: Edge) -> Origin:
        """The passes that made and changed an edge of the coordinate graph."""
        return self[Part.EDGE, edge]

    def operation(self, number: int) -> Origin:
        """The passes that made and changed the operation at position `number` in preorder."""
        return self[Part.OPERATION, number]

    @property
    def makers(self) -> tuple[str, ...]:
        """The texts of all passes that made or changed a part, in the order of first occurrence."""
        found = dict[str, None]()
        for origin in self.origins.values():
            found |= dict.fromkeys((origin.made, *origin.changed))
        return tuple(found)


@dataclass(frozen=True, eq=False)
class Snapshot:
    """The parts of a graph (such as tensors and edges) after one pass of a pipeline.

    Provenance says for each of these parts which pass made it.
    """

    parameters: Parameters
    tensors: tuple[Tensor, ...]
    coordinates: CoordinateGraph
    control: ControlGraph
    log: tuple[str, ...] = ()

    def records(self) -> Iterator[tuple[tuple[Part, Key], Any]]:
        """All parts of the graph that passes make (dimensions, edges, …), with kind and key."""
        yield from (((Part.PARAMETER, p.name), p) for p in self.parameters.items)
        yield from (((Part.TABLE, t.name), t) for t in self.parameters.tables)
        yield from (((Part.TENSOR, t.name), t) for t in self.tensors)
        yield from (((Part.DIMENSION, d.id), d) for d in self.coordinates)
        yield from (((Part.EDGE, e), e) for e in self.coordinates.edges)
        yield from (((Part.OPERATION, i), op) for i, op in enumerate(self.control.operations))

    def same(self, other: Snapshot) -> bool:
        """Whether two snapshots of graphs are equal; fast if they share their objects."""
        mine = (self.parameters, self.tensors, self.coordinates, self.control)
        others = (other.parameters, other.tensors, other.coordinates, other.control)
        return all(a is b or a == b for a, b in zip(mine, others, strict=True))


@dataclass(frozen=True, eq=False)
class Step:
    """One pass of a graph's history: the pass as text, and the graph before and after the pass."""

    text: str
    before: Snapshot
    after: Snapshot


@dataclass(frozen=True, eq=False)
class History:
    """The passes that made a graph; `KernelGraph.provenance` is computed from them.

    Args:
        steps: the passes that were called, in order.
        origins: the provenance of the first graph if it was read from a text with `origin` lines;
            else None.
    """

    steps: tuple[Step, ...] = ()
    origins: Provenance | None = None

    def then(self, text: str, before: Snapshot, after: Snapshot) -> History:
        """The history after one more pass."""
        return replace(self, steps=(*self.steps, Step(text, before, after)))
