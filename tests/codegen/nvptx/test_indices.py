"""Tests, without a GPU, of kernels whose epilogue uses indices: dimensions, loads, and assembly."""

from __future__ import annotations

from typing import Any

import pytest

from coordgraph import Gemm, VerifyError, parse
from coordgraph import epilogue as ep
from coordgraph.control.lowered import ApplyFragment
from coordgraph.verification import Outcome
from coordgraph.verification.memory_order.check import NAME
from passes import Pipeline
from passes.lowering import LowerToHost
from tests.codegen.nvptx.test_outputs import PERSISTENT, Case, compiled
from tests.support.indices import causal, gated, positions, unstored
from tests.support.ptxas import assert_clean
from tests.support.sampling import chosen, quick_cases


@ep.epilogue()
def plain(acc: Any) -> Any:
    return acc * 2


@ep.epilogue()
def plain_gated(gate: Any, up: Any) -> Any:
    return ep.where(gate < up, gate, up)


@ep.epilogue(row=ep.index("m"), column=ep.index("n"), bias="n", residual="mn")
def masked(acc: Any, row: Any, column: Any, bias: Any, residual: Any) -> Any:
    """TMA loads the bias and the residual; the indices are computed beside them."""
    return ep.where(ep.compare(column, row, relation="<="), acc + bias, 0.0) + residual


@ep.epilogue(row=ep.index("m"), column=ep.index("n"))
def biased(acc: Any, row: Any, column: Any) -> Any:
    """A bias that grows with the distance from the diagonal, as in ALiBi."""
    return acc + ep.cast(column - row, to="f32") * 0.25


@ep.epilogue(row=ep.index("m"), column=ep.index("n"), c="mn")
def with_c(acc: Any, row: Any, column: Any, c: Any) -> Any:
    return ep.where(ep.compare(column, row, relation="<="), acc, c)


WIDE = (128, 256, 64)
CASES: tuple[Case, ...] = (
    Case("sm_90a", PERSISTENT, WIDE, {}, {}),
    Case("sm_90a", PERSISTENT, (256, 192, 64), {}, {"transpose_b": True}),
    Case("sm_90a", PERSISTENT, (128, 128, 64), {"consumers": "pingpong"}, {}),
    Case("sm_90a", PERSISTENT, (256, 128, 64), {"cluster_m": 2}, {}),
    Case("sm_90a", PERSISTENT, WIDE, {"cluster_n": 2}, {"transpose_b": True}),
    Case("sm_90a", PERSISTENT, (64, 64, 128), {"cluster_k": 2}, {}),
    Case("sm_90a", PERSISTENT, (16, 128, 64), {}, {}),
    Case("sm_90a", PERSISTENT, (128, 128, 64), {"vector": 1}, {}),
    Case("sm_90a", "two-tile-stream-k{workgroups=132}", WIDE, {}, {}),
    Case("sm_90a", "stream-k{workgroups=132,reduction=scatter}", (128, 128, 64), {}, {}),
    Case("sm_90a", "stream-k{workgroups=132,reduction=tree}", (128, 128, 64), {}, {}),
    Case("sm_90a", "split-k{splits=3}", (64, 128, 64), {}, {}),
    Case("sm_90a", "heterogeneous-tiles", (128, 128, 64), {}, {}),
    Case("sm_90a", PERSISTENT, (128, 128, 64), {}, {"batched": True}),
    Case("sm_90a", PERSISTENT, (128, 128, 64), {}, {"grouped": True}),
    Case("sm_90a", PERSISTENT, (128, 128, 64), {}, {"grouped": True, "group_axis": "mnk"}),
    Case("sm_90a", PERSISTENT, (128, 128, 64), {}, {"scattered_rows": True}),
    Case("sm_90a", PERSISTENT, WIDE, {}, {"parts": "stacked"}),
    Case(
        "sm_90a",
        PERSISTENT,
        (128, 128, 64),
        {},
        {"dtype": "i8", "out_dtype": "f32", "transpose_b": True},
    ),
    Case("sm_80", PERSISTENT, (128, 128, 64), {}, {}),
    Case("sm_80", PERSISTENT, (128, 128, 32), {"vector_d": 1}, {}),
    Case("sm_80", "stream-k{workgroups=132,reduction=scatter}", (128, 128, 32), {}, {}),
    Case("sm_80", "two-tile-stream-k{workgroups=132}", (128, 128, 64), {}, {}),
    Case("sm_80", "heterogeneous-tiles", (128, 128, 64), {}, {}),
    Case("sm_80", PERSISTENT, (128, 128, 64), {}, {"batched": True}),
    Case("sm_80", PERSISTENT, (128, 128, 64), {}, {"grouped": True}),
    Case("sm_80", PERSISTENT, (128, 128, 32), {}, {"grouped": True, "group_axis": "mnk"}),
    Case("sm_80", PERSISTENT, (128, 128, 32), {}, {"scattered_rows": True}),
    Case("sm_80", PERSISTENT, (128, 128, 32), {}, {"parts": "interleaved"}),
)
QUICK = (CASES[0], CASES[8], CASES[15], CASES[19], CASES[25])
every_case = pytest.mark.parametrize("case", chosen(QUICK, CASES), ids=str)


def function_of(case: Case) -> ep.EpilogueFunction:
    if case.problem.get("parts"):
        return gated
    return positions if case.problem else causal


@quick_cases(3)
@every_case
def test_every_index_has_its_dimension(case: Case):
    """The lowered operation names the dimension of each index, and its text can be parsed."""
    graph = compiled(function_of(case), case).lowered
    applied = graph.control.of_kind(ApplyFragment)
    assert applied
    for op in applied:
        wanted = [(o.name, graph.gemm.index_of(o.axes)) for o in op.function.indices]
        found = dict(zip(op.indices, op.along, strict=True))
        assert found == {name: dim for name, dim in wanted if dim}
        assert not op.sources
        assert not op.elements
    assert parse(graph.text()) == graph


@quick_cases(2)
@every_case
def test_indices_are_not_loaded(case: Case):
    """A kernel with indices has as many loads as one without operands, and it does not spill."""
    other = plain_gated if function_of(case) is gated else plain
    made = compiled(function_of(case), case)
    loads = compiled(other, case).ptx.count("ld.global")
    assert made.ptx.count("ld.global") == loads
    _, report = made.program().assembled()
    assert_clean(report)


@pytest.mark.parametrize("function", [causal, biased], ids=lambda f: f.name)
def test_the_largest_tile_has_registers_for_indices(function: ep.EpilogueFunction):
    """No part of an index stays in registers during the accumulation, or from row to row."""
    _, report = compiled(function, CASES[1]).program().assembled()
    assert_clean(report)


@pytest.mark.parametrize("case", chosen(CASES[:1], (CASES[0], CASES[2], CASES[19])), ids=str)
@pytest.mark.parametrize("function", [masked, unstored], ids=lambda f: f.name)
def test_indices_beside_operands_and_reductions(function: ep.EpilogueFunction, case: Case):
    kernel = compiled(function, case)
    _, report = kernel.program().assembled()
    assert_clean(report)
    verdict = kernel.lowered.check(checks=(NAME,))[NAME]
    assert verdict.outcome is Outcome.HOLDS, "\n".join(map(str, verdict.counterexamples))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("along=(D.0, D.1)", "along=(D.1, D.0)"),
        ("along=(D.0, D.1)", "along=(D.0)"),
        ("along=(D.0, D.1)", "along=(D.0, C.1)"),
        (" indices=(row, column) along=(D.0, D.1)", ""),
        ("indices=(row, column)", "indices=(row, other)"),
    ],
)
def test_wrong_dimensions_of_indices_are_refused(old: str, new: str):
    graph = LowerToHost()(Pipeline.parse("data-parallel")(Gemm(epilogue=with_c).graph((16, 16, 8))))
    text = graph.verify().text()
    assert text.count(old) == 1
    message = r"the indices of the epilogue with_c are \(row, column\) along \(D.0, D.1\); set"
    with pytest.raises(VerifyError, match=message):
        parse(text.replace(old, new)).verify()
