"""The default tile is the same in every command and in Python.

Every architecture can multiply the default tile with its fastest instructions.
"""

from __future__ import annotations

from typing import Any

import pytest

import codegen
from coordgraph import Gemm, parse
from coordgraph.frontend import default_tile
from coordgraph.tilings import macro_tile
from passes import StreamK
from passes.lowering.architectures import ARCHITECTURES
from tests.codegen.cli.commands import coordgraph
from tests.support.sampling import quick_cases

TARGETS = ("interpreter", "cpu", *ARCHITECTURES)
LAYOUT = {"i8": ("--transpose-b",)}


@pytest.mark.parametrize(
    ("kind", "extents", "tile"),
    [
        ("bf16", (None, None), (128, 128, 64)),
        ("i8", (None, None), (128, 128, 128)),
        ("f32", (8192, 8192), (128, 128, 32)),
        ("bf16", (64, 65), (64, 128, 64)),
        ("f64", (1, 33), (16, 64, 16)),
    ],
)
def test_it_follows_from_the_type_and_the_extents(
    kind: str, extents: tuple[int | None, int | None], tile: tuple[int, int, int]
):
    assert default_tile(kind, extents) == tile
    m, n = extents
    assert macro_tile(Gemm(kind, m=m, n=n).graph().coordinates) == tile


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["bf16", pytest.param("i8", marks=pytest.mark.slow)])
def test_every_command_has_the_one_of_python(kind: str):
    layout = LAYOUT.get(kind, ())
    words = ("--dtype", kind, "-s", "stream-k", *layout)
    graph = StreamK()(Gemm(kind, transpose_b=bool(layout)).graph())
    tile = macro_tile(graph.coordinates)
    for target in ((), *(("-t", target) for target in TARGETS)):
        assert coordgraph("show", "text", *words, *target).out == graph.text()
    for target in ("cpu", "sm_80", "sm_90a"):
        lowered = coordgraph("compile", *words, "-t", target, "-e", "graph").out
        assert macro_tile(parse(lowered).coordinates) == tile
    index = coordgraph("eval", "A.0", *words, "--at", "A.tile.0=3,A.index.0", "--json").json
    assert index["results"][0]["expression"] == "A.index.0 + 384"
    sizes = ("--m", "300", "--n", "200", "--k", "100", "-t", "interpreter", "--repeat", "1")
    assert tuple(coordgraph("run", *words, *sizes, "--json").json["tile"]) == tile


@quick_cases(10)
@pytest.mark.parametrize("kind", ["bf16", "i8"])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_best_instructions_of_every_architecture_take_it(architecture: str, kind: str):
    graph = StreamK()(Gemm(kind, transpose_b=kind in LAYOUT).graph())
    kernel: Any = codegen.compile(graph, architecture)
    best = ARCHITECTURES[architecture].lowerings[0]
    assert (kernel.instructions, kernel.lowering_notes) == (best.instructions, ())
