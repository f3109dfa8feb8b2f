"""`Steps`: what every workgroup of a launch does, as columns with an entry for each step."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from coordgraph.integers.columns import Column

__all__ = ["COLUMNS", "StepKind", "Steps"]


class StepKind(IntEnum):
    """What a workgroup does in a step of a launch, such as multiply or send a partial sum."""

    MULTIPLY = 0
    """Sum consecutive k tiles of one output tile."""
    SEND = 1
    """Write a partial sum to a workspace slot, and set its flag."""
    RECEIVE = 2
    """Wait for partial sums in a workspace slot, and add them to the accumulators."""
    AWAIT = 3
    """Wait for a partial sum in a workspace slot, without adding it."""
    ADD = 4
    """Add a partial sum from the workspace to the accumulators."""
    FINISH = 5
    """Apply the epilogue to an output tile, before it is stored."""
    STORE = 6
    """Store an output tile, or only the rows of it that the workgroup finishes."""


@dataclass(frozen=True)
class Steps:
    """The steps of all workgroups as columns, sorted by workgroup and then in program order.

    Attributes:
        workgroups: the number of workgroups of the launch.
        tiles: the numbers of unit tiles (see `Span`) in m and n, and of k tiles; in a batch, the
            number of products comes first.
        slots: how many slots the workspace has.
        shapes: if products differ in size, for each product its numbers of unit tiles in m and n
            and of k tiles; else empty.
        workgroup: the workgroup of each step.
        kind: the `StepKind` of each step.
        tiling: the index of the step's tile shape in the graph's `tilings`.
        product, m, n: the output tile: its product (0 if there is only one), and its number along m
            and n, counted in tiles of the same shape.
        first, count: for MULTIPLY, the first k tile and the number of k tiles. For SEND, RECEIVE
            and AWAIT, the position (`Send.turn`) of the step's first partial sum among those that
            are sent to the slot one after another, and the number of the step's partial sums. For
            ADD, FINISH and STORE, the number of the share of the tile and the number of shares.
        slot: the workspace slot; -1 for steps without one.
        readers: for SEND, how many workgroups receive the partial sum; 0 for other steps.
        padding: for MULTIPLY, 1 if the k tiles lie outside the tensors, else 0.
    """

    workgroups: int
    tiles: tuple[int, ...]
    slots: int
    shapes: tuple[tuple[int, ...], ...]
    workgroup: Column
    kind: Column
    tiling: Column
    product: Column
    m: Column
    n: Column
    first: Column
    count: Column
    slot: Column
    readers: Column
    padding: Column

    def __len__(self) -> int:
        return len(self.workgroup)


COLUMNS = (
    *("workgroup", "kind", "tiling", "product", "m", "n"),
    *("first", "count", "slot", "readers", "padding"),
)
"""The names of the columns of `Steps`."""
