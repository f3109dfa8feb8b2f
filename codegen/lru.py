"""`LRUCache`: a bounded dictionary that drops the entries that were not used for longest."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

__all__ = ["LRUCache"]

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class LRUCache(Generic[K, V]):
    """Keeps at least the last `limit` entries used, and at most twice as many.

    Least recently used entries are dropped a generation at a time. Entries live in a young and an
    old dict of at most `limit` each; using an entry moves it to the young dict, and when that is
    full, it becomes the old one and the old one is dropped. So a repeated look-up is one look-up in
    a dict, and threads may share the cache without a lock.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._young: dict[K, V] = {}
        self._old: dict[K, V] = {}

    def get(self, key: K) -> V | None:
        """The value that was put under the key, or None."""
        found = self._young.get(key)
        if found is None and self._old:
            found = self._old.get(key)
            if found is not None:
                self.put(key, found)
        return found

    def put(self, key: K, value: V) -> V:
        """Keep a value under the key; returns the value."""
        if len(self._young) >= self.limit and key not in self._young:
            self._old, self._young = self._young, {}
        self._young[key] = value
        return value

    def clear(self) -> None:
        """Drop every entry."""
        self._old, self._young = {}, {}

    def __len__(self) -> int:
        return len(self._young.keys() | self._old.keys())
