"""A layered drawing of a directed graph as SVG, without a browser and without mermaid.

Sources are at the top, and arrows point down (Sugiyama's method). A node's layer is the length of
the longest path to it. A long edge gets a waypoint in each layer that it crosses. Sweeps over the
layers order the nodes of each layer by the mean position of their neighbours; further sweeps move
nodes horizontally towards their neighbours.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from itertools import pairwise

import networkx as nx

__all__ = ["Arrow", "Box", "Drawing", "draw_layered"]

SWEEPS = 10
"""Number of sweeps over all layers that order the nodes within each layer. As many sweeps follow
that set the nodes' x coordinates."""
CHARACTER, LINE, PADDING = 6.7, 15, 8
"""Width of a character, height of a line, and padding around the text of a box, in pixels."""
BETWEEN, LAYERS = 14, 46
"""BETWEEN: pixels between neighbouring boxes of a layer. LAYERS: pixels between two layers."""
MARGIN = 8


@dataclass(frozen=True)
class Box:
    """A node of the drawing: a box with text.

    Args:
        key: identifies the node.
        lines: the lines of text in the box.
        css: the box's CSS classes, separated by spaces; `round` draws round ends.
    """

    key: Hashable
    lines: tuple[str, ...]
    css: str = ""

    @property
    def width(self) -> float:
        """Width of the box in pixels, estimated from the longest line."""
        return max(map(len, self.lines), default=0) * CHARACTER + 2 * PADDING

    @property
    def height(self) -> float:
        """Height of the box in pixels."""
        return len(self.lines) * LINE + PADDING


@dataclass(frozen=True)
class Arrow:
    """An edge from the box `start` to the box `end`, with a label and CSS classes."""

    start: Hashable
    end: Hashable
    label: str = ""
    css: str = ""


@dataclass(frozen=True)
class Drawing:
    """A finished drawing.

    Args:
        width, height: the size of the drawing in pixels.
        body: the elements inside of the `svg` element.
    """

    width: float
    height: float
    body: str

    def svg(self, title: str, style: str = "") -> str:
        """The drawing as an SVG document; `style` is a style sheet for its CSS classes."""
        sheet = f"<style>{style}</style>" if style else ""
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{self.width:.0f}" '
            f'height="{self.height:.0f}" viewBox="0 0 {self.width:.0f} {self.height:.0f}" '
            f'role="img"><title>{escape(title)}</title>{sheet}{self.body}</svg>'
        )


@dataclass
class _Layers:
    """The layers of a drawing: the nodes and waypoints of each, with x coordinates of centres."""

    rows: list[list[Hashable]]
    widths: dict[Hashable, float]
    above: dict[Hashable, list[Hashable]] = field(default_factory=dict[Hashable, list[Hashable]])
    below: dict[Hashable, list[Hashable]] = field(default_factory=dict[Hashable, list[Hashable]])
    x: dict[Hashable, float] = field(default_factory=dict[Hashable, float])

    def link(self, upper: Hashable, lower: Hashable) -> None:
        self.below.setdefault(upper, []).append(lower)
        self.above.setdefault(lower, []).append(upper)

    def order(self) -> None:
        """Order the nodes of each layer by the mean position of their neighbours in one layer.

        Sweeps downward use the neighbours in the layer above, sweeps upward those in the layer
        below.
        """
        place = {key: float(i) for row in self.rows for i, key in enumerate(row)}
        for sweep in range(SWEEPS):
            down = sweep % 2 == 0
            near = self.above if down else self.below
            for row in self.rows if down else reversed(self.rows):
                means = {
                    key: sum(place[o] for o in others) / len(others)
                    if (others := near.get(key))
                    else place[key]
                    for key in row
                }
                row.sort(key=means.__getitem__)
                place |= {key: float(i) for i, key in enumerate(row)}

    def settle(self) -> None:
        """Move nodes towards the mean x coordinate of their neighbours, if the layer has room."""
        for row in self.rows:
            edge = 0.0
            for key in row:
                self.x[key] = edge + self.widths[key] / 2
                edge += self.widths[key] + BETWEEN
        for sweep in range(SWEEPS):
            near = self.above if sweep % 2 == 0 else self.below
            for row in self.rows if sweep % 2 == 0 else reversed(self.rows):
                wanted = [
                    sum(self.x[o] for o in others) / len(others)
                    if (others := near.get(key))
                    else self.x[key]
                    for key in row
                ]
                self._place(row, wanted)

    def _place(self, row: list[Hashable], wanted: list[float]) -> None:
        """Set the x coordinates of a layer's nodes near to `wanted`, so that no boxes overlap."""
        # Isotonic regression: nodes that touch form a block, which is placed at the mean of the
        # positions that its nodes want. `blocks` has two numbers for each block: the sum of the
        # wanted positions, and the number of nodes.
        blocks: list[list[float]] = []
        offset, offsets = 0.0, list[float]()
        for position, key in enumerate(row):
            if position:
                offset += (self.widths[row[position - 1]] + self.widths[key]) / 2 + BETWEEN
            offsets.append(offset)
            blocks.append([wanted[position] - offset, 1.0])
            while len(blocks) > 1 and blocks[-2][0] / blocks[-2][1] > blocks[-1][0] / blocks[-1][1]:
                total, count = blocks.pop()
                blocks[-1][0] += total
                blocks[-1][1] += count
        position = 0
        for total, count in blocks:
            for _ in range(int(count)):
                self.x[row[position]] = total / count + offsets[position]
                position += 1


def draw_layered(boxes: Sequence[Box], arrows: Sequence[Arrow]) -> Drawing:
    """Draw a directed graph in layers; an edge that closes a cycle points up instead of down."""
    known = {box.key: box for box in boxes}
    layers, paths = _layered(known, arrows)
    layers.order()
    layers.settle()
    left = min((layers.x[k] - layers.widths[k] / 2 for k in layers.x), default=0.0) - MARGIN
    right = max((layers.x[k] + layers.widths[k] / 2 for k in layers.x), default=0.0) + MARGIN
    tops, bottom = dict[Hashable, float](), float(MARGIN)
    heights = dict[Hashable, float]()
    for row in layers.rows:
        tall = max((known[k].height for k in row if k in known), default=LINE)
        for key in row:
            tops[key], heights[key] = bottom, known[key].height if key in known else tall
        bottom += tall + LAYERS
    x = {key: value - left for key, value in layers.x.items()}
    parts = [
        _arrow(arrow, path, x, tops, heights) for arrow, path in zip(arrows, paths, strict=True)
    ]
    parts += [_box(box, x[box.key], tops[box.key]) for box in boxes]
    return Drawing(right - left, max(bottom - LAYERS, 0) + MARGIN, "".join(parts))


def _layered(
    boxes: Mapping[Hashable, Box], arrows: Sequence[Arrow]
) -> tuple[_Layers, list[list[Hashable]]]:
    """Assign boxes to layers; returns the layers, and the nodes and waypoints along each arrow."""
    graph: nx.DiGraph[Hashable] = nx.DiGraph()
    graph.add_nodes_from(boxes)
    turned = list[bool]()
    for arrow in arrows:
        against = arrow.start == arrow.end or nx.has_path(graph, arrow.end, arrow.start)
        turned.append(against)
        if arrow.start != arrow.end:
            ends = (arrow.end, arrow.start) if against else (arrow.start, arrow.end)
            graph.add_edge(*ends)
    level = dict[Hashable, int]()
    for key in nx.topological_sort(graph):
        level[key] = max((level[p] + 1 for p in graph.predecessors(key)), default=0)
    # Move each source (a node without predecessors) to the layer above its nearest successor.
    for key in reversed(list(nx.topological_sort(graph))):
        if not graph.in_degree(key) and graph.out_degree(key):
            level[key] = min(level[s] for s in graph.successors(key)) - 1
    rows: list[list[Hashable]] = [[] for _ in range(max(level.values(), default=-1) + 1)]
    for key in boxes:
        rows[level[key]].append(key)
    layers = _Layers(rows, {key: box.width for key, box in boxes.items()})
    paths = list[list[Hashable]]()
    for number, (arrow, against) in enumerate(zip(arrows, turned, strict=True)):
        start, end = (arrow.end, arrow.start) if against else (arrow.start, arrow.end)
        path = [start]
        for row in range(level[start] + 1, level[end]):
            waypoint = ("waypoint", number, row)
            rows[row].append(waypoint)
            layers.widths[waypoint] = 2.0
            path.append(waypoint)
        path.append(end)
        for upper, lower in pairwise(path):
            layers.link(upper, lower)
        paths.append(path[::-1] if against else path)
    return layers, paths


def _arrow(
    arrow: Arrow,
    path: Sequence[Hashable],
    x: Mapping[Hashable, float],
    tops: Mapping[Hashable, float],
    heights: Mapping[Hashable, float],
) -> str:
    down = tops[path[0]] <= tops[path[-1]]
    start = tops[path[0]] + (heights[path[0]] if down else 0)
    points = [(x[path[0]], start)]
    points += [(x[key], tops[key] + heights[key] / 2) for key in path[1:-1]]
    points.append((x[path[-1]], tops[path[-1]] + (0 if down else heights[path[-1]])))
    line = f"M{points[0][0]:.1f} {points[0][1]:.1f}"
    for (ax, ay), (bx, by) in pairwise(points):
        middle = (ay + by) / 2
        line += f"C{ax:.1f} {middle:.1f} {bx:.1f} {middle:.1f} {bx:.1f} {by:.1f}"
    (ax, ay), (bx, by) = points[0], points[1]
    text = ""
    if arrow.label:
        text = (
            f'<text class="label" x="{(ax + bx) / 2:.1f}" y="{(ay + by) / 2 + 4:.1f}" '
            f'text-anchor="middle">{escape(arrow.label)}</text>'
        )
    tip_x, tip_y = points[-1]
    back = tip_y - (6 if down else -6)
    tip = f"M{tip_x - 3.5:.1f} {back:.1f}L{tip_x:.1f} {tip_y:.1f}L{tip_x + 3.5:.1f} {back:.1f}"
    return f'<g class="arrow {arrow.css}"><path d="{line}"/><path d="{tip}"/>{text}</g>'


def _box(box: Box, x: float, top: float) -> str:
    left, radius = x - box.width / 2, box.height / 2 if "round" in box.css else 4
    texts = "".join(
        f'<tspan x="{x:.1f}" y="{top + PADDING / 2 + LINE * (i + 0.78):.1f}">{escape(line)}</tspan>'
        for i, line in enumerate(box.lines)
    )
    return (
        f'<g class="box {box.css}"><rect x="{left:.1f}" y="{top:.1f}" width="{box.width:.1f}" '
        f'height="{box.height:.1f}" rx="{radius:.1f}"/>'
        f'<text text-anchor="middle">{texts}</text></g>'
    )
