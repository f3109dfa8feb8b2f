"""Tests, without a GPU, of epilogues that do not store D: what kernels store, PTX, and launches."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

from coordgraph import KernelGraph, LaunchError
from coordgraph import epilogue as ep
from coordgraph.control.asynchronous import StoreBox
from coordgraph.control.lowered import StoreFragment
from coordgraph.coordinates.dimensions import Shared
from coordgraph.verification import Outcome
from coordgraph.verification.memory_order.check import NAME
from passes.lowering import LowerToHopper
from tests.codegen.nvptx.fake_driver import FakeDriver, matrix
from tests.codegen.nvptx.hopper_machine import Hopper
from tests.codegen.nvptx.played_rows import PlayedRows
from tests.codegen.nvptx.test_outputs import PERSISTENT, Case, compiled
from tests.support.losses import loss
from tests.support.ptxas import assert_clean
from tests.support.sampling import chosen, quick_cases


@ep.epilogue(squares=ep.output("m", reduce="sum"))
def gated(gate: Any, up: Any) -> Any:
    x = ep.silu(gate) * up
    return None, x * x


@ep.epilogue(pre=ep.output("mn", "f32"))
def elsewhere(acc: Any) -> Any:
    return None, acc


FUNCTIONS = {"parts": gated, "leading_dimensions": elsewhere}
CASES: tuple[Case, ...] = (
    Case("sm_90a", PERSISTENT, (256, 192, 64), {}, {"transpose_b": True}),
    Case("sm_90a", PERSISTENT, (128, 256, 64), {}, {}),
    Case("sm_90a", PERSISTENT, (128, 128, 64), {"consumers": "pingpong"}, {}),
    Case("sm_90a", PERSISTENT, (256, 128, 64), {"cluster_m": 2}, {"transpose_a": True}),
    Case("sm_90a", PERSISTENT, (64, 64, 128), {"cluster_k": 2}, {}),
    Case("sm_90a", PERSISTENT, (192, 128, 64), {}, {"transpose_b": True}),
    Case("sm_90a", PERSISTENT, (16, 128, 64), {}, {}),
    Case("sm_90a", "two-tile-stream-k{workgroups=132}", (128, 256, 64), {}, {}),
    Case("sm_90a", "stream-k{workgroups=132,reduction=atomic}", (128, 128, 64), {}, {}),
    Case("sm_90a", "split-k{splits=3}", (64, 128, 64), {}, {}),
    Case("sm_90a", PERSISTENT, (128, 128, 64), {}, {"batched": True}),
    Case("sm_90a", PERSISTENT, (128, 128, 64), {}, {"grouped": True}),
    Case("sm_90a", PERSISTENT, (128, 256, 64), {}, {"parts": "stacked"}),
    Case("sm_90a", PERSISTENT, (128, 256, 64), {}, {"leading_dimensions": ("A", "B", "pre")}),
    Case("sm_80", PERSISTENT, (128, 128, 64), {}, {}),
    Case("sm_80", "two-tile-stream-k{workgroups=132}", (128, 128, 64), {}, {}),
    Case("sm_80", "stream-k{workgroups=132,reduction=turnstile}", (64, 64, 32), {}, {}),
    Case("sm_80", PERSISTENT, (128, 128, 64), {}, {"batched": True}),
    Case("sm_80", PERSISTENT, (128, 128, 64), {}, {"grouped": True}),
    Case("sm_80", PERSISTENT, (128, 128, 32), {}, {"parts": "interleaved"}),
    Case("sm_80", "heterogeneous-tiles", (128, 128, 64), {}, {"leading_dimensions": ("pre",)}),
)
QUICK = (CASES[2], CASES[5], CASES[16])
every_case = pytest.mark.parametrize("case", chosen(QUICK, CASES), ids=str)


def kernel_of(case: Case) -> Any:
    """The compiled kernel of a case.

    Its epilogue is the function in `FUNCTIONS` for a field of the case's problem, else `loss`.
    """
    name = next((name for name in FUNCTIONS if name in case.problem), "")
    return compiled(FUNCTIONS.get(name, loss), case)


@cache
def _lowered(text: str) -> KernelGraph:
    return kernel_of(next(case for case in CASES if str(case) == text)).lowered


def lowered(case: Case) -> KernelGraph:
    return _lowered(str(case))


@quick_cases(2)
@every_case
def test_no_operation_and_no_memory_is_for_d(case: Case):
    """D is not stored; the only stores of accumulators are partial sums."""
    graph = lowered(case)
    assert all(tensor.name != "D" for tensor in graph.tensors)
    assert not graph.control.of_kind(StoreBox)
    stored = {op.destination for op in graph.control.of_kind(StoreFragment)}
    assert not any(name.startswith("D") for name in stored)
    shared = {dim.id for dim in graph.coordinates.of_kind(Shared)}
    assert not any("D.shared" in name for name in shared)


@quick_cases(1)
@pytest.mark.parametrize(
    "case",
    [case for case in CASES if not {"batched", "leading_dimensions"} & case.problem.keys()],
    ids=str,
)
def test_each_result_includes_every_column_of_its_tile_once(case: Case):
    graph, (tiling,) = lowered(case), kernel_of(case).graph.tilings
    tile = tiling.shape[1]
    m, n = case.tile[0] + 9, tile + tile // 2 + 3
    offsets = (0, 5, 5, m) if case.problem.get("grouped") else None
    sizes = {"m": m, "n": n, "k": 400, "workgroups": 3, "groups": 3}
    found, tiles = PlayedRows(graph, sizes, offsets).rows, -(-n // tile)
    assert found.keys() == {(x, i) for x in graph.gemm.outputs for i in range(m * tiles)}
    for (_, offset), (row, included) in found.items():
        assert row == offset // tiles
        np.testing.assert_array_equal(included, np.arange(n) // tile == offset % tiles)


@quick_cases(1)
@every_case
def test_threads_do_not_race(case: Case):
    verdict = lowered(case).check(checks=(NAME,))[NAME]
    assert verdict.outcome is Outcome.HOLDS, "\n".join(map(str, verdict.counterexamples))


@quick_cases(2)
@every_case
def test_kernels_assemble_without_spills(case: Case):
    _, report = kernel_of(case).program().assembled()
    assert_clean(report)


@quick_cases(1)
@pytest.mark.parametrize("case", [CASES[2], CASES[5]], ids=str)
def test_kernels_play_to_their_end(case: Case):
    for seed in range(3):
        sizes = {"m": 2 * case.tile[0], "n": 512, "k": 256, "workgroups": 2}
        Hopper(lowered(case), sizes, resident=2, seed=seed).run()


def test_the_ring_has_the_memory_of_d():
    """Without slots for D in shared memory, the ring of k tiles has one more stage."""
    hopper, case = LowerToHopper(), CASES[0]
    graphs = (compiled(function, case).graph for function in (loss, ep.ALPHA_BETA))
    assert [hopper._stages(graph, hopper._divisions(graph)) for graph in graphs] == [4, 3]


def test_a_call_passes_no_d(fake_driver: FakeDriver):
    """Problems with an odd n can use wgmma if D, whose rows would not be aligned, is unstored."""
    case = Case("sm_90a", PERSISTENT, (128, 128, 64), {}, {"transpose_b": True})
    kernel, fake_driver.arguments = compiled(loss, case), 6
    a, b = matrix(256, 128, 1 << 30), matrix(521, 128, 2 << 30)
    column, target = (
        replace(matrix(1, n, at << 30), shape=(n,), strides=(1,), dtype="i32")
        for n, at in ((521, 3), (256, 4))
    )
    total, picked = (replace(matrix(256, 5, at << 30), dtype="f32") for at in (5, 6))
    given: dict[str, Any] = {"column": column, "target": target, "total": total, "picked": picked}
    assert kernel(a, b, **given) == (None, total, picked)
    (launch,), (program,) = fake_driver.launches, fake_driver.loaded
    assert {at << 30 for at in (3, 4, 5, 6)} <= set(launch.values)
    assert "wgmma" in program
    with pytest.raises(LaunchError, match="'out' is given, but the epilogue loss does not store D"):
        kernel(a, b, out=matrix(256, 521, 7 << 30), **given)
    with pytest.raises(LaunchError, match="'total' overlaps picked"):
        kernel(a, b, **{**given, "picked": total})
