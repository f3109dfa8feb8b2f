"""The schedules among which `codegen.matmul` may choose, and counters of their work.

A pass lists the schedules of its class that may be chosen, and the sizes that they suit
(`Pass.variants`, `Pass.suits`). The work of each workgroup and the kind of fix-up are derived from
the scheduled graph; a schedule for which this fails is not chosen.

The counters of the library's own schedules are kept in `work_counters.json`, because deriving a
counter takes longer than choosing a plan; `python -m passes.choosing.known_schedules` writes that
file.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from coordgraph import CoordGraphError, PassError
from passes.base import Pass
from passes.choosing.counting import COUNTED_TILE, WorkCounter
from passes.choosing.tuned_schedules import PINNED, RECORDED, TUNED
from passes.registry import PASSES, find_pass, offered

__all__ = ["adjacent_tiles", "chosen_schedules", "counter_of", "family"]

FILE = Path(__file__).with_name("work_counters.json")
"""The file that holds the `WorkCounter`s of the library's own schedules."""


@cache
def counter_of(schedule: Pass) -> WorkCounter | None:
    """The `WorkCounter` of a schedule, which counts iterations and fix-ups of its workgroups.

    Returns None if these counts cannot be derived from the scheduled graph.

    Args:
        schedule: the schedule, with options for the macro tile `COUNTED_TILE` and
            `workgroups=None`.
    """
    if not schedule.neighbours:
        return None
    kept = _kept().get(str(schedule)) if _ours(schedule) else None
    if kept is not None:
        return WorkCounter.from_data(kept)
    # Imported here because `enumeration` imports the interpreter, which is seldom needed.
    from passes.choosing.enumeration import check

    try:
        counter = WorkCounter.derive(schedule)
        check(counter, schedule)
    except CoordGraphError:
        return None
    return counter


def _ours(schedule: Pass) -> bool:
    """Whether a schedule is one of this library's own."""
    return type(schedule).__module__.startswith("passes.schedules.")


@cache
def _kept() -> dict[str, dict[str, Any]]:
    """The content of `work_counters.json`: work counters as plain data, by text of the schedule."""
    return json.loads(FILE.read_text("utf-8"))


def chosen_schedules() -> tuple[Pass, ...]:
    """The schedules that are candidates for every problem, with options for tile `COUNTED_TILE`.

    `Pass.scaled` adapts options that are extents, such as those of small tiles, to another tile.
    """
    return _chosen(tuple(kind.variants for kind in _all_passes()))


@lru_cache(maxsize=8)
def _chosen(
    variants: tuple[Callable[[tuple[int, int, int]], tuple[Pass, ...]], ...],
) -> tuple[Pass, ...]:
    """The schedules that passes list for choosing and whose work can be counted.

    Args:
        variants: `Pass.variants` of every pass class.
    """
    found = (schedule for declared in variants for schedule in declared(COUNTED_TILE))
    return tuple(schedule for schedule in found if counter_of(schedule) is not None)


def _all_passes() -> tuple[type[Pass], ...]:
    """All pass classes, including those of installed distributions that load without an error."""
    for name in offered():
        with suppress(PassError):
            find_pass(name)
    return tuple(PASSES.values())


@cache
def derived() -> dict[str, WorkCounter]:
    """The `WorkCounter`s to write to `work_counters.json`, by the pipeline text of the schedule."""
    variants = (each for kind in PASSES.values() for each in kind.variants(COUNTED_TILE))
    found = (*variants, *TUNED, *PINNED, *RECORDED)
    return {
        str(each): replace(WorkCounter.derive(each), single=True) for each in found if _ours(each)
    }


def adjacent_tiles(schedule: Pass) -> bool:
    """Whether the workgroups n and n + 1 of a schedule compute neighbouring output tiles.

    The GPU launches such workgroups one after another, so the L2 cache can merge their requests for
    the same data. Of the known schedules, this holds for `SplitK` with the option `adjacent=tiles`.
    """
    return getattr(schedule, "adjacent", "") == "tiles"


def family(schedule: Pass) -> str:
    """A text for a kind of schedules: its name, and a word for each option that is not the default.

    The reduction is left out if it is the default. `least_segment` above 1 adds the words `without
    slivers`, because it excludes short segments of tiles; `k_order=interleaved` adds the word
    `interleaved`, `adjacent=tiles` the words `adjacent tiles`.

    >>> from passes import DataParallel, HybridStreamK, StreamK
    >>> family(DataParallel(persistent=True)), family(StreamK(reduction="tree", owner="last"))
    ('data-parallel', 'stream-k tree')
    >>> family(HybridStreamK(least_segment=8))
    'hybrid-stream-k without slivers'
    """
    words = [schedule.name]
    if "reduction" in schedule.options:
        words.append(str(schedule.options["reduction"]))
    if getattr(schedule, "k_order", "") == "interleaved":
        words.append("interleaved")
    if adjacent_tiles(schedule):
        words.append("adjacent tiles")
    if getattr(schedule, "least_segment", 1) > 1:
        words.append("without slivers")
    return " ".join(words)


def main() -> None:
    """Derive the `WorkCounter`s of the library's schedules, and write `work_counters.json`."""
    found = {text: counter.as_data() for text, counter in derived().items()}
    FILE.write_text(json.dumps(found, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
