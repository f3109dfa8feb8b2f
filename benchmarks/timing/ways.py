"""Time several ways to compute one layer, in turn, after their results have been checked."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from typing import Any

from benchmarks.timing.sampler import REGIMES, Sampler, Spread, sample_in_rounds

__all__ = ["OURS", "time_ways"]

OURS = "coordgraph"
"""The name of the contender of coordgraph, whose speed is compared with that of each other one."""


def time_ways(
    ways: Mapping[str, Callable[[], Any]],
    fault: Callable[[Callable[[], Any]], str | None],
    options: argparse.Namespace,
    deadline: float,
) -> dict[str, Any]:
    """Check the result of every way, then time all ways in turn.

    Args:
        ways: functions that compute the layer, by name.
        fault: a function that calls a way, and returns what is wrong with its result, or None.
        options: the options `seconds`, `rounds`, `regime` and `graphs` of the command line.
        deadline: the time of `time.monotonic` after which no further round begins.

    Returns:
        Fields of a row of a record: `faults` by name, the `seconds` by name, and `speed`: each
        other way's median time divided by that of `OURS`, by the name of the other way.
    """
    faults = {name: found for name, way in ways.items() if (found := fault(way))}
    samplers = [
        Sampler(lambda _, way=way: way(), 1, options.seconds, graphs=options.graphs)
        for way in ways.values()
    ]
    samples = sample_in_rounds(samplers, options.rounds, REGIMES[options.regime], deadline=deadline)
    spreads = {name: Spread.of(s) for name, s in zip(ways, samples, strict=True)}
    ours = spreads[OURS].median
    return {
        "faults": faults,
        "seconds": {name: spread.json() for name, spread in spreads.items()},
        "speed": {name: s.median / ours for name, s in spreads.items() if name != OURS},
    }
