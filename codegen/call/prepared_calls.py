"""The prepared calls of `matmul` and `grouped_matmul`: how to launch a call, by its cache key."""

from __future__ import annotations

from collections.abc import Hashable

from codegen.call.arrangement import Prepared, Repeat
from codegen.lru import LRUCache
from coordgraph.epilogue import EpilogueFunction

__all__ = ["forget_prepared", "prepared_calls", "prepared_epilogues"]

MOST_CALLS = 4096
"""The largest number of entries of each cache."""

prepared_calls = LRUCache[Hashable, Prepared](MOST_CALLS)
prepared_epilogues = LRUCache[Hashable, tuple[EpilogueFunction, Prepared, Repeat | None]](
    MOST_CALLS
)
"""Prepared launches of products with an epilogue, by `quick_key`, which takes little host time.

An entry has the epilogue, the prepared call, and a function of `Prepared.repeated` or None.
"""


def forget_prepared() -> None:
    """Drop every prepared call: the next call with its cache key chooses a plan again."""
    prepared_calls.clear()
    prepared_epilogues.clear()
