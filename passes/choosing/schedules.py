"""What schedules do, as numbers: the columns by which a model judges them, and back to passes.

A schedule is not an entry in a list here but a point: which tiles stay whole, what becomes of the
others, and how their pieces come together. So what is said of one option holds for every schedule
that has it.
"""

from __future__ import annotations

from collections.abc import Mapping

from passes.base import Pass
from passes.data_parallel import DataParallel
from passes.fixup import OWNERS, REDUCTIONS
from passes.heterogeneous_tiles import HeterogeneousTiles
from passes.hybrid_stream_k import HybridStreamK
from passes.partly_streamed import ORDERS, PartlyStreamed
from passes.stream_k import StreamK
from passes.two_tile_stream_k import TwoTileStreamK

__all__ = [
    "EACH",
    "EVERY",
    "FEWER",
    "FULL",
    "LAST",
    "NONE",
    "NOTHING",
    "PEERS",
    "SCATTER",
    "TREE",
    "TURNSTILE",
    "family",
    "numbers_of",
    "schedule_of",
]

EACH, EVERY, FULL, FEWER, NONE = range(5)
"""Which tiles are whole: all, with a workgroup for each; all, in waves; those of the full waves;
those of one full wave fewer where the last is ragged; none."""
PEERS, TREE, TURNSTILE, SCATTER = map(REDUCTIONS.index, ("peers", "tree", "turnstile", "scatter"))
LAST = OWNERS.index("last")
STREAMED: dict[int, type[StreamK] | type[PartlyStreamed]] = {
    FULL: HybridStreamK,
    FEWER: TwoTileStreamK,
    NONE: StreamK,
}
"""The passes by what they leave whole."""
NOTHING: dict[str, float] = {
    "small_m": 0,
    "small_n": 0,
    "owner": 0,
    "reduction": PEERS,
    "least": 1,
    "least_segment": 1,
    "first": 0,
}
"""Of a schedule that divides no tile."""


def numbers_of(schedule: Pass, tile: tuple[int, int, int]) -> dict[str, float] | None:
    """Columns of a schedule with a macro tile, or None where the model does not know it.

    They are `whole`, and those of `NOTHING`; see `Table`.
    """
    if getattr(schedule, "workgroups", None) is not None:
        return None  # the grid belongs to the plan
    if isinstance(schedule, DataParallel):
        return {**NOTHING, "whole": EVERY if schedule.persistent else EACH}
    if isinstance(schedule, HeterogeneousTiles):
        small_m, small_n = schedule.small(tile)
        return {**NOTHING, "whole": FULL, "small_m": small_m, "small_n": small_n}
    kinds = {kind: whole for whole, kind in STREAMED.items()}
    whole = kinds.get(type(schedule))  # type: ignore[arg-type]
    if whole is None or getattr(schedule, "waves", "strided") != "strided":
        return None
    assert isinstance(schedule, StreamK | PartlyStreamed)
    if schedule.reduction == "atomic":
        return None  # nobody's plan who did not ask for it: other bits in every run
    return {
        **NOTHING,
        "whole": whole,
        "owner": OWNERS.index(schedule.owner),
        "reduction": REDUCTIONS.index(schedule.reduction),
        "least": schedule.least,
        "least_segment": schedule.least_segment,
        "first": ORDERS.index(getattr(schedule, "first", ORDERS[0])),
    }


def schedule_of(numbers: Mapping[str, float], tile: tuple[int, int, int]) -> Pass:
    """The schedule of its columns; options that are the defaults are not named."""
    whole = int(numbers["whole"])
    if whole in (EACH, EVERY):
        return DataParallel(persistent=whole == EVERY)
    if numbers["small_m"]:
        own = (int(numbers["small_m"]), int(numbers["small_n"]))
        usual = HeterogeneousTiles().small(tile)
        m, n = (None if one == other else one for one, other in zip(own, usual, strict=True))
        return HeterogeneousTiles(small_m=m, small_n=n)
    options = {
        "owner": OWNERS[int(numbers["owner"])],
        "reduction": REDUCTIONS[int(numbers["reduction"])],
        "least": int(numbers["least"]),
        "least_segment": int(numbers["least_segment"]),
    }
    kind = STREAMED[whole]
    if kind is not StreamK:
        options["first"] = ORDERS[int(numbers["first"])]
    return kind(**options)  # type: ignore[arg-type]


def family(schedule: Pass) -> str:
    """What kind of schedule it is: its name, and what it does otherwise than by default.

    >>> family(DataParallel(persistent=True)), family(StreamK(reduction="tree", owner="last"))
    ('data-parallel', 'stream-k tree')
    >>> family(HybridStreamK(least_segment=8))
    'hybrid-stream-k without slivers'
    """
    words = [schedule.name]
    if (reduction := getattr(schedule, "reduction", REDUCTIONS[PEERS])) != REDUCTIONS[PEERS]:
        words.append(reduction)
    if getattr(schedule, "least_segment", 1) > 1:
        words.append("without slivers")
    return " ".join(words)
