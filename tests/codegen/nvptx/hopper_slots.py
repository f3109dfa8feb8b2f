"""D's slots in shared memory, as one warpgroup fills them and TMA empties them."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

__all__ = ["Slots"]


@dataclass
class Slots:
    """Slots by their places; TMA is as slow as it may be.

    It has read a slot only when a wait says so (PTX ISA, "cp.async.bulk.wait_group"): of the groups
    that one workitem has closed, all but the newest, empty ones too.
    """

    full: set[int] = field(default_factory=set[int])
    open: set[int] = field(default_factory=set[int])
    """Read by boxes of no group yet."""
    groups: deque[set[int]] = field(default_factory=deque[set[int]])

    def fill(self, place: int) -> None:
        """Write a box to a slot."""
        busy = self.open.union(*self.groups)
        assert place not in busy, "a slot is filled while TMA reads it"
        assert place not in self.full, "a box is lost"
        self.full.add(place)

    def take(self, place: int, *, later: bool) -> None:
        """Bring a box to memory: `later` by TMA, or now."""
        assert place in self.full, "nothing is in the slot"
        self.full.remove(place)
        if later:
            self.open.add(place)

    def commit(self) -> None:
        """Close a group."""
        self.groups.append(self.open)
        self.open = set()

    def wait(self, pending: int) -> None:
        """All but so many groups have been read."""
        while len(self.groups) > pending:
            self.groups.popleft()
