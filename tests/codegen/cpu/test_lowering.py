"""Tests of graphs lowered for the CPU: register blocks, buffers, and copy loops without guards."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sympy.logic.boolalg import true

from coordgraph import Gemm, KernelGraph, PassError, parse
from coordgraph.control.lowered import CopyElements, MultiplyFragments
from coordgraph.control.resolve import resolve
from passes import DataParallel, StreamK
from passes.lowering.host import LowerToHost
from passes.lowering.host.blocking import choose_block


def lowered(tile: tuple[int, int, int] = (64, 64, 32), **options: Any) -> KernelGraph:
    return LowerToHost(**options)(DataParallel()(Gemm("f32").graph(tile)))


@given(
    m=st.integers(1, 300),
    n=st.integers(1, 300),
    lanes=st.sampled_from([1, 2, 4, 8, 16]),
    registers=st.integers(5, 40),
)
def test_blocks_fit_the_registers(m: int, n: int, lanes: int, registers: int):
    block = choose_block(m, n, lanes, registers)
    assert 1 <= block.rows <= m
    assert 1 <= block.lanes <= lanes
    assert block.lanes & (block.lanes - 1) == 0
    assert block.vectors == 1 or block.columns - block.lanes < n
    assert block.lanes < 2 * n
    assert (block.rows + 1) * block.vectors + 1 <= registers


def test_a_block_for_avx2_and_one_for_avx512():
    assert (choose_block(96, 96, 8, 16).rows, choose_block(96, 96, 8, 16).columns) == (6, 16)
    assert (choose_block(112, 96, 16, 32).rows, choose_block(112, 96, 16, 32).columns) == (14, 32)
    # register blocks of 4 rows divide the tile's 128 rows, so no row of a block is padding
    assert choose_block(128, 96, 8, 16).rows == 4


@pytest.mark.parametrize("schedule", [DataParallel(), StreamK()])
def test_copies_have_no_guard(schedule: Any):
    """Copy loops end at the tensor's border instead of testing a guard, so that LLVM can vectorise
    them.
    """
    graph = LowerToHost()(schedule(Gemm("f32").graph((64, 64, 32))))
    copies = 0
    for root in resolve(graph.control.root.body, graph.scope()):
        for node in root.walk():
            if isinstance(node.op, CopyElements):
                copies += 1
                assert all(guard == true for _, _, guard in node.index_expressions())
    assert copies >= 3


def test_it_prints_and_parses():
    graph = lowered()
    assert parse(graph.text()) == graph


def test_the_instruction_follows_the_options():
    def instruction(**options: Any) -> str:
        (op,) = lowered(**options).control.of_kind(MultiplyFragments)
        return op.instruction

    assert instruction() == "fma.f32x8"
    assert instruction(vector_bits=512) == "fma.f32x16"
    assert instruction(vector_bits=128, fused=False) == "multiply-add.f32x4"


@pytest.mark.parametrize(
    ("options", "words"),
    [({"vector_bits": 96}, "power of two"), ({"vector_bits": 16}, "32"), ({"registers": 4}, "few")],
)
def test_options_that_make_no_sense_are_refused(options: dict[str, Any], words: str):
    with pytest.raises(PassError, match=words):
        lowered(**options)


def test_tiles_too_large_for_buffers_are_refused():
    with pytest.raises(PassError, match="use a smaller tile"):
        lowered((16384, 16384, 128))


def test_graphs_of_other_machines_are_refused():
    from passes.lowering.sm_80.lower import LowerToTensorCores

    scheduled = DataParallel()(Gemm("bf16").graph((64, 64, 32)))
    for graph in (LowerToTensorCores()(scheduled), LowerToHost()(scheduled)):
        with pytest.raises(PassError, match="lower-to-host"):
            LowerToHost()(graph)
