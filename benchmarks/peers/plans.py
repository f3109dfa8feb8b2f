"""Plans of coordgraph's kernels: parsed from the command line, compiled by several processes.

    256x256x64@c2x1 two-tile-stream-k{owner=last} on 66

is the text of a plan of `passes.choosing`: a macro tile of 256 x 256 x 64, clusters of 2 x 1
workgroups, a pipeline of passes, and optionally the number of workgroups or clusters in the grid.
`@pingpong` after tile and cluster gives each consumer warpgroup a macro tile of its own.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import BrokenExecutor, ProcessPoolExecutor, as_completed
from contextlib import suppress
from typing import Any

import codegen
from benchmarks.problems.problem import transposed
from coordgraph import CoordGraphError, Gemm, KernelGraph
from passes.choosing import Plan

__all__ = [
    "Plan",
    "build",
    "compile_for",
    "compile_plans",
    "gemm_of_layout",
    "loaded",
    "parse_plan",
    "products",
    "side_by_side",
]

WORKERS = 16


def parse_plan(text: str) -> Plan:
    """Parse the text of a plan, such as `128x256x64 data-parallel`.

    Raises:
        argparse.ArgumentTypeError: the text or its pipeline is malformed.
    """
    try:
        return Plan.parse(text)
    except CoordGraphError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def products(schedules: Iterable[str], tiles: Iterable[tuple[int, int, int]]) -> list[Plan]:
    """A plan for every combination of a schedule and a macro tile."""
    tiles = list(tiles)
    return [parse_plan(f"{'x'.join(map(str, t))} {s}") for s in schedules for t in tiles]


def gemm_of_layout(dtype: str, layout: str) -> Gemm:
    """The `Gemm` for a layout such as "nt"; m, n and k are launch arguments."""
    transpose_a, transpose_b = transposed(layout)
    return Gemm(dtype, transpose_a=transpose_a, transpose_b=transpose_b)


def build(plan: Plan, gemm: Gemm, target: str) -> Any:
    """Compile and load the kernel of a plan; raises CoordGraphError if that fails."""
    return loaded(plan, plan.graph(gemm), target)


def loaded(plan: Plan, graph: KernelGraph, target: str, *, timeline: bool = False) -> Any:
    """Compile and load the kernel of a plan, given its scheduled graph.

    With `timeline`, the kernel records a timeline of its workgroups.
    """
    lowering = None
    if plan.asks_for:
        from codegen.api import native_target

        target = native_target(graph) if target == "native" else target
        lowering = plan.lowering
    kernel: Any = codegen.compile(graph, target, lowering=lowering, timeline=timeline)
    kernel.resident  # noqa: B018 - loads the code
    return kernel


def _fill_cache(plan: Plan, gemm: Gemm, target: str) -> None:
    with suppress(
        CoordGraphError
    ):  # the main process builds the kernel again and reports the error
        build(plan, gemm, target)


def side_by_side(work: Callable[..., None], jobs: Sequence[tuple[Any, ...]]) -> None:
    """Call `work(*job)` for every job in worker processes, to fill the compilation cache on disk.

    A worker that crashes is ignored, because the main process repeats its work.
    """
    if len(jobs) < 3:
        return
    spawn = multiprocessing.get_context("spawn")  # a forked child cannot use CUDA
    workers = min(WORKERS, os.cpu_count() or 1, len(jobs))
    with ProcessPoolExecutor(workers, mp_context=spawn) as pool:
        waiting = [pool.submit(work, *job) for job in jobs]
        with suppress(BrokenExecutor):
            for job in as_completed(waiting):
                job.result()


def compile_plans(
    plans: Sequence[Plan], dtype: str, layout: str, target: str, step: Callable[[], None]
) -> Iterator[tuple[Plan, Any]]:
    """Yield each plan with its loaded kernel, or with the error that building it raised.

    Kernels compute single products (no batches or groups) with operands in the given layout.
    `step` is called after each plan.
    """
    return compile_for(plans, gemm_of_layout(dtype, layout), target, step)


def compile_for(
    plans: Sequence[Plan], gemm: Gemm, target: str, step: Callable[[], None]
) -> Iterator[tuple[Plan, Any]]:
    """Yield each plan with its loaded kernel, or with the CoordGraphError that building it raised.

    Worker processes fill the compilation cache on disk first. Plans that differ only in their grid
    share a kernel.

    Args:
        plans: the plans whose kernels are compiled.
        gemm: the problem that the kernels compute.
        target: the code generation target: `native`, `sm_80`, …
        step: a function that is called after each plan.
    """
    found: dict[str, Any] = {}
    first = {plan.kernel: plan for plan in reversed(plans)}
    side_by_side(_fill_cache, [(plan, gemm, target) for plan in first.values()])
    for plan in plans:
        if plan.kernel not in found:
            try:
                found[plan.kernel] = build(plan, gemm, target)
            except CoordGraphError as error:
                found[plan.kernel] = error
        yield plan, found[plan.kernel]
        step()
