"""Plots of records of `benchmarks paper`: speedup over data-parallel by waves of tiles."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

from benchmarks.problems.paper import WAYS
from benchmarks.reports.speedups import Column, speedups

__all__ = ["bands", "figure_of"]

STEP = 2 ** (1 / 3)
"""Problems are put into bins by their number of waves; the upper end of a bin is STEP times its
lower end."""
LEAST = 8
"""Bins with fewer problems than this number are not drawn."""
QUANTILES = (0.05, 0.5, 0.95)
COLOURS = ("#999999", None, "#0072B2", "#D55E00")
"""Colours in the plot of the schedules that are compared with data-parallel (`WAYS` after the
first). None: the schedule is not drawn, because its plans equal those of another one on nearly all
problems."""


def bands(waves: Column, values: Column) -> tuple[Column, Column]:
    """Quantiles of the speedups of problems with similar numbers of waves, which form a bin.

    Args:
        waves: output tiles divided by SMs, for each problem.
        values: the speedup of each problem.

    Returns:
        The middles of the bins, and for each bin a row with the 5 %, 50 % and 95 % quantiles.
    """
    bins = np.floor(np.log(waves) / np.log(STEP)).astype(int)
    kept = [b for b in np.unique(bins) if (bins == b).sum() >= LEAST]
    lines = [np.quantile(values[bins == b], QUANTILES) for b in kept]
    return STEP ** (np.array(kept, float) + 0.5), np.array(lines).reshape(-1, len(QUANTILES))


def figure_of(records: Sequence[Mapping[str, Any]]) -> Figure:
    """A plot with a panel for each record: median speedups, and bands with 90 % of the problems."""
    figure = Figure(figsize=(9, 0.8 + 2.9 * len(records)), layout="constrained")
    panels = figure.subplots(len(records), 1, sharex=True, sharey=True, squeeze=False)[:, 0]
    for axis, record in zip(panels, records, strict=True):
        waves, values = speedups(record)
        how = "simulated" if record.get("simulated") else "measured"
        tile = "x".join(map(str, record["tile"]))
        axis.set_title(
            f"{how}, {record['device']}, {record['date'][:10]}: {len(waves)} sizes, "
            f"{record['dtype']}, tiles of {tile}", fontsize="small",
        )  # fmt: skip
        for column, (way, colour) in enumerate(zip(WAYS[1:], COLOURS, strict=True)):
            if colour is None:
                continue
            middle, lines = bands(waves, values[:, column])
            axis.fill_between(middle, lines[:, 0], lines[:, 2], color=colour, alpha=0.2, lw=0)
            axis.plot(middle, lines[:, 1], color=colour, label=str(way))
        axis.axhline(1, color="black", linewidth=0.8)
        axis.set_xscale("log", base=2)
        axis.set_yscale("log", base=2)
        for one in (axis.xaxis, axis.yaxis):
            one.set_major_locator(LogLocator(2))
            one.set_major_formatter(StrMethodFormatter("{x:g}"))
            one.set_minor_formatter(NullFormatter())
        axis.set_ylabel("speedup over data-parallel", fontsize="small")
        axis.grid(alpha=0.3)
    panels[-1].set_xlabel("waves: output tiles T by SMs W", fontsize="small")
    panels[0].legend(fontsize="small")
    return figure
