"""In layered drawings, boxes and arrows have right positions, and text is escaped."""

from __future__ import annotations

import re
from itertools import combinations
from xml.etree import ElementTree

from hypothesis import given
from hypothesis import strategies as st

from coordgraph.show.layered import Arrow, Box, Drawing, draw_layered

SVG = "{http://www.w3.org/2000/svg}"


def rectangles(drawing: Drawing) -> dict[str, tuple[float, float, float, float]]:
    """By the first line of each box's text, its (left, top, right, bottom) in pixels."""
    found = {}
    for group in ElementTree.fromstring(drawing.svg("test")).iter(f"{SVG}g"):
        if "box" in group.get("class", "").split():
            rect = group.find(f"{SVG}rect")
            first = group.find(f"{SVG}text/{SVG}tspan")
            assert rect is not None
            assert first is not None
            x, y, w, h = (float(rect.get(key, "")) for key in ("x", "y", "width", "height"))
            found[first.text or ""] = (x, y, x + w, y + h)
    return found


graphs = st.integers(2, 12).flatmap(
    lambda n: st.tuples(
        st.just(n),
        st.lists(st.tuples(st.integers(0, n - 1), st.integers(0, n - 1)), max_size=24),
    )
)


@given(graphs)
def test_boxes_do_not_overlap_and_lie_inside(graph: tuple[int, list[tuple[int, int]]]):
    count, ends = graph
    boxes = [Box(i, (f"n{i}", "x" * i)) for i in range(count)]
    drawing = draw_layered(boxes, [Arrow(a, b) for a, b in ends if a != b])
    found = rectangles(drawing)
    assert len(found) == count
    for left, top, right, bottom in found.values():
        assert 0 <= left < right <= drawing.width + 0.2
        assert 0 <= top < bottom <= drawing.height + 0.2
    for (l1, t1, r1, b1), (l2, t2, r2, b2) in combinations(found.values(), 2):
        assert r1 < l2 + 0.2 or r2 < l1 + 0.2 or b1 < t2 or b2 < t1


@given(graphs)
def test_arrows_of_graphs_without_cycles_go_down(graph: tuple[int, list[tuple[int, int]]]):
    count, ends = graph
    down = [(min(a, b), max(a, b)) for a, b in ends if a != b]
    boxes = [Box(i, (f"n{i}",)) for i in range(count)]
    found = rectangles(draw_layered(boxes, [Arrow(a, b) for a, b in down]))
    for a, b in down:
        assert found[f"n{a}"][3] < found[f"n{b}"][1]


def test_a_cycle_is_drawn():
    boxes = [Box(i, (f"n{i}",)) for i in range(3)]
    drawing = draw_layered(boxes, [Arrow(0, 1), Arrow(1, 2), Arrow(2, 0, "back")])
    assert drawing.body.count('class="arrow') == 3
    assert "back" in drawing.body


def test_a_chain_is_straight():
    boxes = [Box(i, ("same",)) for i in range(4)]
    drawing = draw_layered(boxes, [Arrow(i, i + 1) for i in range(3)])
    centres = re.findall(r'<tspan x="([\d.]+)"', drawing.body)
    assert len(centres) == 4
    assert len(set(centres)) == 1


def test_texts_are_escaped():
    drawing = draw_layered([Box(0, ("a < b & c",)), Box(1, ("d",))], [Arrow(0, 1, "<script>")])
    assert "<script>" not in drawing.svg("</title><script>")
    assert rectangles(drawing).keys() == {"a < b & c", "d"}


def test_nothing_is_drawn_without_boxes():
    assert draw_layered([], []).svg("nothing").startswith("<svg")
