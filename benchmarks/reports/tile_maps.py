"""Maps of the output tiles of a launch: which workgroups sum which k tiles of each tile."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.reports.gantt import COLOURS, PART, WHOLE, Row, depth, simulated, size_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["draw_tiles", "pieces"]

LATER = "whole tile, of a later workgroup of its SM"
OWNED = "k tiles of the workgroup that finishes the tile"
SENT = "k tiles of a workgroup that sends a partial sum"
FILLS = {
    "whole tile, of the first workgroup of its SM": COLOURS[WHOLE],
    LATER: "#CC79A7",
    OWNED: COLOURS[PART],
    SENT: COLOURS["sends a partial sum"],
}
FIRST = next(iter(FILLS))
WIDTH, HEIGHT = 9.0, 4.2
MOST_NUMBERED = 200
"""Largest number of tiles of a map in which tiles show the numbers of their workgroups; in a map of
more tiles they have no numbers."""
NARROWEST_NUMBERED = 0.15
"""A part of a tile is labelled with its workgroup's number if it has at least this fraction of the
tile's width."""
Piece = tuple[int, int, int, int, int, str]
"""Type of a part of an output tile: the tile's row and column in the grid of tiles, the first k
tile of the part, its number of k tiles, its workgroup, and the legend entry of its colour, such as
"k tiles of a workgroup that sends a partial sum"."""


def pieces(row: Row, k_tiles: int) -> Iterator[Piece]:
    """For each main loop of a launch: the output tile, and the range of k tiles that it sums.

    Args:
        row: the launch as columns of events, which `benchmarks.reports.gantt.compact` makes.
        k_tiles: number of k tiles of an output tile.
    """
    earliest: dict[int, tuple[int, int]] = {}
    for slot, begin, workgroup in zip(row["slot"], row["begin"], row["workgroup"], strict=True):
        earliest[slot] = min((begin, workgroup), earliest.get(slot, (begin, workgroup)))
    names = ("activity", "m", "n", "first", "count", "workgroup", "slot")
    events = list(zip(*(row[name] for name in names), strict=True))
    finished = {(m, n): w for name, m, n, _, _, w, _ in events if name == "finish"}
    for name, m, n, first, count, workgroup, slot in events:
        if name != "multiply":
            continue
        kind = OWNED if finished.get((m, n)) == workgroup else SENT
        if count == k_tiles:
            kind = FIRST if earliest[slot][1] == workgroup else LATER
        yield m, n, first, count, workgroup, kind


def draw_tiles(record: Mapping[str, Any], folder: Path, stem: str) -> Iterator[Path]:
    """Draw a map of output tiles for each launch in a results file; yield each SVG file's path.

    The map shows a simulation of the launch. If several workgroups share a tile, the part of each
    is as wide as its fraction of the tile's k tiles, and is labelled with the workgroup's number. A
    map that equals an earlier map is left out.
    """
    from benchmarks.reports.plots import save

    known: list[list[Piece]] = []
    for measured in record["rows"]:
        schedule, name = measured["schedule"], measured["schedule"].partition("{")[0]
        found = sorted(pieces(simulated(record, schedule)[0], depth(record)))
        if found in known:
            continue
        known.append(found)
        title = f"{size_text(record)}: {schedule}, output tiles"
        yield save(_map(record, title, found), folder / f"{stem}-{name}-tiles.svg")


def _map(record: Mapping[str, Any], title: str, found: Sequence[Piece]) -> Figure:
    """Draw the output tiles of D, each divided into the parts that different workgroups compute.

    All parts of one colour are one SVG path, so that the file is small.
    """
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch, PathPatch
    from matplotlib.path import Path as Outline

    k_tiles = depth(record)
    rows, columns = (-(-record[x] // record["tile"][i]) for i, x in enumerate("mn"))
    figure = Figure(figsize=(WIDTH, HEIGHT))
    axis = figure.add_axes((0.05, 0.1, 0.94, 0.83))
    axis.set_title(title, fontsize="small", pad=3)
    corners: dict[str, list[tuple[float, float]]] = {kind: [] for kind in FILLS}
    for m, n, first, count, workgroup, kind in found:
        left, right = n + first / k_tiles, n + (first + count) / k_tiles
        corners[kind] += [(left, m), (right, m), (right, m + 1), (left, m + 1), (left, m)]
        if rows * columns <= MOST_NUMBERED and right - left > NARROWEST_NUMBERED:
            colour = "black" if kind == OWNED else "white"
            axis.text(
                (left + right) / 2, m + 0.52, str(workgroup), fontsize=5.5, color=colour,
                ha="center", va="center",
            )  # fmt: skip
    used = {kind: points for kind, points in corners.items() if points}
    for kind, points in used.items():
        outline = [Outline.MOVETO, *[Outline.LINETO] * 3, Outline.CLOSEPOLY]
        path = Outline(points, outline * (len(points) // 5))
        axis.add_patch(PathPatch(path, facecolor=FILLS[kind], edgecolor="white", linewidth=0.3))
    for place in range(1, columns):
        axis.axvline(place, color="white", linewidth=1.5)
    axis.set_xlim(0, columns)
    axis.set_ylim(rows, 0)
    axis.tick_params(labelsize="x-small")
    axis.set_ylabel("tile row (m)", fontsize="x-small")
    axis.set_xlabel("tile column (n), each from k = 0 to its end", fontsize="x-small", labelpad=0)
    figure.legend(
        handles=[Patch(color=FILLS[kind], label=kind) for kind in used],
        loc="lower left", ncols=3, fontsize="x-small", frameon=False, bbox_to_anchor=(0.03, -0.02),
    )  # fmt: skip
    return figure
