"""`codegen.compile` checks each graph once, unless the library's passes made the graph."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import codegen
from codegen import verified
from codegen.targets.nvptx.building import Builder
from coordgraph import Gemm, KernelGraph, VerifyError, parse
from coordgraph.library_graphs import is_made_by_library
from coordgraph.verification import launch_traces
from passes import Pipeline, StreamK
from passes.work_check import LAUNCHES, work_problems
from tests.support.sampling import quick_cases

TILE = (4, 4, 4)


@pytest.fixture
def checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[KernelGraph]:
    """A list that gets each graph that is checked; the test begins with empty caches."""
    monkeypatch.setenv("COORDGRAPH_CACHE", str(tmp_path))
    monkeypatch.delenv("COORDGRAPH_VERIFY")
    verified.check_once.cache_clear()
    found: list[KernelGraph] = []
    check = KernelGraph.check

    def noted(graph: KernelGraph, *args: object, **options: object) -> object:
        found.append(graph)
        return check(graph, *args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(KernelGraph, "check", noted)
    return found


def streamed() -> KernelGraph:
    return Pipeline.parse("reorder{swap=true},stream-k")(Gemm("f32").graph(TILE), "structure")


def test_a_graph_that_was_built_is_not_traced_again(
    checked: list[KernelGraph], monkeypatch: pytest.MonkeyPatch
):
    """Another process, here emptied caches, finds on disk that an equal graph was checked."""
    traced: list[KernelGraph] = []
    record = launch_traces.launch_trace
    monkeypatch.setattr(
        launch_traces, "launch_trace", lambda g, launch: traced.append(g) or record(g, launch)
    )
    work_problems.cache_clear()
    graph = StreamK(workgroups=5)(Gemm("f32").graph(TILE), "structure")
    assert work_problems(graph) == ()
    assert traced
    codegen.compile(graph, "cpu")
    traced.clear()
    work_problems.cache_clear()
    assert work_problems(graph) == ()
    assert not traced


def test_without_a_cache_no_key_is_made(
    checked: list[KernelGraph], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("COORDGRAPH_CACHE", "off")
    graph = StreamK(workgroups=9)(Gemm("f32").graph(TILE), "structure")
    monkeypatch.setattr(KernelGraph, "text", lambda _: pytest.fail("the text was printed"))
    work_problems.cache_clear()
    assert work_problems(graph) == ()
    verified.check_once(graph)
    assert checked == [graph]


def test_a_check_uses_the_traces_of_the_pass(monkeypatch: pytest.MonkeyPatch):
    work_problems.cache_clear()
    graph = StreamK(workgroups=6)(Gemm("f32").graph(TILE), "structure")
    assert work_problems(graph) == ()
    recorded: list[object] = []
    record = launch_traces.record
    monkeypatch.setattr(
        launch_traces, "record", lambda *given: recorded.append(given) or record(*given)
    )
    report = graph.check()
    assert len(recorded) <= len(report.launches) - LAUNCHES


@pytest.mark.slow
def test_graphs_of_shipped_passes_are_checked_if_code_is_generated(
    checked: list[KernelGraph], monkeypatch: pytest.MonkeyPatch
):
    graph = streamed()
    codegen.compile(graph, "interpreter")
    codegen.compile(graph, "cpu", verify=False)
    assert not checked
    codegen.compile(graph, "cpu")
    codegen.compile(graph, "cpu")
    assert len(checked) == 1
    monkeypatch.setenv("COORDGRAPH_VERIFY", "0")
    codegen.compile(StreamK()(Gemm("f32").graph(TILE)), "cpu")
    assert len(checked) == 1
    codegen.compile(graph, "interpreter", verify=True)
    assert len(checked) == 1, "the graph was checked already"


def test_a_kernel_that_matmul_builds_is_checked_first(checked: list[KernelGraph]):
    a = np.ones((20, 30), np.float32)
    codegen.matmul(a, a.T, plan="8x8x8 stream-k on 3")
    assert [graph.log for graph in checked] == [("stream-k",)]


def test_a_gpu_kernel_is_checked_unless_it_is_cached(
    checked: list[KernelGraph], monkeypatch: pytest.MonkeyPatch
):
    problem = Gemm("bf16").graph((64, 64, 32))
    codegen.compile(StreamK()(problem), "sm_90a")
    assert len(checked) == 1
    monkeypatch.setattr(Builder, "_cached", lambda *_: True)
    codegen.compile(StreamK(workgroups=4)(problem), "sm_90a")
    assert len(checked) == 1


def test_a_graph_from_text_is_checked_once(checked: list[KernelGraph]):
    text = streamed().text()
    for _ in range(2):
        codegen.compile(parse(text), "interpreter")
    assert len(checked) == 1
    verified.check_once.cache_clear()  # a call in a new process would begin with this empty cache
    codegen.compile(parse(text), "interpreter")
    assert len(checked) == 1, "the cache on disk has the result"


@quick_cases(1)
@pytest.mark.parametrize("target", ["interpreter", "cpu"])
def test_a_wrong_graph_is_not_compiled(target: str, checked: list[KernelGraph]):
    wrong = parse(streamed().text().replace("stop=k_count {", "stop=k_count - 1 {"))
    for _ in range(2):
        with pytest.raises(VerifyError, match=r"cover: with m=.* are left out"):
            codegen.compile(wrong, target)
    assert len(checked) == 2, "a refuted graph is not remembered"
    assert codegen.compile(wrong, target, verify=False).graph is wrong


def test_an_edited_graph_and_what_is_made_of_it_are_checked():
    graph = Gemm("f32").graph(TILE)
    with graph.edit("by hand") as e:
        pass
    assert is_made_by_library(graph)
    assert is_made_by_library(StreamK()(graph))
    assert not is_made_by_library(e.graph)
    assert not is_made_by_library(StreamK()(e.graph))
    assert not is_made_by_library(replace(graph))
    assert not is_made_by_library(parse(graph.text()))
