"""The contents of operand stages in shared memory, if a group along k ends inside a k tile.

For each element, the simulation records the index along k that it was loaded from. TMA loads whole
boxes. When wgmma reads a stage, elements past the end of a group must be zero, and all other
elements must be as TMA loaded them.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from tests.codegen.nvptx.isa import Array, swizzled

__all__ = ["Contents", "Filled", "of_box"]

ZERO = -2
"""The value of an element that a thread set to zero, or that TMA loaded from outside its tensor."""
Stage = tuple[str, int]


@dataclass
class Filled:
    """Zeros that one warpgroup has stored but that wgmma may not see yet.

    The stores become visible when the warpgroup fences them and then meets the warpgroups that
    multiply the stage at a barrier, in that order (PTX ISA, "Async proxy").
    """

    stored: list[tuple[Stage, Array]] = field(default_factory=list[tuple[Stage, Array]])
    fenced: list[tuple[Stage, Array]] = field(default_factory=list[tuple[Stage, Array]])

    def fence(self) -> None:
        self.fenced += self.stored
        self.stored = []

    def meet(self, contents: Contents) -> None:
        """Arrive at the barrier of all warpgroups that multiply the stage.

        The zeros that the warpgroup has fenced become visible.
        """
        for stage, places in self.fenced:
            contents.fill(stage, places)
        self.fenced = []


@dataclass
class Contents:
    """The operand stages of one workgroup: for each position in shared memory, the index along k
    of the element that TMA loaded there.
    """

    arrays: dict[Stage, Array] = field(default_factory=dict[Stage, Array])
    boxes: dict[Stage, list[tuple[Array, Array]]] = field(
        default_factory=dict[Stage, list[tuple[Array, Array]]]
    )
    """For each stage, the TMA boxes that were loaded since the stage was last reused. A box is a
    pair: the positions of its elements in shared memory, and the k of each element.
    """
    steps: dict[Stage, int] = field(default_factory=dict[Stage, int])

    def copy(self, stage: Stage, size: int, step: int, places: Array, k: Array) -> None:
        """Load a TMA box into a stage: the element at `places[i]` has the index `k[i]` along k.

        Args:
            stage: the operand's shared-memory buffer, and the number of the stage in this buffer.
            size: number of elements of the stage.
            step: the number of stages that the producer filled before; a new step drops old boxes.
            places: for each element of the box, the element's position in the stage.
            k: for each element of the box, the element's index along k.
        """
        if self.steps.get(stage) != step:
            self.steps[stage], self.boxes[stage] = step, []
        self.arrays.setdefault(stage, np.full(size, ZERO))[places] = k
        self.boxes[stage].append((places, k))

    def fill(self, stage: Stage, places: Array) -> None:
        """Store zeros at the positions `places` of a stage to which TMA has loaded a box before."""
        if stage in self.arrays:
            self.arrays[stage][places] = ZERO

    def check(self, stage: Stage, step: int, end: int) -> None:
        """Check a stage that wgmma reads: loaded elements where k < `end`, else zeros."""
        assert self.steps[stage] == step, "a stage holds a box of another step"
        for places, k in self.boxes[stage]:
            found = self.arrays[stage][places]
            assert (found < end).all(), "elements past a group's end are multiplied"
            assert (found == np.where(k < end, k, ZERO)).all(), "a group's elements are zeroed"


def of_box(first: int, box: tuple[int, ...], k: int, extent: int, *, along: bool) -> Array:
    """The elements of a TMA box in shared memory, as an array with two rows.

    The first row has the position of each element, in elements of 16 bits; the second row has the
    element's index along k, or `ZERO` past the end of the tensor.

    Args:
        first: the position where the box begins, in elements of 16 bits.
        box: extents of the box: elements along the contiguous axis, and rows.
        k: the k of the box's first element.
        extent: the extent of the tensor along k; TMA loads zeros from there on.
        along: whether k is the contiguous axis.
    """
    wide, high = box[:2]
    row, column = np.arange(high)[:, None], np.arange(wide)[None, :]
    places = swizzled(2 * (first + row * wide + column), 2 * wide) // 2
    numbers = np.broadcast_to(k + (column if along else row), places.shape)
    return np.stack([places.ravel(), np.where(numbers < extent, numbers, ZERO).ravel()])
