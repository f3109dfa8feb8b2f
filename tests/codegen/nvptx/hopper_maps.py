"""Model of the tensor maps that a kernel writes.

The model records which matrices have a tensor map, and checks the fields of each map.

"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from coordgraph.gemm import ROW_STEP, TENSORS, elements_of

__all__ = ["WHOLE_WARPS", "Map", "Matrices"]

WHOLE_WARPS = ("barrier.described", "barrier.used")
"""Names of the barriers at which all 32 threads of a warp arrive, not only one of them."""


class Map(NamedTuple):
    """The fields of one tensor map, as the operation `DescribeMatrix` writes them."""

    tensor: str
    first: int
    extents: tuple[int, int]
    pitch: int


class Matrices:
    """The matrices of a list of products, and the tensor maps that the kernel has written for them.

    Args:
        sides: three sequences, along m, n and k: the index at which each product begins, then the
            end of the last product.
        values: the values of the graph's parameters.
    """

    def __init__(self, sides: Sequence[Sequence[int]], values: Mapping[str, Any]) -> None:
        self.sides, self.values = dict(zip("mnk", sides, strict=True)), values
        self.maps: dict[int, Map] = {}

    def end(self, axis: str, group: int) -> int:
        return self.sides[axis][group + 1]

    def extent(self, axis: str, group: int) -> int:
        return self.end(axis, group) - self.sides[axis][group]

    def map(self, tensor: str, group: int, *, turned: bool) -> Map:
        """The tensor map of A, B or D of the product number `group`.

        `turned` says that the matrix is stored as its transpose. An empty matrix is described as
        one element inside the tensor, since TMA rejects extent 0.
        """
        across, along = reversed(TENSORS[tensor]) if turned else TENSORS[tensor]

        def pitch(group: int) -> int:
            return -(-self.extent(along, group) // ROW_STEP) * ROW_STEP

        first = sum(self.extent(across, g) * pitch(g) for g in range(group))
        last = (self.values[elements_of(tensor)] - 1) // ROW_STEP * ROW_STEP
        extents = self.extent(along, group), self.extent(across, group)
        found = extents if all(extents) else (1, 1)
        return Map(tensor, min(first, last), found, max(ROW_STEP, pitch(group)))

    def publish(self, written: Mapping[int, Map]) -> None:
        """Make written tensor maps visible to the other warps."""
        for place, map in written.items():
            assert self.maps.get(place, map) == map, "a tensor map is overwritten by another one"
            self.maps[place] = map

    def check(self, place: int, wanted: Map) -> None:
        """Check that the tensor map number `place`, through which TMA loads a box, is `wanted`."""
        assert place in self.maps, "TMA uses a tensor map before it was written"
        assert self.maps[place] == wanted, "TMA uses the tensor map of another matrix"
