"""Our kernels as text, compiled side by side.

    256x256x64@c2x1 two-tile-stream-k{owner=last} on 66

is a plan of `passes.choosing`: a macro tile of 256 x 256 x 64, clusters of 2 x 1 workgroups, the
schedule, and perhaps the grid. With `@pingpong` behind tile and cluster, warpgroups take turns with
whole tiles.
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
from coordgraph import CoordGraphError, Gemm, KernelGraph
from passes.choosing import Plan

__all__ = [
    "Plan",
    "build",
    "compile_for",
    "compile_plans",
    "loaded",
    "parse_plan",
    "problem",
    "products",
    "side_by_side",
]

WORKERS = 16


def parse_plan(text: str) -> Plan:
    """A plan of its text.

    Raises:
        argparse.ArgumentTypeError: it is malformed, or the pipeline is.
    """
    try:
        return Plan.parse(text)
    except CoordGraphError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def products(schedules: Iterable[str], tiles: Iterable[tuple[int, int, int]]) -> list[Plan]:
    """Every schedule with every tile."""
    tiles = list(tiles)
    return [parse_plan(f"{'x'.join(map(str, t))} {s}") for s in schedules for t in tiles]


def problem(dtype: str, layout: str) -> Gemm:
    """Products of every size in a layout."""
    a_turned, b_turned = (side == "t" for side in layout)
    return Gemm(dtype, transpose_a=a_turned, transpose_b=b_turned)


def build(plan: Plan, gemm: Gemm, target: str) -> Any:
    """The loaded kernel of a plan; CoordGraphError where it cannot be had."""
    return loaded(plan, plan.graph(gemm), target)


def loaded(plan: Plan, graph: KernelGraph, target: str) -> Any:
    """The loaded kernel of a plan's graph."""
    lowering = None
    if plan.asks_for:
        from codegen.api import native_target

        target = native_target(graph) if target == "native" else target
        lowering = plan.lowering
    kernel: Any = codegen.compile(graph, target, lowering=lowering)
    kernel.resident  # noqa: B018 - loads the code
    return kernel


def _fill_cache(plan: Plan, gemm: Gemm, target: str) -> None:
    with suppress(CoordGraphError):  # the main process meets it again and reports it
        build(plan, gemm, target)


def side_by_side(work: Callable[..., None], jobs: Sequence[tuple[Any, ...]]) -> None:
    """Do jobs in processes; each fills the cache on disk. What fails is met again later."""
    if len(jobs) < 3:
        return
    start = multiprocessing.get_context("spawn")  # CUDA does not survive a fork
    workers = min(WORKERS, os.cpu_count() or 1, len(jobs))
    with ProcessPoolExecutor(workers, mp_context=start) as pool:
        waiting = [pool.submit(work, *job) for job in jobs]
        with suppress(BrokenExecutor):
            for job in as_completed(waiting):
                job.result()


def compile_plans(
    plans: Sequence[Plan], dtype: str, layout: str, target: str, step: Callable[[], None]
) -> Iterator[tuple[Plan, Any]]:
    """Each plan with its loaded kernel for single products, or the error; see `compile_for`."""
    return compile_for(plans, problem(dtype, layout), target, step)


def compile_for(
    plans: Sequence[Plan], gemm: Gemm, target: str, step: Callable[[], None]
) -> Iterator[tuple[Plan, Any]]:
    """Each plan with its loaded kernel, or with the error; `step` is called after each.

    Processes side by side fill the cache on disk first. Plans that differ in their grid alone have
    one kernel.
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
