"""Epilogues of two sums on wgmma: registers, TMA boxes, and the simulated machine."""

from __future__ import annotations

from itertools import product
from math import prod
from typing import Any

import numpy as np
import pytest

import codegen
import coordgraph as cg
from coordgraph.control.asynchronous import CopyBox, MultiplyShared
from coordgraph.control.lowered import ApplyFragment, StoreFragment
from coordgraph.errors import PassError
from passes import DataParallel, SplitK, StreamK
from passes.lowering import LowerToHopper
from tests.codegen.nvptx.hopper_machine import Hopper
from tests.support.gated import geglu, swiglu
from tests.support.ptxas import assemble, assert_clean
from tests.support.sampling import cover, quick_cases

PARTS = ("stacked", "interleaved", "interleaved:16", "separate")
LAYOUTS = [(parts, turned) for parts in PARTS for turned in (True, False)]
TILES = [
    ((128, 128, 64), {}),
    ((128, 256, 64), {}),
    ((64, 192, 64), {}),
    ((128, 256, 64), {"cluster_n": 2}),
    ((256, 128, 64), {"cluster_m": 2}),
    ((64, 256, 64), {"consumers": "pingpong"}),
    ((64, 128, 128), {"cluster_k": 2}),
]
every_layout = pytest.mark.parametrize(("parts", "turned"), LAYOUTS)
every_tile = pytest.mark.parametrize(("tile", "options"), TILES, ids=str)


def lowered(
    parts: str, turned: bool, tile: Any, options: Any, schedule: Any, **fields: Any
) -> cg.KernelGraph:
    gemm = cg.Gemm("bf16", parts=parts, transpose_b=turned, **{"epilogue": swiglu, **fields})
    return LowerToHopper(**options)(schedule(gemm.graph(tile=tile)))


@quick_cases(2)
@every_tile
@pytest.mark.parametrize("parts", PARTS)
def test_registers_hold_both_sums_of_a_column(parts: str, tile: Any, options: dict[str, Any]):
    """Each accumulator register holds one of the two sums (parts) of one column of D.

    The column of B that wgmma multiplies into the register belongs to this part and column.
    """
    graph = lowered(parts, True, tile, options, DataParallel())
    c = graph.coordinates
    (multiply,) = {op.instruction for op in graph.control.of_kind(MultiplyShared)}
    columns = int(multiply.split("n")[1].split("k")[0])
    outer = [dim for dim in ("cluster.n", "warpgroup", "acc.p") if dim in c]
    (over,) = (edge for edge in c.edges_below("D.own.1") if "acc.n" in edge.downstream)
    ranges = {dim: range(c[dim].fixed_size if dim != "warpgroup" else 2) for dim in outer}
    if "warpgroup" not in over.downstream:
        ranges.pop("warpgroup")
    part = "acc.pair" if parts == "interleaved" else "acc.part"
    seen = set()
    for *at, eighth, quad, pair in product(
        *ranges.values(), range(columns // 8), range(4), range(2)
    ):
        # PTX ISA, "Register Fragments and Shared Memory Matrix Layouts" of wgmma: columns 2·quad
        # and 2·quad + 1 of every 8.
        column = 0
        for dim, index in zip(ranges, at, strict=True):
            column = column * len(ranges[dim]) + index
        column = column * columns + 8 * eighth + 2 * quad + pair
        of_b = tuple(c.reverse({"B.columns": column}, ["part", "B.index.1"]))
        registers = {**dict(zip(ranges, at, strict=True)), "acc.quad": quad, "acc.pair": pair}
        if part == "acc.part":
            high, eighth = divmod(eighth, columns // 16)
            registers["acc.part"] = high
        registers["acc.n"] = eighth
        (of_d,) = c.reverse(registers, ["D.index.1"])
        assert of_b == (registers[part], of_d)
        seen.add(of_b)
    assert len(seen) == tile[1]


@quick_cases(3)
@every_tile
@every_layout
def test_rows_of_a_box_are_adjacent_in_b(
    parts: str, turned: bool, tile: Any, options: dict[str, Any]
):
    """Columns of B that are adjacent in a TMA box are adjacent in memory, as TMA requires."""
    graph = lowered(parts, turned, tile, options, DataParallel(), n=1024, k=1024)
    c = graph.coordinates
    for op in graph.control.of_kind(CopyBox):
        if op.tensor == "B":
            across = op.box[1] if turned else op.box[0]
            break
    else:
        raise AssertionError("no box of B")
    for first in range(0, tile[1], across):
        places = [
            int(c.reverse({"B.tile.1": 1, "B.columns": first + i}, ["B.1"])[0])
            for i in range(across)
        ]
        assert places == [*range(places[0], places[0] + across)]


@quick_cases(2)
@pytest.mark.parametrize("schedule", [DataParallel(), StreamK(workgroups=5)], ids=str)
@pytest.mark.parametrize(("tile", "options"), TILES[:1] + TILES[3:5] + TILES[6:], ids=str)
@every_layout
def test_simulated_machine(
    parts: str, turned: bool, tile: Any, options: dict[str, Any], schedule: Any
):
    graph = lowered(parts, turned, tile, options, schedule)
    for sizes in ({"m": 256, "n": 128, "k": 256}, {"m": 200, "n": 72, "k": 200}):
        sizes |= {"stride_part": 1 << 16} if parts == "separate" else {}
        machine = Hopper(graph, sizes, resident=5, seed=0)
        machine.run()
        assert machine.stored
        assert not machine.partials


@quick_cases(1)
@pytest.mark.parametrize("options", [{}, {"cluster_m": 2}], ids=str)
@pytest.mark.parametrize("parts", ["stacked", "interleaved"])
def test_memory_order(parts: str, options: dict[str, Any]):
    graph = lowered(parts, True, (128, 128, 64), options, StreamK(workgroups=7), epilogue=geglu)
    assert not graph.check(checks=["memory order"]).refuted


@quick_cases(1)
@pytest.mark.parametrize(
    ("layout", "epilogue", "fields"),
    cover(
        0,
        product(LAYOUTS, (swiglu, geglu), ({}, {"batched": True}, {"grouped": True})),
        lambda case: (case[0], case[1].name, str(case[2])),
    ),
    ids=str,
)
def test_kernels_assemble_without_spills(
    layout: tuple[str, bool], epilogue: Any, fields: dict[str, Any]
):
    parts, turned = layout
    gemm = cg.Gemm("bf16", parts=parts, transpose_b=turned, epilogue=epilogue, **fields)
    graph = StreamK(workgroups=132)(gemm.graph(tile=(128, 128, 64)))
    ptx = codegen.compile(graph, "sm_90a").ptx
    assert "wgmma" in ptx
    assert_clean(assemble(ptx, "sm_90a"))


@pytest.mark.parametrize(
    ("parts", "tile", "options"),
    [("interleaved", (128, 128, 64), {}), ("stacked", (64, 320, 64), {"consumers": "pingpong"})],
)
def test_d_is_stored_from_registers_of_one_sum(parts: str, tile: Any, options: dict[str, Any]):
    """Without TMA where columns alternate, and where two instructions compute a row of D."""
    graph = lowered(parts, True, tile, options, DataParallel())
    (store,) = graph.control.of_kind(StoreFragment)
    (apply,) = graph.control.of_kind(ApplyFragment)
    assert store.destination == "D"
    part = "acc.pair" if parts == "interleaved" else "acc.part"
    assert apply.part == part
    assert part in store.registers
    assert store.width == (1 if parts == "interleaved" else 2)


@quick_cases(4)
@every_tile
@pytest.mark.parametrize("parts", [parts for parts in PARTS if parts != "interleaved"])
def test_boxes_of_d_hold_registers_of_the_first_sum(parts: str, tile: Any, options: dict[str, Any]):
    """stmatrix writes each element of D, and nothing else, to its place in a TMA box.

    Matrix i of four takes its rows from lanes 8i to 8i + 7, and lane l has elements 2·(l mod 4) and
    2·(l mod 4) + 1 of its row l // 4 (PTX ISA, "stmatrix").
    """
    graph = lowered(parts, True, tile, options, DataParallel())
    c = graph.coordinates
    (store,) = (op for op in graph.control.of_kind(StoreFragment) if op.form != "vector")
    assert store.destination == "D.shared"
    blocks, boxes, across = (c[f"store.{name}"].fixed_size for name in ("m", "box", "n"))
    matrices = store.width // 2
    registers = ("acc.m", "acc.p", "acc.part", "acc.n", "acc.half", "acc.pair")
    sizes = [c[dim].fixed_size for dim in registers]
    counts = [c[dim].fixed_size for dim in store.registers]
    width = c["store.box.column"].fixed_size
    warpgroup = {"warpgroup": 0}
    seen: set[tuple[int, int]] = set()
    for m, box, n, i, pair in product(*map(range, (blocks, boxes, across, matrices, 2))):
        places = {"store.m": m, "acc.part": 0, "store.box": box, "store.n": n}
        first = np.ravel_multi_index([places[dim] for dim in store.registers], counts)
        number = int(first) * store.width + 2 * i + pair
        at = dict(zip(registers, map(int, np.unravel_index(number, sizes)), strict=True))
        assert at["acc.part"] == 0
        for lane in (0, 5, 31):
            row, quad = divmod(lane, 4)
            held = {**at, **warpgroup, "warp": 3, "acc.row": row, "acc.quad": quad}
            of_d = tuple(map(int, c.reverse(held, ["D.own.0", "D.own.1"])))
            eighth, half = divmod(i, 2)
            place = {"warp": 3, "store.half": half, "store.row": row, "store.n": n}
            place |= {"store.eighth": eighth, "store.element": 2 * quad + pair}
            down, along = map(int, c.reverse(place, ["store.box.row", "store.box.column"]))
            assert of_d == (64 * m + down, width * box + along)
            seen.add((number, lane))
    assert len(seen) == 3 * prod(sizes) // sizes[2]


def refusal(*given: Any, **fields: Any) -> str:
    with pytest.raises(PassError) as error:
        lowered(*given, **fields)
    return str(error.value)


@pytest.mark.slow
def test_refusals():
    few = refusal("stacked", True, (48, 128, 64), {}, DataParallel())
    assert "must be a multiple of 64 in m, for an epilogue of several sums" in few
    scatter = StreamK(workgroups=4, reduction="scatter")
    shares = refusal("stacked", True, (128, 128, 64), {}, scatter)
    assert "choose another reduction, or parts=interleaved" in shares
    narrow = refusal("interleaved:8", False, (128, 128, 64), {}, DataParallel())
    assert "interleave blocks of a multiple of 16 columns" in narrow
    narrow = refusal("interleaved:4", True, (128, 128, 64), {}, DataParallel())
    assert "interleave blocks of a multiple of 8 columns" in narrow
    ptx = codegen.compile(
        scatter(cg.Gemm("bf16", epilogue=swiglu).graph(tile=(128, 128, 64))), "sm_90a"
    ).ptx
    assert "mma.sync" in ptx
    interleaved = cg.Gemm("bf16", epilogue=swiglu, parts="interleaved").graph(tile=(128, 128, 64))
    ptx = codegen.compile(scatter(interleaved), "sm_90a").ptx
    assert "wgmma" in ptx
    assert_clean(assemble(ptx, "sm_90a"))
    assert "wgmma" in codegen.compile(SplitK(2)(interleaved), "sm_90a").ptx
