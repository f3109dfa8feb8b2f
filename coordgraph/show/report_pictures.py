"""The pictures of the HTML report as SVG documents, drawn from its data without a browser."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Any

__all__ = ["pictures"]

WORKGROUPS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#f0e442")
"""Colours of workgroups, used cyclically: Okabe and Ito's palette, safe for colour-blind
readers."""
WHITE_TEXT = ("#0072b2", "#009e73", "#d55e00")
"""The workgroup colours that are so dark that text on them is white."""
BUCKETS = {
    "multiply": "#0072b2",
    "fix-up": "#b65f93",
    "epilogue": "#e69f00",
    "outside D": "#7a1f1f",
    "hand-over": "#c9bb00",
    "wait": "#d55e00",
    "start": "#7d8794",
    "launch": "#aeb6c0",
    "gap": "#dfe3e8",
    "tail": "#dfe3e8",
}
BUCKET_OF = {
    **{"multiply": "multiply", "send": "fix-up", "receive": "fix-up", "finish": "epilogue"},
    **{"drain": "epilogue", "turn": "hand-over", "wait": "wait", "start": "start"},
}
"""For each activity of a workgroup, the category of time (a key of `BUCKETS`) that counts the
activity and gives its bars their colour."""
TEXT, SOFT = "#14181f", "#525c69"
TURNS = {"first": -45, "middle": 90, "last": 45}
"""Angle, in degrees, of the stripes that are drawn on an output tile that several workgroups
compute: for the first, a middle and the last segment along k."""
STYLE = """
text{font-family:sans-serif;fill:#14181f}
.box text{font-size:12px}.label{font-size:10px;fill:#525c69}
.box rect{fill:#fff;stroke:#525c69}.edge rect{fill:#eef0f3;stroke:#d6dae0}
.arrow path{fill:none;stroke:#525c69}
.added rect{fill:#dcebfa;stroke:#0072b2}.arrow.added path{stroke:#0072b2}
.removed rect{fill:#fbe6da;stroke:#b84a00;stroke-dasharray:4 3}
.arrow.removed path{stroke:#b84a00;stroke-dasharray:4 3}
.changed rect{fill:#fbf3cf;stroke:#8a6d00}.arrow.changed path{stroke:#8a6d00}
"""
WIDTH, LEFT = 960, 40


def pictures(data: Mapping[str, Any]) -> dict[str, str]:
    """The SVG documents by name: how time is spent, the output tiles, timelines, and passes."""
    found = {"time": _time(data), "tiles": _tiles(data)}
    found |= {f"timeline-{run['name']}": _timeline(data, run) for run in data["runs"]}
    for number, rewrite in enumerate(data["passes"], start=1):
        svg: str = rewrite["coordinates"]["svg"]
        head, end, rest = svg.partition("</title>")
        found[f"pass-{number}-coordinates"] = f"{head}{end}<style>{STYLE}</style>{rest}"
    return found


def _svg(width: float, height: float, title: str, parts: Sequence[str]) -> str:
    stripes = "".join(
        f'<pattern id="{kind}" width="6" height="6" patternUnits="userSpaceOnUse" '
        f'patternTransform="rotate({turn})"><rect width="2" height="6" fill="#fff" '
        'fill-opacity="0.55"/></pattern>'
        for kind, turn in TURNS.items()
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" '
        f'viewBox="0 0 {width:.0f} {height:.0f}" role="img" font-family="sans-serif">'
        f"<title>{escape(title)}</title><defs>{stripes}</defs>{''.join(parts)}</svg>"
    )


def _rect(x: float, y: float, width: float, height: float, fill: str) -> str:
    return (
        f'<rect x="{x:.2f}" y="{y:.2f}" width="{max(width, 0.3):.2f}" height="{height:.2f}" '
        f'fill="{fill}"/>'
    )


def _text(x: float, y: float, text: str, fill: str = TEXT, size: int = 12, end: str = "") -> str:
    anchor = f' text-anchor="{end}"' if end else ""
    place = f'x="{x:.1f}" y="{y:.1f}" font-size="{size}" fill="{fill}"{anchor}'
    return f"<text {place}>{escape(text)}</text>"


def _time(data: Mapping[str, Any]) -> str:
    """A stacked bar for each simulated or measured run: how long SMs multiply, wait, and so on."""
    parts, top = [_text(0, 16, data["title"], size=14), _text(0, 36, data["headline"]["why"])], 52
    for run in data["runs"]:
        total, x = run["slots"] * run["makespan"] / 1e9 or 1.0, 0.0
        title = f"{run['name']}: {run['makespan'] / 1000:.4g} µs on {run['slots']} slots"
        parts.append(_text(0, top + 12, title, SOFT))
        legend, at = list[str](), 0.0
        for name, seconds in run["buckets"].items():
            share = seconds / total
            if share < 0.0005:
                continue
            parts.append(_rect(x, top + 18, share * WIDTH, 30, BUCKETS[name]))
            x += share * WIDTH
            label = f"{name} {100 * share:.0f} %"
            legend.append(_rect(at, top + 58, 10, 10, BUCKETS[name]))
            legend.append(_text(at + 14, top + 67, label))
            at += 30 + 7 * len(label)
        parts += legend
        top += 90
    return _svg(WIDTH, top, "Where the slots' time goes", parts)


def _segments(data: Mapping[str, Any], product: int) -> dict[tuple[int, int, int], list[Any]]:
    """The segments of each output tile of a product, in the order of k.

    A key is (index of the tile's shape, number of the tile along m, and along n). A segment is
    (first k tile, number of k tiles, workgroup).
    """
    run = data["runs"][0]["events"]
    multiply = data["activities"].index("multiply")
    found = dict[tuple[int, int, int], set[tuple[int, int, int]]]()
    columns = ("activity", "product", "tiling", "m", "n", "first", "count", "workgroup")
    for activity, own, tiling, m, n, first, count, workgroup in zip(
        *(run[name] for name in columns), strict=True
    ):
        if activity == multiply and own == product:
            found.setdefault((tiling, m, n), set()).add((first, count, workgroup))
    return {key: sorted(segments) for key, segments in found.items()}


def _tiles(data: Mapping[str, Any], product: int = 0) -> str:
    """An SVG picture of a product's output tiles, in the colours of their workgroups.

    A tile that several workgroups compute is striped.
    """
    segments = _segments(data, product)
    shapes: list[list[int]] = data["tiles"]["shapes"]
    rows = max(((m + 1) * shapes[t][0] for t, m, _ in segments), default=1)
    columns = max(((n + 1) * shapes[t][1] for t, _, n in segments), default=1)
    scale, parts = (WIDTH - LEFT) / max(rows, columns), list[str]()
    for (tiling, m, n), each in segments.items():
        height, width = (extent * scale for extent in shapes[tiling][:2])
        x, y = LEFT + n * width, 20 + m * height
        depth = max(first + count for first, count, _ in each)
        for place, (first, count, workgroup) in enumerate(each):
            kind = "first" if place == 0 else "last" if place == len(each) - 1 else "middle"
            box = (x + width * first / depth, y, width * count / depth - 0.6, height - 0.6)
            colour = WORKGROUPS[workgroup % len(WORKGROUPS)]
            parts.append(_rect(*box, colour))
            if len(each) > 1:
                parts.append(_rect(*box, f"url(#{kind})"))
            if box[2] > 8 * len(str(workgroup)) + 4 and height > 14:
                ink = "#fff" if colour in WHITE_TEXT else TEXT
                middle = (box[0] + box[2] / 2, y + height / 2 + 4)
                parts.append(_text(*middle, str(workgroup), ink, 11, "middle"))
    parts += [_text(LEFT, 13, "n →", SOFT), _text(0, 33, "m ↓", SOFT)]
    title = "Output tiles by workgroup; stripes mark parts of a tile"
    return _svg(LEFT + columns * scale + 1, 21 + rows * scale, title, parts)


def _timeline(data: Mapping[str, Any], run: Mapping[str, Any]) -> str:
    """A timeline of one run: a row for each SM, or for the SMs of a cluster, or for a CPU thread.

    A row shows the workgroups that run there one after another. All runs of a report have the same
    time scale.
    """
    end = max(r["makespan"] for r in data["runs"]) or 1
    each = max(2, min(16, 480 // max(run["slots"], 1)))
    scale, height = (WIDTH - LEFT) / end, run["slots"] * each
    parts = [_rect(LEFT, 0, run["makespan"] * scale, height, BUCKETS["gap"])]
    e = run["events"]
    columns = ("begin", "end", "slot", "activity", "behind")
    for begin, stop, slot, activity, behind in zip(*(e[name] for name in columns), strict=True):
        colour = BUCKETS[BUCKET_OF[data["activities"][activity]]]
        top, tall = (0.65, 0.35) if behind else (0.0, 1.0)
        tall -= 0.12 if each > 4 else 0
        x, width = LEFT + begin * scale, (stop - begin) * scale
        parts.append(_rect(x, (slot + top) * each, width, tall * each, colour))
        if colour == BUCKETS["multiply"] and width > 3:
            parts.append(_rect(x + width - 0.7, slot * each, 0.7, each, "#fff"))
    step = max(1, 28 // each)
    slots = range(0, run["slots"], step)
    parts += [_text(2, slot * each + 9, str(slot), SOFT, 10) for slot in slots]
    parts += [_text(x, height + 14, text, SOFT, 10) for x, text in _ticks(end, scale)]
    return _svg(WIDTH, height + 20, f"Timeline, {run['name']}, in µs", parts)


def _ticks(end: int, scale: float) -> Iterator[tuple[float, str]]:
    """About eight round times on the time axis, as pairs (x coordinate in pixels, label in µs).

    Args:
        end: the last time, in ns.
        scale: pixels per ns.
    """
    rough, power = end / 8, 1.0
    while power * 10 <= rough:
        power *= 10
    step = next(power * f for f in (1, 2, 5, 10) if power * f >= rough)
    for number in range(int(end / step) + 1):
        yield LEFT + number * step * scale, f"{number * step / 1000:g}"
