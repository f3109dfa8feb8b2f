"""What lies in the stages of operands, element by element, where groups end inside a k tile.

Of every element it is known which k it is of. TMA brings whole boxes; what of them lies
behind the end of a group must be zeros by the time that the matrix unit reads them, and nothing
else may be.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from tests.codegen.nvptx.isa import Array, swizzled

__all__ = ["Contents", "Filled", "of_box"]

ZERO = -2
"""An element that was filled, or that TMA found outside of the tensor."""
Stage = tuple[str, int]


@dataclass
class Filled:
    """Zeros that one warpgroup has stored, on their way to where the matrix unit sees them.

    Its stores are its own until it fences them and meets those who multiply the same stage (PTX
    ISA, "Async proxy"): fence first, then the barrier.
    """

    stored: list[tuple[Stage, Array]] = field(default_factory=list[tuple[Stage, Array]])
    fenced: list[tuple[Stage, Array]] = field(default_factory=list[tuple[Stage, Array]])

    def fence(self) -> None:
        self.fenced += self.stored
        self.stored = []

    def meet(self, contents: Contents) -> None:
        """Come to a barrier of all that multiply the stage."""
        for stage, places in self.fenced:
            contents.fill(stage, places)
        self.fenced = []


@dataclass
class Contents:
    """The stages of one workgroup's operands: the k of every element, by its place in the stage."""

    arrays: dict[Stage, Array] = field(default_factory=dict[Stage, Array])
    boxes: dict[Stage, list[tuple[Array, Array]]] = field(
        default_factory=dict[Stage, list[tuple[Array, Array]]]
    )
    """Of a step: where its boxes lie, and what they brought."""
    steps: dict[Stage, int] = field(default_factory=dict[Stage, int])

    def copy(self, stage: Stage, size: int, step: int, places: Array, k: Array) -> None:
        """Bring a box of a step to a stage of so many elements."""
        if self.steps.get(stage) != step:
            self.steps[stage], self.boxes[stage] = step, []
        self.arrays.setdefault(stage, np.full(size, ZERO))[places] = k
        self.boxes[stage].append((places, k))

    def fill(self, stage: Stage, places: Array) -> None:
        """Zeros, which may also lie where no box was asked for."""
        if stage in self.arrays:
            self.arrays[stage][places] = ZERO

    def check(self, stage: Stage, step: int, end: int) -> None:
        """The matrix unit reads: k of the group as it was brought, zeros behind the end."""
        assert self.steps[stage] == step, "another step's box"
        for places, k in self.boxes[stage]:
            found = self.arrays[stage][places]
            assert (found < end).all(), "what lies behind the end of a group is multiplied"
            assert (found == np.where(k < end, k, ZERO)).all(), "a part of a group is cleared"


def of_box(first: int, box: tuple[int, ...], k: int, extent: int, *, along: bool) -> Array:
    """Where the elements of a box lie in shared memory, and the k of each: two rows of an array.

    Args:
        first: where the box begins, in elements of 16 bits.
        box: elements along the contiguous axis, and rows.
        k: of its first element.
        extent: of the tensor along k; TMA brings zeros from there on.
        along: k is the contiguous axis.
    """
    wide, high = box[:2]
    row, column = np.arange(high)[:, None], np.arange(wide)[None, :]
    places = swizzled(2 * (first + row * wide + column), 2 * wide) // 2
    numbers = np.broadcast_to(k + (column if along else row), places.shape)
    return np.stack([places.ravel(), np.where(numbers < extent, numbers, ZERO).ravel()])
