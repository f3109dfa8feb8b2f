"""Epilogues of two sums on mma.sync: both sums of an element are registers of one thread."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
from sympy import Integer

import codegen
import coordgraph as cg
from coordgraph.control.lowered import ApplyFragment, CopyElements, StoreFragment
from coordgraph.control.resolve import resolve
from coordgraph.integers import index_symbol
from passes import DataParallel, StreamK
from passes.lowering.sm_80.lower import LowerToTensorCores
from tests.support.gated import geglu, swiglu
from tests.support.ptxas import assemble, assert_clean
from tests.support.sampling import cover, quick_cases

LAYOUTS = [
    *(("stacked", turned) for turned in (True, False)),
    *(("interleaved", turned) for turned in (True, False)),
    *(("interleaved:16", turned) for turned in (True, False)),
    *(("separate", turned) for turned in (True, False)),
]
PART = {layout: "acc.eighth" for layout in LAYOUTS} | {("interleaved", False): "acc.pair"}


def lowered(parts: str, turned: bool, schedule: Any, **fields: Any) -> cg.KernelGraph:
    gemm = cg.Gemm("bf16", parts=parts, transpose_b=turned, **{"epilogue": swiglu, **fields})
    return LowerToTensorCores()(schedule(gemm.graph(tile=(128, 128, 64))))


@pytest.mark.parametrize(("parts", "turned"), LAYOUTS)
def test_registers_hold_both_sums_of_a_column(parts: str, turned: bool):
    """Each accumulator register holds one of the two sums (parts) of one column of D.

    The column of B that mma.sync multiplies into the register belongs to this part and column.
    """
    graph = lowered(parts, turned, DataParallel())
    c = graph.coordinates
    sizes = {name: c[name].fixed_size for name in ("warp.n", "fragment.n")}
    for warp, fragment, eighth, quad, pair in product(
        range(sizes["warp.n"]), range(sizes["fragment.n"]), range(2), range(4), range(2)
    ):
        # PTX ISA, "Matrix fragments for mma.m16n8k16": columns 2·quad and 2·quad + 1 of 8.
        column = ((warp * sizes["fragment.n"] + fragment) * 2 + eighth) * 8 + 2 * quad + pair
        of_b = tuple(c.reverse({"B.columns": column}, ["part", "B.index.1"]))
        names = ("warp.n", "fragment.n", "acc.eighth", "acc.quad", "acc.pair")
        registers: dict[str, int] = dict(
            zip(names, (warp, fragment, eighth, quad, pair), strict=True)
        )
        (of_d,) = c.reverse(registers, ["D.index.1"])
        assert of_b == (registers[PART[parts, turned]], of_d)


@pytest.mark.parametrize(("parts", "turned"), LAYOUTS)
def test_columns_of_b_in_memory(parts: str, turned: bool):
    graph = lowered(parts, turned, DataParallel(), n=208, k=64)
    at = {"B.tile.1": 1, "B.tile.0": 0, "B.index.0": 5}
    inside = "B.1" if parts == "separate" else "B.column"
    for column in range(128):
        known = {**at, "B.columns": column}
        part, j, offset = graph.coordinates.reverse(known, ["part", inside, "B"])
        number = {
            "stacked": part * 208 + j,
            "interleaved": 2 * j + part,
            "interleaved:16": (2 * (j // 16) + part) * 16 + j % 16,
            "separate": j,
        }[parts]
        columns = 208 if parts == "separate" else 416
        between = part * index_symbol("stride_part") if parts == "separate" else 0
        assert offset == (number * 64 + 5 if turned else 5 * columns + number) + between


@pytest.mark.parametrize(("parts", "turned"), LAYOUTS)
def test_widths_of_copies_and_stores(parts: str, turned: bool):
    """Copies of B move 16 bytes; threads store two elements of D at a time, or one.

    Threads store one element if a pair of adjacent registers holds both sums of the element.
    """
    graph = lowered(parts, turned, DataParallel())
    copies = [op for op in graph.control.of_kind(CopyElements) if op.source == "B"]
    assert {op.width for op in copies} == {8}
    stores = [op for op in graph.control.of_kind(StoreFragment) if op.destination == "D"]
    assert {op.width for op in stores} == {1 if PART[parts, turned] == "acc.pair" else 2}
    roots = resolve(graph.control.root.body, graph.scope())
    nodes = [node for root in roots for node in root.walk()]
    applied = [node for node in nodes if isinstance(node.op, ApplyFragment)]
    assert applied
    for node in applied:
        assert isinstance(node.op, ApplyFragment)
        assert node.op.part == PART[parts, turned]
        assert node.scope.known[node.op.part] == Integer(0)


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
    schedule = StreamK(workgroups=108)
    gemm = cg.Gemm("bf16", parts=parts, transpose_b=turned, epilogue=epilogue, **fields)
    kernel = codegen.compile(schedule(gemm.graph(tile=(128, 128, 64))), "sm_80")
    assert_clean(assemble(kernel.ptx, "sm_80"))


@pytest.mark.slow
@pytest.mark.parametrize("reduction", ["scatter", "atomic", "turnstile", "tree"])
def test_reductions_assemble_and_keep_memory_order(reduction: Any):
    gemm = cg.Gemm("f16", epilogue=geglu, transpose_b=True)
    schedule = StreamK(workgroups=108, reduction=reduction)
    kernel = codegen.compile(schedule(gemm.graph(tile=(128, 128, 64))), "sm_80")
    assert_clean(assemble(kernel.ptx, "sm_80"))
    assert kernel.lowered is not None
    assert not kernel.lowered.check(checks=["memory order"]).refuted
