"""`LRUCache`: a bounded dictionary that drops its least recently used entries."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

__all__ = ["LRUCache"]

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class LRUCache(Generic[K, V]):
    """A cache of at least the `limit` most recently used entries, and at most twice as many.

    Entries are in two dictionaries of at most `limit` entries each: young and old. Using an entry
    moves it to the young dictionary. When the young dictionary is full, it becomes the old one, the
    previous old one is dropped, and a new young one begins. So a repeated look-up is one look-up in
    a dictionary, and threads may share the cache without a lock.

    Args:
        limit: the number of most recently used entries that are never dropped.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._young: dict[K, V] = {}
        self._old: dict[K, V] = {}

    def get(self, key: K) -> V | None:
        """The value that is stored under `key`, or None."""
        found = self._young.get(key)
        if found is None and self._old:
            found = self._old.get(key)
            if found is not None:
                self.put(key, found)
        return found

    def put(self, key: K, value: V) -> V:
        """Store `value` under `key`, and return the value."""
        if len(self._young) >= self.limit and key not in self._young:
            self._old, self._young = self._young, {}
        self._young[key] = value
        return value

    def clear(self) -> None:
        """Drop every entry."""
        self._old, self._young = {}, {}

    def __len__(self) -> int:
        return len(self._young.keys() | self._old.keys())
