"""Skips repeated work checks (see `passes.work_check`) in tests that build each schedule often."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from contextlib import contextmanager

import pytest

from coordgraph import KernelGraph
from passes import PASSES, base
from passes.work_check import work_problems

__all__ = ["one_work_check_for_each_schedule"]

_right = set[Hashable]()
"""Keys of the schedules whose first graph has passed the work check."""


@contextmanager
def one_work_check_for_each_schedule() -> Iterator[None]:
    """Run the work check on the first graph of each schedule only, whatever its tile and types.

    Every schedule pass runs the work check on its graph, by tracing the graph in the interpreter,
    which takes longer than the pass itself. Schedules do not depend on types and layouts, and
    `tests/passes` checks them with many tiles. Graphs of passes that a test defines are always
    checked.
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
