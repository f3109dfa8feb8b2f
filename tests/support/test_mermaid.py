"""The mermaid renderer draws the project's diagrams, and raises MermaidError for broken ones."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from tests.support import mermaid
from tests.support.mermaid import LONGEST, MermaidError, parse, render

GOOD = """flowchart TD
  classDef added stroke:#3f3,stroke-width:3px;
  subgraph coordinates ["coordinates α"]
    A(["User(A)"]) -->|"0"| T{{"Tile"}}
    T -- "⌈m/64⌉" --> N(["MacroTileNumber(A, 0) × 2"])
  end
  N --> G(["i #lt; n & #quot;j ≥ 2#quot;"])
  style A stroke:#3f3
  class N added
"""

BROKEN = {
    "an unclosed stadium": 'flowchart TD\n  A(["x" --> B',
    "an unclosed edge label": 'flowchart TD\n  A -->|"x| B',
    "quotes inside quotes": 'flowchart TD\n  A["a "b" c"]',
    "a subgraph without its end": "flowchart TD\n  subgraph x\n  A-->B",
    "a reserved word as an id": "flowchart TD\n  end-->B",
    "a style without a node": "flowchart TD\n  A-->B\n  style",
    "an unknown kind of diagram": "flowhcart TD\n  A-->B",
    "nothing": "",
}


def test_draws_every_construct_the_diagrams_use():
    (svg,) = render([GOOD])
    root = ElementTree.fromstring(svg)
    words = " ".join("".join(root.itertext()).split())
    assert root.tag.endswith("svg")
    for label in ("User(A)", "coordinates α", "⌈m/64⌉", "MacroTileNumber(A, 0)", '"j ≥ 2"'):
        assert label in words
    assert "i < n" in words
    assert "#3f3" in svg


def test_draws_several_texts_in_order():
    first, second = render(["flowchart TD\n  A[one]", "flowchart LR\n  B[two]"])
    assert "one" in first
    assert "two" in second


@pytest.mark.parametrize("text", BROKEN.values(), ids=BROKEN)
def test_refuses_broken_text(text: str):
    with pytest.raises(MermaidError, match=r"diagram 0 does not render"):
        render([text])


def test_parses_what_it_draws():
    parse([GOOD])


@pytest.mark.parametrize("text", BROKEN.values(), ids=BROKEN)
def test_parsing_refuses_broken_text(text: str):
    with pytest.raises(MermaidError, match=r"diagram 1 does not render"):
        parse([GOOD, text])


def test_parsing_refuses_what_is_too_long_to_draw():
    with pytest.raises(MermaidError, match="characters are more than"):
        parse(["flowchart TD\n" + "  A-->B\n" * LONGEST])


def test_the_error_names_the_text_and_the_reason():
    with pytest.raises(MermaidError) as caught:
        render([GOOD, BROKEN["an unclosed stadium"]])
    assert caught.value.index == 1
    assert "diagram 1 does not render: Error: Parse error on line" in str(caught.value)
    assert '2 |   A(["x" --> B' in str(caught.value)


def test_a_text_is_drawn_once():
    text = "flowchart TD\n  once[once]"
    before = mermaid._svg.cache_info().misses
    assert len(set(render([text] * 3))) == 1
    assert mermaid._svg.cache_info().misses == before + 1
