"""Tests, without a GPU, of epilogue outputs that reduce rows: lanes, shared memory, PTX, races."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import codegen
from coordgraph import CodegenError, Gemm, KernelGraph, LaunchError, VerifyError
from coordgraph import epilogue as ep
from coordgraph.control import row_reductions as ops
from coordgraph.control.graph import rewrite
from coordgraph.control.lowered import Barrier
from coordgraph.control.operations import Operation
from coordgraph.coordinates.dimensions import Shared
from coordgraph.verification import Outcome
from coordgraph.verification.memory_order.check import NAME
from passes import Pipeline
from passes.lowering import LowerToHopper
from tests.codegen.nvptx.fake_driver import FakeDriver, matrix
from tests.codegen.nvptx.hopper_machine import Hopper
from tests.codegen.nvptx.played_rows import PlayedRows
from tests.codegen.nvptx.test_outputs import PERSISTENT, Case, compiled
from tests.support.ptxas import assert_clean
from tests.support.sampling import chosen, quick_cases


@ep.epilogue(
    bias=ep.operand("n", "f32"),
    squares=ep.output("m", reduce="sum"),
    largest=ep.output("m", reduce="max"),
    total=ep.output("m", reduce="logsumexp"),
)
def statistics(acc: Any, bias: Any) -> Any:
    x = acc + bias
    return ep.relu(x), x * x, ep.abs(x), x * 0.125


@ep.epilogue(squares=ep.output("m", reduce="sum"))
def rms(acc: Any) -> Any:
    return acc, acc * acc


@ep.epilogue(residual="mn", total=ep.output("m", reduce="logsumexp"), pre=ep.output("mn", "f32"))
def with_residual(acc: Any, residual: Any) -> Any:
    x = acc + residual
    return ep.relu(x), x, x


@ep.epilogue(squares=ep.output("m", reduce="sum"))
def gated(gate: Any, up: Any) -> Any:
    x = ep.silu(gate) * up
    return x, x * x


@ep.epilogue(amax=ep.output("m", reduce="max"))
def of_integers(acc: Any) -> Any:
    x = ep.cast(acc, to="f32")
    return x, ep.abs(x)


def function_of(case: Case) -> ep.EpilogueFunction:
    """The epilogue with which a case is tested."""
    if case.problem.get("dtype") == "i8":
        return of_integers
    if "parts" in case.problem:
        return gated
    return with_residual if "transposed_operands" in case.problem else statistics


I8 = {"dtype": "i8", "out_dtype": "f32", "transpose_b": True}
CASES: tuple[Case, ...] = (
    Case("sm_90a", PERSISTENT, (128, 256, 64), {}, {}),
    Case("sm_90a", PERSISTENT, (128, 128, 64), {"consumers": "pingpong"}, {}),
    Case("sm_90a", PERSISTENT, (16, 128, 64), {"consumers": "pingpong"}, {"dtype": "f16"}),
    Case("sm_90a", PERSISTENT, (256, 128, 64), {"cluster_m": 2}, {"transpose_a": True}),
    Case("sm_90a", PERSISTENT, (64, 64, 128), {"cluster_k": 2}, {}),
    # Two warpgroups divide the columns.
    Case("sm_90a", PERSISTENT, (192, 128, 64), {}, {"transpose_b": True}),
    # B is the left operand of wgmma. The first of these tiles is computed by one warpgroup, the
    # second by two.
    Case("sm_90a", PERSISTENT, (16, 128, 64), {}, {}),
    Case("sm_90a", PERSISTENT, (64, 512, 64), {}, {}),
    Case("sm_90a", PERSISTENT, (256, 160, 64), {}, {}),
    Case("sm_90a", PERSISTENT, (48, 384, 64), {}, {}),
    Case("sm_90a", PERSISTENT, (128, 128, 64), {"vector": 1}, {}),
    Case("sm_90a", "two-tile-stream-k{workgroups=132}", (128, 256, 64), {}, {}),
    Case("sm_90a", "stream-k{workgroups=132}", (64, 256, 64), {}, {}),
    Case("sm_90a", "stream-k{workgroups=132,reduction=turnstile}", (128, 128, 64), {}, {}),
    Case("sm_90a", "stream-k{workgroups=132,reduction=tree}", (192, 128, 64), {}, {}),
    Case("sm_90a", "stream-k{workgroups=132,reduction=atomic}", (128, 128, 64), {}, {}),
    Case("sm_90a", "split-k{splits=3}", (64, 128, 64), {}, {}),
    Case("sm_90a", PERSISTENT, (128, 128, 64), {}, {"batched": True}),
    Case("sm_90a", PERSISTENT, (128, 128, 64), {}, {"grouped": True}),
    Case(
        "sm_90a",
        "stream-k{workgroups=132}",
        (128, 128, 64),
        {},
        {"grouped": True, "group_axis": "k", "transpose_a": True},
    ),
    Case("sm_90a", PERSISTENT, (128, 128, 64), {}, {"transposed_operands": ("residual",)}),
    Case("sm_90a", PERSISTENT, (128, 256, 64), {}, {"parts": "stacked"}),
    Case("sm_90a", PERSISTENT, (128, 256, 64), {}, {"parts": "interleaved"}),
    Case("sm_90a", PERSISTENT, (128, 128, 128), {}, I8),
    Case("sm_80", PERSISTENT, (128, 128, 64), {}, {}),
    Case("sm_80", PERSISTENT, (128, 256, 32), {"vector_d": 1}, {}),
    Case("sm_80", "data-parallel", (16, 128, 64), {}, {"dtype": "f16", "transpose_a": True}),
    Case("sm_80", PERSISTENT, (48, 96, 32), {}, {}),
    Case("sm_80", "two-tile-stream-k{workgroups=132}", (128, 128, 64), {}, {}),
    Case("sm_80", "stream-k{workgroups=132,reduction=turnstile}", (64, 64, 32), {}, {}),
    Case("sm_80", "stream-k{workgroups=132,reduction=tree}", (128, 128, 32), {}, {}),
    Case("sm_80", "stream-k{workgroups=132,reduction=atomic}", (128, 64, 32), {}, {}),
    Case("sm_80", "split-k{splits=3}", (64, 128, 64), {}, {}),
    Case("sm_80", PERSISTENT, (128, 128, 64), {}, {"batched": True}),
    Case("sm_80", PERSISTENT, (128, 128, 64), {}, {"grouped": True}),
    Case("sm_80", PERSISTENT, (128, 128, 32), {}, {"transposed_operands": ("residual",)}),
    Case("sm_80", PERSISTENT, (128, 128, 32), {}, {"parts": "stacked"}),
    Case("sm_80", PERSISTENT, (128, 128, 32), {}, {"parts": "interleaved"}),
    Case("sm_80", PERSISTENT, (128, 128, 64), {}, I8),
)
QUICK = tuple(CASES[i] for i in (0, 2, 5, 7, 15, 18, 22, 26, 27, 29, 37))
STORE = ops.StoreRows
every_case = pytest.mark.parametrize("case", chosen(QUICK, CASES), ids=str)


def lowered(case: Case) -> KernelGraph:
    return compiled(function_of(case), case).lowered


PLAYED = [
    case
    for case in CASES
    if not case.problem.get("batched") and case.problem.get("group_axis", "m") == "m"
]


@quick_cases(1)
@pytest.mark.parametrize("case", chosen(QUICK, PLAYED), ids=str)
def test_each_result_includes_every_column_of_its_tile_once(case: Case):
    """The kernel is simulated for sizes at which tiles end inside D, and groups end inside tiles.

    Every row of D has one result in each column tile, which is written once and includes no
    padding.
    """
    kernel = compiled(function_of(case), case)
    graph, (tiling,) = kernel.lowered, kernel.graph.tilings
    tile = tiling.shape[1]
    m, n = case.tile[0] + 9, tile + tile // 2 + 3
    offsets = (0, 5, 5, m) if case.problem.get("grouped") else None
    sizes = {"m": m, "n": n, "k": 400, "workgroups": 3, "groups": 3}
    found = PlayedRows(graph, sizes, offsets).rows
    outputs = [o.name for o in graph.gemm.outputs.values() if o.reduce]
    tiles = -(-n // tile)
    assert found.keys() == {(name, i) for name in outputs for i in range(m * tiles)}
    for (_, offset), (row, included) in found.items():
        wanted = np.arange(n) // tile == offset % tiles
        assert row == offset // tiles
        np.testing.assert_array_equal(included, wanted)


def changed(graph: KernelGraph, change: Any) -> KernelGraph:
    """The graph with `change` applied to each of its operations."""
    with graph.edit("fault") as e:
        root = graph.control.root
        body = tuple(new for op in root.body for new in rewrite(op, change))
        e.kernel(*body, workgroup=root.workgroup)
    return e.graph


def merges_half_of_the_lanes(op: Operation) -> Operation:
    return replace(op, distances=op.distances[:-1]) if isinstance(op, ops.ReduceLanes) else op


def combines_no_warps(op: Operation) -> Operation | tuple[Operation, ...]:
    return () if isinstance(op, ops.CombineRows) else op


@pytest.mark.parametrize("fault", [merges_half_of_the_lanes, combines_no_warps])
def test_wrong_reductions_are_found(fault: Any):
    """The simulation finds a graph whose results lack columns."""
    case = Case("sm_80", "data-parallel", (32, 32, 32), {}, {})
    graph = lowered(case)
    sizes = {"m": 32, "n": 32, "k": 32}
    whole, broken = PlayedRows(graph, sizes).rows, PlayedRows(changed(graph, fault), sizes).rows
    assert all(included.all() for _, included in whole.values())
    assert not any(included.all() for _, included in broken.values())


def test_distances_between_lanes_are_checked():
    def far(op: Operation) -> Operation:
        return replace(op, distances=(3,)) if isinstance(op, ops.ReduceLanes) else op

    graph = lowered(Case("sm_80", "data-parallel", (32, 32, 32), {}, {}))
    with pytest.raises(VerifyError, match="a distance is 3, but shuffles reach"):
        changed(graph, far).verify()


def test_lowered_graphs_are_read_from_text_in_a_new_process():
    """`coordgraph.parse` knows the operations of reductions without an import of the lowerings."""
    text = lowered(Case("sm_80", "data-parallel", (32, 32, 32), {}, {})).text()
    code = "import sys, coordgraph; assert coordgraph.parse(sys.argv[1]).text() == sys.argv[1]"
    subprocess.run([sys.executable, "-c", code, text], check=True)


@quick_cases(1)
@every_case
def test_threads_do_not_race(case: Case):
    """The check `memory order` holds: results of warps are exchanged between two barriers."""
    verdict = lowered(case).check(checks=(NAME,))[NAME]
    assert verdict.outcome is Outcome.HOLDS, "\n".join(map(str, verdict.counterexamples))


HOPPER = (
    Case("sm_90a", PERSISTENT, (16, 128, 64), {"consumers": "pingpong"}, {}),
    Case("sm_90a", PERSISTENT, (192, 128, 64), {}, {}),
)


@quick_cases(1)
@pytest.mark.parametrize(
    ("case", "number"),
    [
        (Case("sm_80", PERSISTENT, (64, 64, 32), {}, {}), 0),
        *((case, 0) for case in HOPPER),
        (Case("sm_90a", PERSISTENT, (192, 128, 64), {"vector": 1}, {}), 1),
    ],
    ids=str,
)
def test_memory_order_refutes_a_missing_barrier(case: Case, number: int):
    """Warps read each other's results between two barriers; `memory order` refutes a missing one.

    The second barrier is needed if a warpgroup can be a tile ahead: k is small, and threads store
    D.
    """

    def without(op: Operation) -> Operation:
        body: tuple[Operation, ...] = getattr(op, "body", ())
        places = [i for i, inner in enumerate(body) if isinstance(inner, Barrier)]
        stores = [i for i, x in enumerate(body) if any(isinstance(y, STORE) for y in x.walk())]
        # The operations are: store to shared memory, barrier, combine and store, barrier.
        if len(stores) < 2 or not {stores[0] + 1, stores[0] + 3} <= {*places}:
            return op
        left_out = stores[0] + 1 + 2 * number
        return replace(op, body=tuple(x for i, x in enumerate(body) if i != left_out))

    graph = lowered(case)
    broken = changed(graph, without)
    assert len(broken.control.of_kind(Barrier)) < len(graph.control.of_kind(Barrier))
    sizes = {"m": 192, "n": 512, "k": 64, "workgroups": 1} if number else None
    assert graph.check(sizes, checks=(NAME,))[NAME].outcome is Outcome.HOLDS
    assert broken.check(sizes, checks=(NAME,))[NAME].outcome is Outcome.REFUTED


@quick_cases(1)
@every_case
def test_kernels_assemble_without_spills(case: Case):
    _, report = compiled(function_of(case), case).program().assembled()
    assert_clean(report)


@ep.epilogue(
    scale="m", total=ep.output("m", reduce="logsumexp"), added=ep.output("m", reduce="sum")
)
def unstored(acc: Any, scale: Any) -> Any:
    return None, acc * scale, acc


@ep.epilogue(scale="m", bias="n", squares=ep.output("m", reduce="sum"))
def scaled(acc: Any, scale: Any, bias: Any) -> Any:
    return acc * scale + bias, acc * acc


@pytest.mark.parametrize("function", [unstored, scaled], ids=["unstored", "scaled"])
def test_pingpong_kernels_with_operands_assemble_without_serialized_wgmma(
    function: ep.EpilogueFunction,
):
    """An epilogue uses the sums for all outputs before it replaces them, so none is copied."""
    options = {"consumers": "pingpong", "cluster_m": 2}
    case = Case("sm_90a", PERSISTENT, (256, 128, 64), options, {"transpose_b": True})
    _, report = compiled(function, case).program().assembled()
    assert_clean(report)


def test_a_warp_that_holds_whole_rows_needs_no_shared_memory():
    """With A as the left operand of wgmma, four lanes hold a row: shuffles suffice."""
    case = Case("sm_90a", PERSISTENT, (128, 256, 64), {}, {})
    kernel, plain = compiled(rms, case), compiled(ep.ALPHA_BETA, case)
    shared = [{dim.id for dim in k.lowered.coordinates.of_kind(Shared)} for k in (kernel, plain)]
    assert "squares.shared" not in shared[0]
    rows = 2  # rows of which a thread holds elements: 128 rows, two warpgroups of 4 · 8 lanes
    assert kernel.ptx.count("shfl.sync.bfly") == 2 * rows
    assert kernel.ptx.count("bar.sync") == plain.ptx.count("bar.sync")
    assert "shfl.sync.bfly" not in plain.ptx


def test_logsumexp_takes_three_exponentials_for_two_elements():
    """Two elements in adjacent registers take one exponential each, and one rescales the sum."""

    @ep.epilogue(total=ep.output("m", reduce="logsumexp"))
    def losses(acc: Any) -> Any:
        return acc, acc

    ptx = compiled(losses, Case("sm_90a", PERSISTENT, (128, 128, 64), {}, {})).ptx
    elements, rows = 128, 4  # accumulators of each of the 128 threads, and their rows
    assert ptx.count("ex2.approx") == 3 * elements // 2 + 2 * rows
    assert ptx.count("lg2.approx") == rows


@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
def test_scatter_is_refused_in_words(target: str):
    case = Case(target, "stream-k{workgroups=132,reduction=scatter}", (128, 128, 64), {}, {})
    with pytest.raises(CodegenError, match=r"squares.*reduces rows.*choose another reduction"):
        compiled(rms, case)


def test_a_tile_of_too_many_rows_for_a_thread_is_refused_in_words():
    graph = Pipeline.parse(PERSISTENT)(Gemm(epilogue=statistics).graph((96, 256, 64)))
    words = "needs 96 accumulator registers in each thread, and 96 for .*, and 120 fit; choose"
    assert re.search(words, LowerToHopper().why_not(graph) or "")
    # One sum needs fewer registers. So do whole blocks of 64 rows, with A as the left operand.
    for function, tile in ((rms, (96, 256, 64)), (statistics, (128, 256, 64))):
        graph = Pipeline.parse(PERSISTENT)(Gemm(epilogue=function).graph(tile))
        assert LowerToHopper().why_not(graph) is None


def test_a_cluster_that_divides_rows_is_refused_in_words():
    graph = Pipeline.parse(PERSISTENT)(Gemm(epilogue=rms).graph((128, 256, 64)))
    with pytest.raises(CodegenError, match=r"squares.*reduces rows.*choose cluster_n=1"):
        codegen.compile(graph, "sm_90a", lowering=LowerToHopper(cluster_n=2))


@quick_cases(1)
@pytest.mark.parametrize("case", HOPPER, ids=str)
def test_kernels_play_to_their_end(case: Case):
    """On the simulated GPU, every warpgroup passes the barriers of a row reduction.

    Before and after them, warpgroups exchange the sums of their columns of a row.
    """
    graph = compiled(rms, case).lowered
    for seed in range(3):
        sizes = {"m": 2 * case.tile[0], "n": 512, "k": 256, "workgroups": 2}
        Hopper(graph, sizes, resident=2, seed=seed).run()


def test_a_call_passes_an_element_for_each_row_and_column_tile(fake_driver: FakeDriver):
    kernel = compiled(rms, Case("sm_90a", PERSISTENT, (128, 128, 64), {}, {}))
    fake_driver.arguments = 7
    a, b, out = matrix(256, 128, 1 << 30), matrix(128, 520, 2 << 30), matrix(256, 520, 3 << 30)
    squares = replace(matrix(256, 5, 4 << 30), dtype="f32")
    assert kernel(a, b, out=out, squares=squares) == (out, squares)
    (launch,) = fake_driver.launches
    assert {3 << 30, 4 << 30} <= set(launch.values)
    # Rows of 5 results are not aligned, but the launched kernel still stores D by TMA.
    (program,) = fake_driver.loaded
    assert "cp.async.bulk.tensor.2d.global" in program
    few = replace(matrix(256, 4, 4 << 30), dtype="f32")
    with pytest.raises(LaunchError, match=r"squares has the shape \(256, 4\)"):
        kernel(a, b, out=out, squares=few)


@ep.epilogue(added=ep.output("m", reduce="sum"), total=ep.output("m", reduce="logsumexp"))
def twice(acc: Any) -> Any:
    return acc, acc, acc


@ep.epilogue(total=ep.output("m", reduce="logsumexp"))
def normalizer(acc: Any) -> Any:
    return acc, acc


@pytest.mark.parametrize(
    ("function", "tile", "options"),
    [
        (twice, (128, 128, 64), {}),
        (twice, (256, 144, 64), {"consumers": "pingpong", "cluster_m": 2}),
        (normalizer, (128, 176, 64), {"consumers": "pingpong"}),
        (normalizer, (256, 192, 64), {"consumers": "pingpong", "cluster_m": 2}),
    ],
)
def test_reductions_of_large_tiles_assemble_without_spills(
    function: ep.EpilogueFunction, tile: Any, options: dict[str, Any]
):
    """ptxas computes the guards of a few columns at a time, so it spills none of them."""
    _, report = (
        compiled(function, Case("sm_90a", PERSISTENT, tile, options, {})).program().assembled()
    )
    assert_clean(report)
