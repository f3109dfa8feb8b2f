"""A graph object's cache of results: each check runs once; freeing the object drops the cache."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from dataclasses import replace

import pytest

from coordgraph import Gemm, KernelGraph
from coordgraph.checks import CHECKS, run_checks
from coordgraph.kept_results import _KEPT, kept_results  # pyright: ignore[reportPrivateUsage]
from passes import StreamK


def test_a_check_runs_once_for_each_graph_object(monkeypatch: pytest.MonkeyPatch):
    asked: list[KernelGraph] = []

    def noted(graph: KernelGraph) -> Iterator[str]:
        asked.append(graph)
        yield "wrong"

    monkeypatch.setitem(CHECKS, "noted", noted)
    graph = StreamK()(Gemm().graph())
    copied = replace(graph)
    for one in (graph, graph, copied):
        assert run_checks(one, ("noted", "well-formed")) == ["wrong"]
    assert [id(one) for one in asked] == [id(graph), id(copied)]


def test_results_end_with_their_graph():
    graph = StreamK()(Gemm().graph())
    kept_results(graph)["a"] = 1
    assert kept_results(graph)["a"] == 1
    identity = id(graph)
    del graph
    gc.collect()
    assert identity not in _KEPT
