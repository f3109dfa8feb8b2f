"""Align the operations of two control graphs: find the same operation in both."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher
from typing import Any

from coordgraph.control.graph import ControlGraph
from coordgraph.control.operations import Operation

__all__ = ["Tree", "align"]


class Tree:
    """The operations of a control graph in preorder, each with the body that it is in.

    Args:
        control: the control graph.
    """

    def __init__(self, control: ControlGraph) -> None:
        self.operations: list[Operation] = []
        self.parents: list[tuple[int, str]] = []
        """For each operation, the id of the enclosing operation (-1 for the kernel), and the name
        of that operation's body which contains it."""
        self.depths: list[int] = []
        self._add(control.root, -1, "", 0)

    def _add(self, op: Operation, parent: int, body: str, depth: int) -> None:
        own = len(self.operations)
        self.operations.append(op)
        self.parents.append((parent, body))
        self.depths.append(depth)
        for name in op.BODIES:
            for child in getattr(op, name):
                self._add(child, own, name, depth + 1)

    def heads(self) -> list[tuple[Any, ...]]:
        """For each operation, a tuple of its class and its fields other than bodies.

        Operations with equal tuples are the same apart from the operations that they contain.
        """
        return [(op.kind, *op.details.values()) for op in self.operations]


def align(before: Tree, after: Tree) -> dict[int, int]:
    """Match the operations of two graphs: a dictionary from ids in `after` to ids in `before`.

    Operations are compared in preorder, so an operation that was put into another loop or branch is
    still matched with itself. Operations that changed are matched by class and in order, between
    neighbouring operations that are equal. Operations without a match are left out.
    """
    old, new = before.heads(), after.heads()
    found: dict[int, int] = {}
    for (i1, i2), (j1, j2), equal in _blocks(old, new):
        if equal:
            found.update(zip(range(j1, j2), range(i1, i2), strict=True))
            continue
        kinds = [head[0] for head in old[i1:i2]], [head[0] for head in new[j1:j2]]
        for (a1, a2), (b1, b2), same in _blocks(*kinds):
            if same:
                pairs = zip(range(b1, b2), range(a1, a2), strict=True)
                found.update((j1 + b, i1 + a) for b, a in pairs)
    return found


def _blocks(
    old: Sequence[Any], new: Sequence[Any]
) -> Iterator[tuple[tuple[int, int], tuple[int, int], bool]]:
    """Corresponding ranges of two sequences, in order, and whether the two ranges are equal."""
    matcher = SequenceMatcher(None, old, new, autojunk=False)
    for tag, i1, i2, j1, j2 in matcher.get_opcodes():
        yield (i1, i2), (j1, j2), tag == "equal"
