"""Pictures of records: speed relative to cuBLAS in every problem, a file for each group.

Of `waves` and `schedules`: utilisation and speed over the number of waves. Of `traffic`: bytes from
memory and times in every order, a file for each schedule.

    python -m benchmarks plot benchmarks/results/gemm-20261121T120000.json

needs matplotlib but no GPU. The files are written beside the record.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.contenders import CUBLAS
from benchmarks.options import command_line
from benchmarks.record import load
from benchmarks.report import Row, groups, means, names, problems
from benchmarks.shapes import title

__all__ = ["draw"]

MARKERS = "osD^vPX*<>hp"
ROOF = "the roof"
FORMATS = ("svg", "png")
BARS = {"modelled_bytes": "modelled", "dram_read_bytes": "measured"}
"""Bytes from memory, as rows of `traffic` hold them."""
# The same record makes the same file, and its text can be searched.
matplotlib.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "coordgraph"})


def draw(record: dict[str, Any], path: Path, form: str = "svg") -> Iterator[Path]:
    """Draw a record that lies (or would lie) at `path`; yields the files."""
    if record.get("kind") == "waves":
        yield _save(_waves(record), path.with_suffix(f".{form}"))
        return
    if record.get("kind") == "schedules":
        for (tile, layout), rows in _panels(record["rows"], "tile", "layout").items():
            place = path.with_name(f"{path.stem}-{tile}-{layout}.{form}")
            yield _save(_schedules(f"{tile} {layout}", rows, record), place)
        return
    if record.get("kind") == "traffic":
        for (schedule,), rows in _panels(record["rows"], "schedule").items():
            place = path.with_name(f"{path.stem}-{_word(schedule).strip('-')}.{form}")
            yield _save(_traffic(schedule, rows, record), place)
        return
    for letter, rows in groups(record["rows"]).items():
        if any("of_cublas" in row for row in rows):
            place = path.with_name(f"{path.stem}-{_word(letter)}.{form}")
            yield _save(_group(letter, rows, record), place)


def _panels(rows: Sequence[Row], *names: str) -> dict[tuple[str, ...], list[Row]]:
    """Rows by what they hold under some names."""
    found: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        found.setdefault(tuple(row.get(name, "") for name in names), []).append(row)
    return found


def _word(text: str) -> str:
    return re.sub(r"\W+", "-", text)


def _save(figure: Figure, path: Path) -> Path:
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
    return path


def _where(record: dict[str, Any]) -> str:
    date = record.get("date", "")[:10]
    return ", ".join(word for word in (record.get("device"), record.get("dtype"), date) if word)


def _group(letter: str, rows: Sequence[Row], record: dict[str, Any]) -> Figure:
    """A panel for every layout and regime; a column of dots for every shape."""
    panels = _panels(rows, "layout", "regime")
    most = max(len(problems(panel)) for panel in panels.values())
    size = max(9.0, 2.5 + 0.75 * most), 3.6 * len(panels) + 1.6
    figure = Figure(figsize=size, layout="constrained")
    figure.suptitle(f"{title(letter)} – {_where(record)}")
    everyone = [name for name in names(rows) if name != CUBLAS]
    axes = figure.subplots(len(panels), 1, squeeze=False)[:, 0]
    for axis, ((layout, regime), panel) in zip(axes, panels.items(), strict=True):
        found = means(panel)
        about = ", ".join(f"{name} {found[name][0]:.2f}" for name in everyone if name in found)
        axis.set_title(f"layout {layout} {regime} – means: {about}", fontsize="small")
        axis.set_ylabel("speed relative to cuBLAS")
        _dots(axis, problems(panel), everyone)
    handles = axes[0].get_legend_handles_labels()
    figure.legend(*handles, loc="outside lower center", ncols=3, fontsize="small")
    return figure


def _dots(axis: Axes, found: Sequence[Sequence[Row]], everyone: Sequence[str]) -> None:
    axis.axhline(1, color="black", linewidth=1, label=CUBLAS)
    highest = 1.0
    for place, name in enumerate(everyone):
        dots = {
            number: row["of_cublas"]
            for number, of_problem in enumerate(found)
            for row in of_problem
            if row["name"] == name and "of_cublas" in row
        }
        highest = max(highest, *dots.values()) if dots else highest
        shift = 0.5 * ((place + 0.5) / len(everyone) - 0.5)
        axis.plot(
            [number + shift for number in dots],
            list(dots.values()),
            MARKERS[place % len(MARKERS)],
            color=f"C{place}",
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
        axis.hlines(list(roof.values()), *ends, colors="grey", linestyles="dashed", label=ROOF)
    axis.set_xticks(range(len(found)), [_label(p[0]) for p in found], rotation=60, ha="right")
    axis.tick_params(axis="x", labelsize="x-small")
    # Tiny problems are far below the roof; it may leave the picture.
    axis.set_ylim(0, max(1.15 * highest, min(2.0, 1.05 * max(roof.values(), default=0.0))))
    axis.grid(axis="y", alpha=0.3)


def _label(row: Row) -> str:
    size = "x".join(str(row[x]) for x in "mnk")
    name = row.get("shape", size)
    return size if name == size else f"{name}\n{size}"


def _waves(record: dict[str, Any]) -> Figure:
    """Utilisation of every schedule over tiles by workgroups, and what whole tiles would give."""
    rows = [row for row in record["rows"] if "utilisation" in row]
    figure = Figure(figsize=(9, 5.5), layout="constrained")
    axis = figure.subplots()
    axis.set_title(f"{record.get('tile', '')} – {_where(record)}")
    most = max((row["tiles"] / row["workgroups"] for row in rows), default=1.0)
    steps = [number / 100 for number in range(10, int(100 * most) + 21)]
    ideal = [step / -(-step // 1) for step in steps]
    axis.plot(steps, ideal, color="grey", linewidth=1, label="whole tiles: (T/W) / ⌈T/W⌉")
    for place, name in enumerate(names(rows)):
        dots = [(row["tiles"] / row["workgroups"], row["utilisation"]) for row in rows
                if row["name"] == name]  # fmt: skip
        axis.plot(*zip(*dots, strict=True), MARKERS[place], color=f"C{place}", label=name)
    axis.set_xlabel("output tiles T by workgroups W")
    axis.set_ylabel("rate by the rate in whole waves")
    axis.set_ylim(0, 1.1 * max((row["utilisation"] for row in rows), default=1.0))
    axis.grid(alpha=0.3)
    axis.legend(fontsize="small")
    return figure


def _schedules(what: str, rows: Sequence[Row], record: dict[str, Any]) -> Figure:
    """Counted utilisation over tiles by SMs, and what was measured below it."""
    figure = Figure(figsize=(10, 9), layout="constrained")
    figure.suptitle(f"{what} – {_where(record)}")
    counted, speed = figure.subplots(2, 1, sharex=True)
    everyone = names(rows)
    for place, name in enumerate(everyone):
        mine = [row for row in rows if row["name"] == name]
        label = mine[0].get("schedule", name)
        style = {"color": "black" if name == CUBLAS else f"C{place}", "linewidth": 1}
        for axis, figure_of in ((counted, "utilisation"), (speed, "tflops")):
            dots = sorted((r["tiles"] / r["processors"], r[figure_of]) for r in mine
                          if figure_of in r)  # fmt: skip
            if dots:
                marker = MARKERS[place % len(MARKERS)]
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
    # cuBLAS has no counts, so the lower panel has everybody.
    handles = speed.get_legend_handles_labels()
    figure.legend(*handles, loc="outside lower center", ncols=2, fontsize="small")
    return figure


def _traffic(schedule: str, rows: Sequence[Row], record: dict[str, Any]) -> Figure:
    """A line of panels for every problem: gigabytes from memory, and times where there are any."""
    by_size = _panels([{**row, "size": _label({x: row[x] for x in "mnk"})} for row in rows], "size")
    timed = any("relative_time" in row for row in rows)
    size = (5.5 * (2 if timed else 1) + 1, 2.9 * len(by_size) + 1)
    figure = Figure(figsize=size, layout="constrained")
    figure.suptitle(f"{schedule} – {_where(record)}")
    panels = figure.subplots(len(by_size), 2 if timed else 1, squeeze=False, sharey="row")
    for (moved, *times), ((size_of,), mine) in zip(panels, by_size.items(), strict=True):
        places = range(len(mine))
        moved.set_title(size_of, fontsize="small")
        moved.set_yticks(places, [row["order"] for row in mine], fontsize="small")
        moved.invert_yaxis()  # the first order on top
        for shift, (name, label) in zip((-0.2, 0.2), BARS.items(), strict=True):
            lengths = [1e-9 * row.get(name, 0) for row in mine]
            at = [place + shift for place in places]
            if any(lengths):
                moved.barh(at, lengths, 0.4, color=f"C{list(BARS).index(name)}", label=label)
        once = 1e-9 * mine[0]["compulsory_bytes"]
        moved.axvline(once, color="black", linewidth=1, label="A and B once")
        for axis in times:
            axis.barh(places, [row.get("relative_time", 0) for row in mine], 0.6, color="C2")
            axis.axvline(1, color="black", linewidth=1)
            axis.set_xlabel("time by that of the first order", fontsize="small")
        moved.set_xlabel("GB from memory", fontsize="small")
        for axis in (moved, *times):
            axis.grid(axis="x", alpha=0.3)
    handles = panels[0][0].get_legend_handles_labels()
    figure.legend(*handles, loc="outside lower center", ncols=3, fontsize="small")
    return figure


def main() -> None:
    parser = command_line("plot", __doc__)
    parser.add_argument(
        "records", type=Path, nargs="+", help="JSON files of gemm, waves, schedules or traffic"
    )
    parser.add_argument("--format", dest="form", default="svg", choices=FORMATS)
    options = parser.parse_args()
    for path in options.records:
        try:
            record = load(path)
        except (OSError, ValueError) as error:
            sys.exit(f"{path}: {error}")
        for drawn in draw(record, path, options.form):
            print(drawn)


if __name__ == "__main__":
    main()
