"""Draw records with matplotlib: speed relative to cuBLAS, utilisation, memory traffic."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.peers.contender import CUBLAS
from benchmarks.problems.shapes import group_title
from benchmarks.reports.summary import Row, by_group, by_problem, mean_ratios, names

__all__ = ["FORMATS", "draw", "save"]

MARKERS = "osD^vPX*<>hp"
ROOFLINE = "the roofline"
FORMATS = ("svg", "png")
BARS = {"modelled_bytes": "simulated", "dram_read_bytes": "measured"}
"""Columns of a `traffic` record with the bytes read from memory, and their labels in plots."""
# SVG files are reproducible (fixed hash salt), and their text is stored as text, not as outlines.
matplotlib.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "coordgraph"})


def draw(record: dict[str, Any], path: Path, extension: str = "svg") -> Iterator[Path]:
    """Draw the plots of a record into the folder of its `path`; yields the path of each plot."""
    if record.get("kind") == "waves":
        yield save(_waves(record), path.with_suffix(f".{extension}"))
        return
    if record.get("kind") == "schedules":
        for (tile, layout), rows in _panels(record["rows"], "tile", "layout").items():
            file = path.with_name(f"{path.stem}-{tile}-{layout}.{extension}")
            yield save(_schedules(f"{tile} {layout}", rows, record), file)
        return
    if record.get("kind") == "traffic":
        for (schedule,), rows in _panels(record["rows"], "schedule").items():
            file = path.with_name(f"{path.stem}-{_word(schedule).strip('-')}.{extension}")
            yield save(_traffic(schedule, rows, record), file)
        return
    for letter, rows in by_group(record["rows"]).items():
        if any("of_cublas" in row for row in rows):
            file = path.with_name(f"{path.stem}-{_word(letter)}.{extension}")
            yield save(_group(letter, rows, record), file)


def _panels(rows: Sequence[Row], *columns: str) -> dict[tuple[str, ...], list[Row]]:
    """The rows of a record, grouped by the values that they have in the given columns."""
    found: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        found.setdefault(tuple(row.get(name, "") for name in columns), []).append(row)
    return found


def _word(text: str) -> str:
    return re.sub(r"\W+", "-", text)


def save(figure: Figure, path: Path) -> Path:
    """Write a figure to a file, the same bytes each time; returns the path."""
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
    return path


def _conditions(record: dict[str, Any]) -> str:
    """The GPU, the element type and the date of a record, for the titles of plots."""
    date = record.get("date", "")[:10]
    return ", ".join(word for word in (record.get("device"), record.get("dtype"), date) if word)


def _group(letter: str, rows: Sequence[Row], record: dict[str, Any]) -> Figure:
    """The plot of a group of shapes: a panel per layout and sampling regime, a column per shape."""
    panels = _panels(rows, "layout", "regime")
    most = max(len(by_problem(panel)) for panel in panels.values())
    size = max(9.0, 2.5 + 0.75 * most), 3.6 * len(panels) + 1.6
    figure = Figure(figsize=size, layout="constrained")
    figure.suptitle(f"{group_title(letter)} – {_conditions(record)}")
    contenders = [name for name in names(rows) if name != CUBLAS]
    axes = figure.subplots(len(panels), 1, squeeze=False)[:, 0]
    for axis, ((layout, regime), panel) in zip(axes, panels.items(), strict=True):
        found = mean_ratios(panel)
        about = ", ".join(f"{name} {found[name][0]:.2f}" for name in contenders if name in found)
        axis.set_title(f"layout {layout} {regime} – means: {about}", fontsize="small")
        axis.set_ylabel("speed relative to cuBLAS")
        _dots(axis, by_problem(panel), contenders)
    handles = axes[0].get_legend_handles_labels()
    figure.legend(*handles, loc="outside lower center", ncols=3, fontsize="small")
    return figure


def _dots(axis: Axes, found: Sequence[Sequence[Row]], contenders: Sequence[str]) -> None:
    axis.axhline(1, color="black", linewidth=1, label=CUBLAS)
    highest = 1.0
    for index, name in enumerate(contenders):
        dots = {
            number: row["of_cublas"]
            for number, of_problem in enumerate(found)
            for row in of_problem
            if row["name"] == name and "of_cublas" in row
        }
        highest = max(highest, *dots.values()) if dots else highest
        shift = 0.5 * ((index + 0.5) / len(contenders) - 0.5)
        axis.plot(
            [number + shift for number in dots],
            list(dots.values()),
            MARKERS[index % len(MARKERS)],
            color=f"C{index}",
            label=name,
        )
    roof = {
        number: row["of_cublas"] / row["of_floor"]
        for number, of_problem in enumerate(found)
        for row in of_problem
        if row.get("of_floor") and "of_cublas" in row
    }
    if roof:
        ends = [number - 0.4 for number in roof], [number + 0.4 for number in roof]
        axis.hlines(list(roof.values()), *ends, colors="grey", linestyles="dashed", label=ROOFLINE)
    axis.set_xticks(range(len(found)), [_label(p[0]) for p in found], rotation=60, ha="right")
    axis.tick_params(axis="x", labelsize="x-small")
    # The roofline may lie outside the plot: for tiny problems it is far above the results.
    axis.set_ylim(0, max(1.15 * highest, min(2.0, 1.05 * max(roof.values(), default=0.0))))
    axis.grid(axis="y", alpha=0.3)


def _label(row: Row) -> str:
    size = "x".join(str(row[x]) for x in "mnk")
    name = row.get("shape", size)
    return size if name == size else f"{name}\n{size}"


def _waves(record: dict[str, Any]) -> Figure:
    """The plot of a `waves` record: measured utilisation over T / W.

    T is the number of output tiles, W the number of workgroups. A line shows the utilisation if no
    tile is split, which is computed by a formula.
    """
    rows = [row for row in record["rows"] if "utilisation" in row]
    figure = Figure(figsize=(9, 5.5), layout="constrained")
    axis = figure.subplots()
    axis.set_title(f"{record.get('tile', '')} – {_conditions(record)}")
    most = max((row["tiles"] / row["workgroups"] for row in rows), default=1.0)
    steps = [number / 100 for number in range(10, int(100 * most) + 21)]
    ideal = [step / -(-step // 1) for step in steps]
    axis.plot(steps, ideal, color="grey", linewidth=1, label="whole tiles: (T/W) / ⌈T/W⌉")
    for index, name in enumerate(names(rows)):
        dots = [(row["tiles"] / row["workgroups"], row["utilisation"]) for row in rows
                if row["name"] == name]  # fmt: skip
        axis.plot(*zip(*dots, strict=True), MARKERS[index], color=f"C{index}", label=name)
    axis.set_xlabel("output tiles T by workgroups W")
    axis.set_ylabel("rate by the rate in whole waves")
    axis.set_ylim(0, 1.1 * max((row["utilisation"] for row in rows), default=1.0))
    axis.grid(alpha=0.3)
    axis.legend(fontsize="small")
    return figure


def _schedules(what: str, rows: Sequence[Row], record: dict[str, Any]) -> Figure:
    """The plot of a `schedules` record: counted utilisation and measured speed over T / W.

    T is the number of output tiles, W the number of workgroups.
    """
    figure = Figure(figsize=(10, 9), layout="constrained")
    figure.suptitle(f"{what} – {_conditions(record)}")
    counted, speed = figure.subplots(2, 1, sharex=True)
    contenders = names(rows)
    for index, name in enumerate(contenders):
        mine = [row for row in rows if row["name"] == name]
        label = mine[0].get("schedule", name)
        style = {"color": "black" if name == CUBLAS else f"C{index}", "linewidth": 1}
        for axis, figure_of in ((counted, "utilisation"), (speed, "tflops")):
            dots = sorted((r["tiles"] / r["processors"], r[figure_of]) for r in mine
                          if figure_of in r)  # fmt: skip
            if dots:
                marker = MARKERS[index % len(MARKERS)]
                axis.plot(
                    *zip(*dots, strict=True), f"{marker}-", markersize=4, label=label, **style
                )
    counted.set_ylabel("utilisation, counted")
    counted.set_ylim(0, 1.05)
    speed.set_ylabel("TFLOP/s, measured")
    speed.set_ylim(bottom=0)
    speed.set_xlabel("output tiles T by SMs W")
    for axis in (counted, speed):
        axis.grid(alpha=0.3)
    # The legend is made from the lower panel: the upper one has no curve of cuBLAS, which has no
    # counted utilisation.
    handles = speed.get_legend_handles_labels()
    figure.legend(*handles, loc="outside lower center", ncols=2, fontsize="small")
    return figure


def _traffic(schedule: str, rows: Sequence[Row], record: dict[str, Any]) -> Figure:
    """The plot of a `traffic` record: per problem the GB from memory, and times if measured."""
    by_size = _panels([{**row, "size": _label({x: row[x] for x in "mnk"})} for row in rows], "size")
    timed = any("relative_time" in row for row in rows)
    size = (5.5 * (2 if timed else 1) + 1, 2.9 * len(by_size) + 1)
    figure = Figure(figsize=size, layout="constrained")
    figure.suptitle(f"{schedule} – {_conditions(record)}")
    panels = figure.subplots(len(by_size), 2 if timed else 1, squeeze=False, sharey="row")
    for (moved, *times), ((size_of,), mine) in zip(panels, by_size.items(), strict=True):
        positions = range(len(mine))
        moved.set_title(size_of, fontsize="small")
        moved.set_yticks(positions, [row["order"] for row in mine], fontsize="small")
        moved.invert_yaxis()  # the first order of tiles is at the top
        for shift, (name, label) in zip((-0.2, 0.2), BARS.items(), strict=True):
            lengths = [1e-9 * row.get(name, 0) for row in mine]
            at = [index + shift for index in positions]
            if any(lengths):
                moved.barh(at, lengths, 0.4, color=f"C{list(BARS).index(name)}", label=label)
        once = 1e-9 * mine[0]["compulsory_bytes"]
        moved.axvline(once, color="black", linewidth=1, label="A and B once")
        for axis in times:
            axis.barh(positions, [row.get("relative_time", 0) for row in mine], 0.6, color="C2")
            axis.axvline(1, color="black", linewidth=1)
            axis.set_xlabel("time by that of the first order", fontsize="small")
        moved.set_xlabel("GB from memory", fontsize="small")
        for axis in (moved, *times):
            axis.grid(axis="x", alpha=0.3)
    handles = panels[0][0].get_legend_handles_labels()
    figure.legend(*handles, loc="outside lower center", ncols=3, fontsize="small")
    return figure
