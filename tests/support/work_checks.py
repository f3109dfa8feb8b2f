"""Fewer checks of work in tests of code generation, which build many graphs of each schedule."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from contextlib import contextmanager

import pytest

from coordgraph import KernelGraph
from passes import PASSES, base
from passes.work_check import work_problems

__all__ = ["one_work_check_for_each_schedule"]

_right = set[Hashable]()
"""What tells apart the schedules whose work was right."""


@contextmanager
def one_work_check_for_each_schedule() -> Iterator[None]:
    """Trace the first graph of each schedule, but no graph with other tiles, types or layouts.

    Every pass traces the graph that it makes, which takes longer than the pass itself. Schedules do
    not depend on types and layouts; `tests/passes` traces them with many tiles. Graphs of passes
    that a test defines are always traced.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(base, "work_problems", _problems)
        yield


def _problems(graph: KernelGraph) -> tuple[str, ...]:
    gemm = graph.gemm
    axes = gemm.batched, gemm.grouped, gemm.group_axis
    key = graph.log, gemm.m, gemm.n, gemm.k, axes
    library = all(_of_library(step.partition("{")[0]) for step in graph.log)
    if library and key in _right:
        return ()
    found = work_problems(graph)
    if not found:
        _right.add(key)
    return found


def _of_library(name: str) -> bool:
    return name in PASSES and PASSES[name].__module__.startswith("passes.")
