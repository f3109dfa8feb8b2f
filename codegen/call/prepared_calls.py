"""The prepared calls of `matmul` and `grouped_matmul`: how to launch a call, by its cache key."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from codegen.call.arrangement import Prepared, Repeat
from codegen.lru import LRUCache
from coordgraph.epilogue import EpilogueFunction

__all__ = ["forget_prepared", "prepared_calls", "prepared_epilogues", "repeated_functions"]

MOST_CALLS = 4096
"""The largest number of entries of each cache."""

prepared_calls = LRUCache[Hashable, Prepared](MOST_CALLS)
"""How to launch a call, by a key made of the layouts of its arrays and of its other arguments."""
prepared_epilogues = LRUCache[Hashable, tuple[EpilogueFunction, Prepared, Repeat | None]](
    MOST_CALLS
)
"""The epilogue of a call, how to launch the call, and a function of `Prepared.repeated` or None, by
`quick_key`, which is fast to compute."""
repeated_functions = LRUCache[Hashable, Any](MOST_CALLS)
"""For each key of a function and its arguments: a function of the list of tensors among the
arguments. It launches the kernel that an earlier call with this key launched, or returns None if it
launches nothing. The entry of a key without the layouts of the tensors is a `Recent` of
`codegen.torch.layouts`, which finds these functions faster. `codegen.torch.repeats` makes the
entries."""


def forget_prepared() -> None:
    """Drop every prepared call: the next call with its cache key chooses a plan again."""
    prepared_calls.clear()
    prepared_epilogues.clear()
    repeated_functions.clear()
