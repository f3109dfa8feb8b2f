"""Named checks of scheduled graphs: verdicts, reports, launches, and no false alarms."""

from __future__ import annotations

import json
from itertools import product
from typing import Any

import numpy as np
import pytest

from coordgraph import Gemm, LaunchError, PassError, VerifyError, parse
from coordgraph import epilogue as ep
from coordgraph.epilogue import epilogue, operand, relu
from coordgraph.kernel import KernelGraph
from coordgraph.verification import CHECKS, Outcome
from coordgraph.verification.launches import ranked_launches
from coordgraph.verification.reference import make_operands
from passes import DataParallel, Pipeline
from tests.passes.schedules import ORDERED, ORDERS, SCHEDULES, STREAMS, TILE, symbolic
from tests.support.sampling import chosen, quick_cases

PROBLEMS = {
    "batch": {"batched": True},
    "groups along m": {"grouped": True},
    "groups along k": {"grouped": True, "group_axis": "k"},
    "list": {"grouped": True, "group_axis": "mnk"},
    "transposed": {"transpose_a": True, "transpose_b": True},
    "fixed": {"m": 20, "n": 12, "k": 24},
    "bytes": {"dtype": "u8"},
    "gaps": {"leading_dimensions": ("A", "B", "C", "D"), "transpose_a": True},
    "batch with gaps": {
        "batched": True,
        "leading_dimensions": ("A", "B", "C", "D"),
        "transposed_operands": ("C",),
    },
}


def scheduled(name: str, **gemm: object) -> KernelGraph:
    problem = Gemm(**{"dtype": "f32", **gemm}).graph(TILE)  # type: ignore[arg-type]
    return Pipeline.parse(name)(problem, verify="structure")


@quick_cases(3)
@pytest.mark.parametrize(("name", "order"), chosen(ORDERED[:6], product(SCHEDULES, ORDERS)))
def test_correct_graphs_are_not_refuted(name: str, order: str):
    report = symbolic(name, order).check()
    assert not report.refuted, report
    assert {verdict.name for verdict in report} == {*CHECKS}
    assert Outcome.UNKNOWN not in {verdict.outcome for verdict in report}


KINDS = [*product(PROBLEMS, ("data-parallel{persistent=true}", *STREAMS))]


@quick_cases(2)
@pytest.mark.parametrize(("problem", "name"), chosen(KINDS[1:2] + KINDS[40::13], KINDS))
def test_correct_graphs_of_several_products_are_not_refuted(problem: str, name: str):
    try:
        graph = scheduled(name, **PROBLEMS[problem])
    except PassError as error:
        pytest.skip(str(error))
    report = graph.check()
    assert not report.refuted, report


@pytest.mark.parametrize("name", chosen(("stream-k{owner=last}",), SCHEDULES))
def test_all_launches_of_correct_graphs_are_not_refuted(name: str):
    report = symbolic(name if name in SCHEDULES else "data-parallel").check(level="all")
    assert not report.refuted, report
    assert len(report.launches) >= len(symbolic("data-parallel").check().launches)
    assert report.seconds < 60


@pytest.mark.parametrize("problem", ["single", "batched", "grouped"])
def test_operands_of_one_element_have_no_index(problem: str):
    """A number that a kernel reads from memory is read at one address by every tile."""

    @epilogue(scale=operand(dtype="f32", in_memory=True))
    def scaled(acc, scale):  # type: ignore[no-untyped-def]
        return acc * scale

    kind = {} if problem == "single" else {problem: True}
    report = scheduled("stream-k{workgroups=3}", epilogue=scaled, **kind).check()
    assert not report.refuted, report


def test_operands_of_an_epilogue_are_compared():
    @epilogue(bias="n", residual="mn")
    def added(acc, bias, residual):  # type: ignore[no-untyped-def]
        return relu(acc + bias) + residual

    graph = scheduled("stream-k", epilogue=added)
    assert not graph.check().refuted
    wrong = parse(graph.text().replace("residual.1 strides=(n, 1)", "residual.1 strides=(1, m)"))
    assert [verdict.name for verdict in wrong.check().refuted] == ["cover"]


def test_a_store_to_a_gap_is_refuted():
    """The check `cover` refutes a store to a gap between rows of D.

    The check examines launches with `ld_d` larger than n, so that rows of D have gaps.
    """
    graph = scheduled("data-parallel", leading_dimensions=("D",))
    assert not graph.check().refuted
    assert all(proof.outcome is Outcome.PROVED for proof in graph.check() if proof.name == "bounds")
    text = graph.text().replace("D.1 strides=(ld_d, 1)", "D.1 strides=(n, 1)")
    wrong = parse(text.replace("size=ld_d*m - ld_d + n ", "size=m*n "))
    assert wrong != graph
    assert {verdict.name for verdict in wrong.check().refuted} == {"sizes", "cover"}


@pytest.mark.parametrize("dtype", ["f32", "i8"])
def test_operands_are_positive_zero_and_negative(dtype: str):
    """The matrices of examined launches have the elements -1, 0 and 1.

    With elements of one sign, a check could miss a wrong sign or a wrong offset.
    """
    graph = DataParallel()(Gemm(dtype).graph(TILE))
    (launch, *_) = ranked_launches(graph, 1, 600)
    arrays = make_operands(graph, launch).arrays.values()
    assert {x for array in arrays for x in array.ravel().tolist()} == {-1, 0, 1}


def test_a_report_is_a_table_and_plain_data():
    report = symbolic("data-parallel").check()
    lines = str(report).splitlines()
    assert lines[0].split() == ["check", "verdict", "method", "detail", "time"]
    assert [line.split()[0] for line in lines[1:]] == [*CHECKS]
    assert report["sizes"].outcome is Outcome.PROVED
    assert report["sizes"].method == "edge laws"
    assert report["progress"].detail == "no workgroup waits"
    plain = json.loads(json.dumps(report.json()))
    assert not plain["refuted"]
    assert [verdict["check"] for verdict in plain["verdicts"]] == [*CHECKS]
    assert report.raise_if_refuted() is report
    with pytest.raises(VerifyError, match="no check 'speed' ran; choose one of sizes, cover"):
        report["speed"]


def test_the_progress_that_a_launch_must_guarantee_is_named():
    needs = {
        name: symbolic(name).check()["progress"]
        for name in ("stream-k{owner=last}", "stream-k{owner=first}", "stream-k{reduction=scatter}")
    }
    assert [v.detail.partition(":")[0] for v in needs.values()] == [
        "waits for lower workgroups",
        "waits for higher workgroups",
        "waits both ways",
    ]
    assert [v.outcome for v in needs.values()] == [Outcome.PROVED, Outcome.PROVED, Outcome.HOLDS]


def test_counterexamples_are_in_terms_of_the_graph():
    text = symbolic("stream-k{owner=first}").text()
    graph = parse(text.replace("StoreTile tensor=D tile=(D.tile.0, D.tile.1)\n", ""))
    report = graph.check()
    (first, *_) = report["cover"].counterexamples
    assert "has 0 stores" in first.problem
    assert first.tile == (0, 0)
    assert f"with m={first.launch.values['m']}" in str(first)  # type: ignore[union-attr]
    assert "cover: with m=" in str(report)
    with pytest.raises(VerifyError, match="cover: with m=") as caught:
        report.raise_if_refuted()
    assert len(caught.value.problems) == sum(len(v.counterexamples) for v in report.refuted)
    with pytest.raises(VerifyError, match="cover: with m="):
        graph.verify("default")
    assert graph.verify() is graph


def test_out_of_bounds_names_the_workgroup_and_its_indices():
    text = scheduled("stream-k").text()
    graph = parse(text.replace("D.1 strides=(n, 1)", "D.1 strides=(2*n, 1)"))
    (found, *_) = graph.check()["bounds"].counterexamples
    assert "StoreTile of D: offsets" in found.problem
    assert len(found.workgroups) == 1
    assert found.coordinates["workgroup"] == found.workgroups[0]
    assert "for_tile" in found.coordinates


def test_given_sizes_are_examined_alone():
    graph = symbolic("stream-k{owner=first}")
    report = graph.check({"m": 9, "n": 30, "k": 17, "workgroups": 5})
    assert [str(launch) for launch in report.launches] == ["m=9, n=30, k=17, workgroups=5"]
    with pytest.raises(LaunchError, match="the parameter 'k' needs a value"):
        graph.check({"m": 9, "n": 30, "workgroups": 5})
    groups = scheduled("stream-k", grouped=True)
    report = groups.check(
        {"m": 9, "n": 5, "k": 7, "groups": 2, "workgroups": 3, "offsets": (0, 4, 9)}
    )
    assert not report.refuted


def test_only_scheduled_graphs_are_checked():
    with pytest.raises(VerifyError, match="the graph has the level 'problem'"):
        Gemm("f32").graph().check()
    with pytest.raises(VerifyError, match="level='fast' is unknown; use one of default, all"):
        symbolic("data-parallel").check(level="fast")  # type: ignore[arg-type]


def test_a_loop_without_an_end_is_refuted():
    text = scheduled("stream-k").text()
    old = "For dim=partial.slot start=workgroup + 1"
    endless = parse(text.replace(old, "For dim=partial.slot start=0 - 1000000"))
    assert "run for more than 65536 iterations" in str(endless.check())


@pytest.mark.parametrize("name", ["data-parallel{persistent=true}", "stream-k{owner=first}"])
def test_launches_are_at_the_borders_of_the_schedule(name: str):
    graph = symbolic(name)
    launches = ranked_launches(graph, 12, 600)
    assert len({*map(str, launches)}) == 12
    waves = []
    for launch in launches:
        m, n, k = (-(-launch.values[axis] // 4) for axis in "mnk")
        waves.append((m * n, k, launch.values["workgroups"]))
    assert any(tiles % grid == 0 for tiles, _, grid in waves)
    assert any(tiles % grid == 1 for tiles, _, grid in waves if grid > 1)
    assert any(tiles % grid == grid - 1 for tiles, _, grid in waves if grid > 2)
    assert any(tiles < grid for tiles, _, grid in waves)
    assert any(depth == 1 for _, depth, _ in waves)


def test_launches_of_groups_have_empty_groups():
    launches = ranked_launches(scheduled("stream-k", grouped=True, group_axis="k"), 8, 600)
    assert all(len({*launch.tables["offsets"]}) == 3 for launch in launches)


def test_large_grids_are_not_examined():
    report = scheduled("data-parallel{persistent=true,workgroups=60000}").check()
    assert report["cover"].outcome is Outcome.UNKNOWN
    assert report["cover"].detail == "no launch of the graph is small enough"
    assert not report.refuted


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("operation", [ep.sqrt, ep.log, lambda x: ep.exp(x * 1000.0) / x])
@pytest.mark.parametrize("dtype", ["f32", "f16"])
def test_infinities_and_nans_of_the_reference_raise_no_error_of_numpy(operation: Any, dtype: str):
    """Elements are -1, 0 and 1; the caller may have told numpy to raise errors."""

    @ep.epilogue(total=ep.output("m", "f32", reduce="logsumexp"))
    def value(acc: Any) -> Any:
        found = operation(acc)
        return found, found

    graph = DataParallel()(Gemm(dtype, epilogue=value).graph((4, 4, 4)))
    with np.errstate(all="raise"):
        graph.check().raise_if_refuted()
