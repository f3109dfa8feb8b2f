"""`Recent`: what was used not long ago, within a bound."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

__all__ = ["Recent"]

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Recent(Generic[K, V]):
    """A memory that keeps the last `limit` entries used, and forgets those of long ago.

    Entries live in two generations of at most `limit` each: one that was used goes to the younger
    one, and when that is full, the older one is dropped. So a look-up of what was used lately is
    one look-up in a dict, and threads may share the memory without a lock.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._young: dict[K, V] = {}
        self._old: dict[K, V] = {}

    def get(self, key: K) -> V | None:
        """What is known under the key, or None."""
        found = self._young.get(key)
        if found is None and self._old:
            found = self._old.get(key)
            if found is not None:
                self.put(key, found)
        return found

    def put(self, key: K, value: V) -> V:
        """Remember a value."""
        if len(self._young) >= self.limit and key not in self._young:
            self._old, self._young = self._young, {}
        self._young[key] = value
        return value

    def __len__(self) -> int:
        return len(self._young.keys() | self._old.keys())
