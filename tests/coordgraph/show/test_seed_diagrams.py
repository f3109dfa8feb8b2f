"""The diagrams in the Stream-K design notes of AMD's rocRoller, compared with drawn graphs.

Each diagram shows a part of a scheduled graph: 10 x 12 output tiles, 512 iterations over k, and 32
workgroups. The arrows in the notes are listed here as sets of (edge, upstream, downstream) with the
notes' own node names. A test maps these names to ids of dimensions, and compares the arrows with
those of the graph and of its drawing.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import pytest

from coordgraph import CoordinateGraph, Gemm
from passes import Pipeline
from tests.support.golden import Golden
from tests.support.mermaid import parse

Arrow = tuple[str, tuple[str, ...], tuple[str, ...]]


@dataclass(frozen=True)
class Diagram:
    pipeline: str
    names: dict[str, str]
    """Maps names of nodes in the notes to ids of dimensions."""
    edges: set[Arrow]
    green: set[str]
    sizes: dict[str, int]

    @property
    def graph(self) -> CoordinateGraph:
        graph = Gemm(m=10 * 128, n=12 * 128, k=512 * 32).graph((128, 128, 32))
        return (Pipeline.parse(self.pipeline)(graph) if self.pipeline else graph).coordinates

    @property
    def expected(self) -> set[Arrow]:
        def ids(names: tuple[str, ...]) -> tuple[str, ...]:
            return tuple(self.names[name] for name in names)

        return {(kind, ids(above), ids(below)) for kind, above, below in self.edges}


TILE_NUMBERS = {"MTAN0": "A.tile.0", "MTBN1": "B.tile.1"}
DIAGRAMS = {
    "precondition": Diagram(
        "",
        {
            **{"UA": "A", "SDA0": "A.0", "SDA1": "A.1", "MTAN0": "A.tile.0", "MTAI0": "A.index.0"},
            **{"MTAN1": "A.tile.1", "MTAI1": "A.index.1", "UB": "B", "SDB0": "B.0", "SDB1": "B.1"},
            **{"MTBN0": "B.tile.0", "MTBI0": "B.index.0", "MTBN1": "B.tile.1"},
            **{"MTBI1": "B.index.1", "FK": "k_tile"},
        },
        {
            ("Split", ("UA",), ("SDA0", "SDA1")),
            ("Tile", ("SDA0",), ("MTAN0", "MTAI0")),
            ("Tile", ("SDA1",), ("MTAN1", "MTAI1")),
            ("PassThrough", ("MTAN1",), ("FK",)),
            ("Split", ("UB",), ("SDB0", "SDB1")),
            ("Tile", ("SDB0",), ("MTBN0", "MTBI0")),
            ("Tile", ("SDB1",), ("MTBN1", "MTBI1")),
            ("PassThrough", ("MTBN0",), ("FK",)),
        },
        {"MTAN0", "MTBN1", "FK"},
        {"MTAN0": 10, "MTBN1": 12, "FK": 512},
    ),
    "stream-k": Diagram(
        "stream-k{workgroups=32}",
        {
            **TILE_NUMBERS,
            **{"FT": "k_tile", "L1": "global", "L3": "sk.local", "WG": "sk.workgroup"},
            **{"ForTile": "for_tile", "ForK": "for_k"},
        },
        {
            ("Flatten", ("MTAN0", "MTBN1", "FT"), ("L1",)),
            ("Tile", ("L1",), ("WG", "L3")),
            ("Split", ("L3",), ("ForTile", "ForK")),
        },
        {"FT", "ForTile", "ForK"},
        {"MTAN0": 10, "MTBN1": 12, "FT": 512, "L1": 61440, "L3": 1920, "WG": 32},
    ),
    "order": Diagram(
        "data-parallel{persistent=true,workgroups=32}",
        {**TILE_NUMBERS, "L0": "tile"},
        {("Flatten", ("MTAN0", "MTBN1"), ("L0",))},
        set(),
        {"MTAN0": 10, "MTBN1": 12, "L0": 120},
    ),
    "swapped-order": Diagram(
        "reorder{swap=true}",
        {**TILE_NUMBERS, "L0_2": "tile.flat"},
        {("Flatten", ("MTBN1", "MTAN0"), ("L0_2",))},
        {"L0_2"},
        {"MTAN0": 10, "MTBN1": 12, "L0_2": 120},
    ),
    "tile-and-join": Diagram(
        "reorder{group=4}",
        {"L0": "tile.flat", "L1": "tile.outer", "L2": "tile.inner", "L3": "tile.order"},
        {("Tile", ("L0",), ("L1", "L2")), ("Join", ("L2", "L1"), ("L3",))},
        {"L3"},
        {"L0": 120, "L1": 30, "L2": 4, "L3": 120},
    ),
    "sunder": Diagram(
        "two-tile-stream-k{workgroups=32}",
        {"L": "global", "L0": "sk.tiles", "L1": "dp.tiles", "arg": "selector"},
        {("Sunder", ("L",), ("L0", "L1", "arg"))},
        set(),
        {"L": 61440, "L0": 28672, "L1": 32768, "arg": 2},
    ),
    "two-tile-stream-k": Diagram(
        "two-tile-stream-k{workgroups=32,waves=contiguous}",
        {
            **{"TileM": "A.tile.0", "TileN": "B.tile.1", "TileK": "k_tile", "GlobalTile": "global"},
            **{"SKTile": "sk.tiles", "DPTile": "dp.tiles", "SunderSelector": "selector"},
            **{"SKWG": "sk.workgroup", "DPWG": "dp.workgroup", "SKTilesByWG": "sk.local"},
            **{"DPTilesByWG": "dp.local", "ForTile": "for_tile", "ForAccum": "for_k"},
        },
        {
            ("Flatten", ("TileM", "TileN", "TileK"), ("GlobalTile",)),
            ("Sunder", ("GlobalTile",), ("SKTile", "DPTile", "SunderSelector")),
            ("Tile", ("SKTile",), ("SKWG", "SKTilesByWG")),
            ("Split", ("SKTilesByWG",), ("ForTile", "ForAccum")),
            ("Tile", ("DPTile",), ("DPWG", "DPTilesByWG")),
            ("Split", ("DPTilesByWG",), ("ForTile", "ForAccum")),
        },
        {"TileK", "ForTile", "ForAccum"},
        {"SKTilesByWG": 896, "DPTilesByWG": 1024, "SKWG": 32, "DPWG": 32},
    ),
}


def read(text: str) -> tuple[dict[str, str], set[Arrow], set[str]]:
    """Parse a Mermaid diagram: (labels by node, edges with ordered operands, green nodes)."""
    labels, boxes = dict[str, str](), dict[str, str]()
    above, below = dict[str, dict[int, str]](), dict[str, dict[int, str]]()
    direct, green = set[Arrow](), set[str]()
    for line in text.splitlines()[1:]:
        if node := re.fullmatch(r'  (\w+)\(\["(.*)"\]\)', line):
            labels[node[1]] = node[2]
        elif box := re.fullmatch(r'  (\w+)\["(\w+).*"\]', line):
            boxes[box[1]] = box[2]
        elif style := re.fullmatch(r"  style (\w+) stroke:#3f3", line):
            green.add(style[1])
        else:
            arrow = re.fullmatch(r'  (\w+) (?:-- "(\w+)" )?--> (\w+)', line)
            assert arrow, line
            start, label, end = arrow.groups()
            if start in boxes:
                below.setdefault(start, {})[int(label or 0)] = end
            elif end in boxes:
                above.setdefault(end, {})[int(label or 0)] = start
            else:
                direct.add((label, (start,), (end,)))

    def operands(side: dict[int, str]) -> tuple[str, ...]:
        assert sorted(side) == list(range(len(side)))
        return tuple(side[i] for i in range(len(side)))

    drawn = {(kind, operands(above[box]), operands(below[box])) for box, kind in boxes.items()}
    return labels, direct | drawn, green


@pytest.mark.parametrize("name", DIAGRAMS)
def test_the_diagram_is_that_of_the_notes(name: str, golden: Golden):
    diagram = DIAGRAMS[name]
    text = diagram.graph.mermaid(only=diagram.names.values())
    golden(text, f"coordgraph/show/seed-{name}.mmd")
    labels, edges, green = read(text)
    node = {key: ident.replace(".", "_") for key, ident in diagram.names.items()}
    assert set(labels) == set(node.values())
    flat = {
        (kind, tuple(n.replace(".", "_") for n in a), tuple(n.replace(".", "_") for n in b))
        for kind, a, b in diagram.expected
    }
    assert edges == flat
    assert green == {node[key] for key in diagram.green}
    for key, size in diagram.sizes.items():
        assert re.search(rf", size {size}(<br/>|$)", labels[node[key]]), key
    parse([text])


def test_the_strides_of_the_stream_k_split_are_ones():
    text = DIAGRAMS["stream-k"].graph.mermaid(only=["sk.local", "for_tile", "for_k"])
    assert "Split<br/>strides 1, 1" in text
