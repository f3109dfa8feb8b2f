"""The garbage collector is paused while graphs are checked and code is generated, and only then."""

from __future__ import annotations

import gc
from collections.abc import Generator
from typing import Any

import pytest

from codegen.emit import llvm
from coordgraph import Gemm, KernelGraph
from coordgraph.collection import collection_paused
from coordgraph.verification import launch_traces
from passes import DataParallel
from passes.work_check import work_problems
from tests.codegen.nvptx.fake_driver import install, matrix


@pytest.fixture
def enabled() -> Generator[None]:
    """Enable the garbage collector during a test; then restore its earlier state."""
    before = gc.isenabled()
    gc.enable()
    yield
    if not before:
        gc.disable()


@pytest.mark.usefixtures("enabled")
def test_the_collector_is_paused_and_resumes():
    with collection_paused():
        assert not gc.isenabled()
        with collection_paused():
            assert not gc.isenabled()
        assert not gc.isenabled()
    assert gc.isenabled()
    with pytest.raises(ValueError, match="inside"), collection_paused():
        raise ValueError("inside")
    assert gc.isenabled()


@pytest.mark.usefixtures("enabled")
def test_a_collector_that_is_off_stays_off():
    gc.disable()
    with collection_paused():
        assert not gc.isenabled()
    assert not gc.isenabled()


@pytest.mark.usefixtures("enabled")
def test_kernels_are_generated_without_it(monkeypatch: pytest.MonkeyPatch):
    import codegen

    install(monkeypatch)
    monkeypatch.setenv("COORDGRAPH_CACHE", "off")
    seen = noted_calls(monkeypatch, llvm, "optimize")
    graph = DataParallel()(Gemm("bf16").graph((64, 64, 64)))
    kernel = codegen.compile(graph, "sm_80")
    kernel(matrix(64, 64, 1 << 30), matrix(64, 64, 2 << 30), out=matrix(64, 64, 3 << 30))
    assert seen == [False]
    assert codegen.compile(graph, "sm_80").ptx
    assert seen == [False, False]
    assert gc.isenabled()


@pytest.mark.usefixtures("enabled")
def test_graphs_are_checked_without_it(monkeypatch: pytest.MonkeyPatch):
    import codegen

    monkeypatch.setenv("COORDGRAPH_CACHE", "off")
    traced = noted_calls(monkeypatch, launch_traces, "launch_trace")
    checked = noted_calls(monkeypatch, KernelGraph, "check")
    work_problems.cache_clear()
    graph = DataParallel()(Gemm("bf16").graph((8, 8, 4)))
    assert traced
    assert not any(traced)
    codegen.compile(graph, "interpreter", verify=True)
    assert checked == [False]
    assert gc.isenabled()


def noted_calls(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str) -> list[bool]:
    """A list that gets, at each call of a function, whether the garbage collector is enabled."""
    seen: list[bool] = []
    function = getattr(owner, name)

    def noted(*args: Any, **options: Any) -> Any:
        seen.append(gc.isenabled())
        return function(*args, **options)

    monkeypatch.setattr(owner, name, noted)
    return seen
