"""The order of additions in lowered kernels: every kernel of one order has the same instructions.

The scheduled graph fixes the segments of k. Inside a segment, the lowered graph must multiply in
ascending order of k with instructions of equal depth, whatever the tile is. These tests assume that
the hardware's instruction gives the same bits for an element of D wherever it lies in its tile;
tests/gpu/test_invariant.py checks that.
"""

from __future__ import annotations

import re
from functools import cache
from typing import NamedTuple

import pytest
from sympy import Integer

from codegen.call.build import compile_plan
from coordgraph import Gemm, KernelGraph
from coordgraph.control.asynchronous import MultiplyShared
from coordgraph.control.lowered import MultiplyFragments
from coordgraph.control.operations import For, Operation
from passes.choosing import Plan, constants_of
from passes.choosing.candidates import candidates
from passes.choosing.summation_order import SummationOrder
from passes.lowering import LowerToTensorCores
from tests.support.sampling import chosen, quick_cases

K = 4096
LOOPS = ("fragment.k", "small.fragment.k")
"""Coordinates of loops inside a k tile: of macro tiles, and of heterogeneous-tiles' small ones."""


class Multiplies(NamedTuple):
    """How one kernel multiplies along k.

    Args:
        family: the instruction without its extents along m and n: `wgmma.k16.bf16`.
        depth: elements of k of one instruction.
        zeroed: True if the first instruction of a segment replaces the accumulator; False if the
            accumulator is set to zero before, and the first instruction adds to it.
    """

    family: str
    depth: int
    zeroed: bool


def multiplies(graph: KernelGraph) -> Multiplies:
    """How a lowered kernel multiplies; fail if it does not multiply in ascending order of k."""
    found: set[Multiplies] = set()

    def visit(op: Operation, loops: tuple[For, ...]) -> None:
        if isinstance(op, MultiplyShared | MultiplyFragments):
            ascending = [loop for loop in loops if loop.dim in LOOPS]
            (loop,) = ascending
            assert (loop.start, loop.step) == (0, 1)
            # The loops inside the loop over k select registers of the accumulator: for each index
            # of the loop over k, one instruction changes each register.
            inside = loops[loops.index(loop) + 1 :]
            assert {each.dim for each in inside} <= {*op.registers}, inside
            name, extents, kind = op.instruction.split(".")
            depth = int(extents.rpartition("k")[2])
            fresh = getattr(op, "fresh", None)
            found.add(Multiplies(f"{name}.k{depth}.{kind}", depth, fresh is not None))
        for child in op.children:
            visit(child, (*loops, op) if isinstance(op, For) else loops)

    visit(graph.control.root, ())
    (only,) = found
    tile = graph.coordinates["A.index.1"].size
    assert tile is not None
    for loop in (loop for loop in LOOPS if loop in graph.coordinates):
        assert step_along_k(graph, loop) == only.depth
        assert graph.coordinates[loop].size == tile / only.depth
    return only


def step_along_k(graph: KernelGraph, loop: str) -> int:
    """Number of elements along k by which one iteration of `loop`, inside a k tile, advances."""
    coordinates = graph.coordinates
    operand = loop.replace(LOOPS[0], "A.")
    (edge,) = (e for e in coordinates.edges_above(loop) if e.upstream[0].startswith(operand))
    known = dict.fromkeys(edge.downstream, Integer(0))
    first, second = (
        coordinates.reverse({**known, loop: Integer(at)}, ["A.index.1"])[0] for at in (0, 1)
    )
    return int(second - first)


def plans(segments: int, transpose_b: bool) -> list[Plan]:
    size = Gemm("bf16", m=300, n=1024, k=K, transpose_b=transpose_b)
    order = SummationOrder.of("wgmma", K, 64, segments)
    table = candidates(size, constants_of(), order=order)
    return [*dict.fromkeys(table.plan(row) for row in range(len(table)))]


@cache
def lowered(plan: Plan, transpose_b: bool) -> KernelGraph:
    return plan.lowering(plan.graph(Gemm("bf16", transpose_b=transpose_b)))


EVERY = [(plan, turned) for s in (1, 2) for turned in (True, False) for plan in plans(s, turned)]
SAMPLE = EVERY[:: len(EVERY) // 10]


@pytest.mark.parametrize(("plan", "turned"), chosen(SAMPLE, EVERY[::3]), ids=str)
def test_wgmma_adds_in_ascending_order_of_k(plan: Plan, turned: bool):
    assert multiplies(lowered(plan, turned)) == Multiplies("wgmma.k16.bf16", 16, True)


@pytest.mark.parametrize("tile", ["64x64x32", "128x128x32", "128x64x32"])
@pytest.mark.parametrize("turned", [True, False])
def test_mma_sync_adds_in_ascending_order_of_k(tile: str, turned: bool):
    plan = Plan.parse(f"{tile} data-parallel")
    graph = LowerToTensorCores()(plan.graph(Gemm("bf16", transpose_b=turned)))
    assert multiplies(graph) == Multiplies("mma.k16.bf16", 16, False)


INSTRUCTION = re.compile(r"(wgmma\.mma_async\.sync\.aligned|mma\.sync\.aligned)\.m\d+n\d+(k\d+)\S*")
KERNELS = {
    "wgmma": ("sm_90a", ("64x16x128", "128x128x64", "256x128x64@c2x1")),
    "mma.sync": ("sm_80", ("64x64x32", "128x128x32")),
}


@quick_cases(1)
@pytest.mark.parametrize("family", KERNELS)
def test_the_ptx_has_one_instruction_for_each_step_of_k(family: str):
    target, tiles = KERNELS[family]
    found: set[tuple[str, str]] = set()
    for tile in tiles:
        plan = Plan.parse(f"{tile} data-parallel")
        problem = Gemm("bf16", transpose_b=True)
        ptx = compile_plan(plan, problem, target, instructions=family).ptx
        found |= {*INSTRUCTION.findall(ptx)}
    (only,) = found
    assert only[1] == "k16"


@quick_cases(1)
@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
def test_the_default_epilogue_has_no_contracted_operation(target: str):
    """`alpha·acc + beta·C` is a multiplication and an addition, or one fma, in every kernel."""
    found: set[tuple[bool, bool]] = set()
    for tile in ("64x64x64", "128x128x64"):
        plan = Plan.parse(f"{tile} data-parallel")
        kernel = compile_plan(plan, Gemm("bf16", transpose_b=True), target, reads_c=True)
        ptx = kernel.ptx
        assert not re.search(r"\b(add|mul|fma)\.(ftz\.)?f32\b", ptx), "no rounding mode"
        found.add((bool(re.search(r"fma\.rn\.f32", ptx)), bool(re.search(r"add\.rn\.f32", ptx))))
    assert len(found) == 1
