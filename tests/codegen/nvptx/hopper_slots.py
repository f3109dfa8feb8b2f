"""Model of D's staging slots in shared memory: one warpgroup fills them, TMA stores empty them."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

__all__ = ["Slots"]


@dataclass
class Slots:
    """The staging slots of D in shared memory; TMA reads a slot as late as PTX allows.

    In this model, TMA has read a slot only after a wait for the slot's group of stores. A wait
    leaves at most the newest groups pending; empty groups are counted too (PTX ISA,
    "cp.async.bulk.wait_group").
    """

    full: set[int] = field(default_factory=set[int])
    open: set[int] = field(default_factory=set[int])
    """Addresses of slots that are read by TMA stores which are not committed yet."""
    groups: deque[set[int]] = field(default_factory=deque[set[int]])

    def fill(self, place: int) -> None:
        """Write a box of D to the shared-memory slot at address `place`."""
        busy = self.open.union(*self.groups)
        assert place not in busy, "a slot is filled while TMA reads it"
        assert place not in self.full, "a slot is overwritten before it was stored to D"
        self.full.add(place)

    def take(self, place: int, *, later: bool) -> None:
        """Copy the box in a shared-memory slot to D: now, or `later` by a TMA store."""
        assert place in self.full, "a slot is stored to D before it was filled"
        self.full.remove(place)
        if later:
            self.open.add(place)

    def commit(self) -> None:
        """Commit the TMA stores since the last commit as one group."""
        self.groups.append(self.open)
        self.open = set()

    def wait(self, pending: int) -> None:
        """Wait until TMA has read all groups of stores except the newest `pending` ones."""
        while len(self.groups) > pending:
            self.groups.popleft()
