"""Places: which of a workgroup's memories lie in one place, and how large it must be."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from coordgraph.coordinates.dimensions import Shared

__all__ = ["places"]


def places(
    memories: Iterable[Shared], size: Callable[[Shared], int]
) -> Iterator[tuple[Shared, tuple[str, ...], int]]:
    """For each place whose it is, the names of all that lie in it, and what the largest needs.

    Args:
        memories: of a workgroup.
        size: what one of them needs, in any unit.
    """
    every = tuple(memories)
    for home in every:
        if not home.within:
            sharers = [home, *(other for other in every if other.within == home.id)]
            yield home, tuple(other.id for other in sharers), max(map(size, sharers))
