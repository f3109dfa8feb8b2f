"""`codegen.compile` runs the checks on graphs that the library's passes did not make, once."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import codegen
from codegen import verified
from coordgraph import Gemm, KernelGraph, VerifyError, parse
from coordgraph.library_graphs import is_made_by_library
from passes import Pipeline, StreamK

TILE = (4, 4, 4)


@pytest.fixture
def checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[KernelGraph]:
    """The graphs that are checked during a test, which begins with empty caches."""
    monkeypatch.setenv("COORDGRAPH_CACHE", str(tmp_path))
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


def test_graphs_of_shipped_passes_are_not_checked(checked: list[KernelGraph]):
    graph = streamed()
    codegen.compile(graph, "interpreter")
    assert not checked
    codegen.compile(graph, "interpreter", verify=True)
    assert len(checked) == 1


def test_a_graph_from_text_is_checked_once(checked: list[KernelGraph]):
    text = streamed().text()
    for _ in range(2):
        codegen.compile(parse(text), "interpreter")
    assert len(checked) == 1
    verified.check_once.cache_clear()  # a call in a new process would begin with this empty cache
    codegen.compile(parse(text), "interpreter")
    assert len(checked) == 1, "the cache on disk has the result"


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
