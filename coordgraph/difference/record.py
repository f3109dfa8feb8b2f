"""Differences as records: what was added, removed, changed or moved between two graphs.

`coordgraph.difference.compare` makes the records, `coordgraph.difference.report` prints them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from coordgraph.hooks import Hook

__all__ = ["LINES", "PARTS", "Change", "Difference", "Kind", "Place", "Row"]

PARTS = {
    "problem": "problem",
    "parameter": "parameters",
    "table": "tables",
    "assumption": "assumptions",
    "tensor": "tensors",
    "dimension": "dimensions",
    "edge": "edges",
    "operation": "operations",
}
"""The kinds of parts of a graph that are compared, with their plurals, in the order of reports."""


class Kind(Enum):
    """The kind of a change; the value of each member is the mark that reports print for it."""

    ADDED = "+"
    REMOVED = "-"
    CHANGED = "~"
    MOVED = ">"
    """An operation that is in another body: inside another loop or branch, or outside of one."""


@dataclass(frozen=True)
class Place:
    """The position of an operation in two control graphs.

    Args:
        before, after: the operation's id in each graph; None in a graph that lacks it.
        around_before, around_after: the enclosing operation in each graph; '' if there is none.
    """

    before: int | None
    after: int | None
    around_before: str = ""
    around_after: str = ""

    def as_data(self) -> dict[str, Any]:
        """The fields as a dictionary for JSON, under the keys `ids` and `within`."""
        return {
            "ids": {"before": self.before, "after": self.after},
            "within": {
                "before": self.around_before or None,
                "after": self.around_after or None,
            },
        }


@dataclass(frozen=True)
class Change:
    """One difference between two graphs.

    Args:
        part: the part of the graph, one of `PARTS`.
        kind: the kind of the change, such as added.
        before, after: the record in each graph as a line of the text form; '' in a graph that lacks
            it.
        fields: for a record that changed, the text of each changed field before and after.
        operation: for an operation, its positions in the control graphs; None for other records.
    """

    part: str
    kind: Kind
    before: str = ""
    after: str = ""
    fields: Mapping[str, tuple[str, str]] = field(default_factory=dict[str, tuple[str, str]])
    operation: Place | None = None

    def as_data(self) -> dict[str, Any]:
        """The change as a dictionary for JSON.

        The keys `part`, `change`, `before` and `after` are always there, and an empty value is
        None. Other fields that are empty have no key.
        """
        found: dict[str, Any] = {"part": self.part, "change": self.kind.name.lower()}
        found |= {"before": self.before or None, "after": self.after or None}
        if self.fields:
            found["fields"] = {
                name: {"before": old, "after": new} for name, (old, new) in self.fields.items()
            }
        if self.operation is not None:
            found |= self.operation.as_data()
        return found


@dataclass(frozen=True)
class Row:
    """One line of the merged control tree: an operation of one graph or of both.

    Args:
        line: the operation as a line of the text form.
        depth: the number of operations that enclose it.
        id: the operation's id in the second graph, or in the first if it was removed.
        change: how the operation changed; None if it did not change.
        branch: the body of the enclosing operation, such as `else`; '' for the first body.
    """

    line: str
    depth: int
    id: int
    change: Change | None = None
    branch: str = ""


@dataclass(frozen=True)
class Difference:
    """The difference of two graphs by structure.

    Args:
        changes: what was added, removed, changed or moved, in the order of `PARTS`.
        control: the operations of both graphs as one tree, in preorder; empty if both graphs have
            the same operations.
        renamed: from old id to new id, the dimensions that the second graph has under another id.
        reordered: whether equal dimensions or edges are declared in another order, which changes
            the text of the graph but no index.
        logs: the passes that were applied to the first and to the second graph, if they differ,
            else None. Graphs that differ only in their logs count as equal.
    """

    changes: tuple[Change, ...] = ()
    control: tuple[Row, ...] = ()
    renamed: Mapping[str, str] = field(default_factory=dict[str, str])
    reordered: bool = False
    logs: tuple[tuple[str, ...], tuple[str, ...]] | None = None

    @property
    def equal(self) -> bool:
        """Whether both graphs describe the same kernel, up to names of dimensions."""
        return not self.changes

    def of_part(self, part: str) -> tuple[Change, ...]:
        """The changes in one of `PARTS`."""
        return tuple(change for change in self.changes if change.part == part)

    @property
    def counts(self) -> dict[str, dict[str, int]]:
        """The numbers of changes, by part and by kind such as `added`; zeros are left out."""
        found: dict[str, dict[str, int]] = {}
        for part in PARTS:
            kinds = Counter(change.kind.name.lower() for change in self.of_part(part))
            if kinds:
                found[part] = dict(kinds)
        return found

    def text(self) -> str:
        """The difference as text of several lines, for people to read."""
        return "".join(f"{text}\n" for text, _ in LINES(self))

    def as_data(self) -> dict[str, Any]:
        """The difference as a dictionary for `json.dumps`, without the tree `control`."""
        logs = None
        if self.logs is not None:
            logs = {"before": list(self.logs[0]), "after": list(self.logs[1])}
        return {
            "equal": self.equal,
            "counts": self.counts,
            "changes": [change.as_data() for change in self.changes],
            "renamed": dict(self.renamed),
            "reordered": self.reordered,
            "logs": logs,
        }

    def __str__(self) -> str:
        return self.text().rstrip("\n")


LINES = Hook[[Difference], list[tuple[str, str]]]("Difference.text", "coordgraph.difference.report")
"""`Difference.text` calls this hook for its lines, as pairs (line, name of the line's style);
`coordgraph.difference.report` implements the hook."""
