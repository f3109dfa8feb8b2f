"""Shared-memory allocations: which buffers of a workgroup alias, and how large each must be."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from coordgraph.coordinates.dimensions import Shared

__all__ = ["allocations"]


def allocations(
    buffers: Iterable[Shared], size: Callable[[Shared], int]
) -> Iterator[tuple[Shared, tuple[str, ...], int]]:
    """For each shared-memory allocation: its owner, the ids of all buffers in it, and its size.

    A buffer whose `within` names another buffer, the owner, aliases the owner: both have the same
    address.

    Args:
        buffers: the `Shared` dimensions of a workgroup.
        size: a function from a buffer to its size, in any unit. An allocation is as large as its
            largest buffer.
    """
    every = tuple(buffers)
    for owner in every:
        if not owner.within:
            aliases = [owner, *(other for other in every if other.within == owner.id)]
            yield owner, tuple(buffer.id for buffer in aliases), max(map(size, aliases))
