"""Our kernels as text: a tile, perhaps a cluster, and a pipeline of passes.

    256x256x64@c2x1 two-tile-stream-k{owner=last}

is a macro tile of 256 x 256 x 64, clusters of 2 x 1 workgroups, and the schedule. With `@pingpong`
behind tile and cluster, warpgroups take turns with whole tiles.
"""

from __future__ import annotations

import argparse
import multiprocessing
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import BrokenExecutor, ProcessPoolExecutor, as_completed
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import codegen
from benchmarks.shapes import triple
from coordgraph import CoordGraphError, Gemm, KernelGraph
from passes import Pipeline
from passes.lowering import CONSUMERS, LowerToHopper

__all__ = ["Plan", "compile_plans", "parse_plan", "products"]

WORKERS = 8
_PLAN = re.compile(
    r"\s*(?P<tile>[0-9xX]+)(?:@c(?P<m>\d+)x(?P<n>\d+))?"
    rf"(?:@(?P<consumers>{'|'.join(CONSUMERS)}))?\s+(?P<pipeline>\S.*?)\s*"
)
COOPERATIVE = LowerToHopper.consumers


@dataclass(frozen=True)
class Plan:
    """How to multiply, whatever the shape."""

    tile: tuple[int, int, int]
    pipeline: str
    cluster: tuple[int, int] = (1, 1)
    consumers: str = COOPERATIVE

    def __str__(self) -> str:
        cluster = "" if self.cluster == (1, 1) else "@c{}x{}".format(*self.cluster)
        consumers = "" if self.consumers == COOPERATIVE else f"@{self.consumers}"
        return f"{'x'.join(map(str, self.tile))}{cluster}{consumers} {self.pipeline}"

    def graph(self, dtype: str, layout: str) -> KernelGraph:
        """The scheduled graph."""
        a_turned, b_turned = (side == "t" for side in layout)
        gemm = Gemm(dtype, transpose_a=a_turned, transpose_b=b_turned)
        return Pipeline.parse(self.pipeline)(gemm.graph(self.tile))

    def compile(self, dtype: str, layout: str, target: str) -> Any:
        """A kernel; CoordGraphError where the plan cannot be had."""
        return self.build(self.graph(dtype, layout), target)

    def build(self, graph: KernelGraph, target: str) -> Any:
        """The kernel of a scheduled graph."""
        if self.cluster == (1, 1) and self.consumers == COOPERATIVE:
            return codegen.compile(graph, target)
        from codegen.api import native_target

        target = native_target(graph) if target == "native" else target
        m, n = self.cluster
        lowering = LowerToHopper(target, cluster_m=m, cluster_n=n, consumers=self.consumers)
        compile_with: Callable[..., Any] = codegen.compile
        return compile_with(graph, target, lowering=lowering)


def parse_plan(text: str) -> Plan:
    """A plan of its text.

    Raises:
        argparse.ArgumentTypeError: it is malformed, or the pipeline is.
    """
    found = _PLAN.fullmatch(text)
    if not found:
        raise argparse.ArgumentTypeError(
            f"'{text}' is not like '128x256x64 data-parallel' or '256x256x64@c2x1 stream-k'"
        )
    try:
        pipeline = str(Pipeline.parse(found["pipeline"]))
    except CoordGraphError as error:
        raise argparse.ArgumentTypeError(f"'{text}': {error}") from None
    cluster = (int(found["m"] or 1), int(found["n"] or 1))
    if min(cluster) < 1:
        raise argparse.ArgumentTypeError(f"'{text}': a cluster has at least one workgroup")
    return Plan(triple(found["tile"]), pipeline, cluster, found["consumers"] or COOPERATIVE)


def products(schedules: Iterable[str], tiles: Iterable[tuple[int, int, int]]) -> list[Plan]:
    """Every schedule with every tile."""
    tiles = list(tiles)
    return [parse_plan(f"{'x'.join(map(str, t))} {s}") for s in schedules for t in tiles]


def _fill_cache(plan: Plan, dtype: str, layout: str, target: str) -> None:
    with suppress(CoordGraphError):  # the main process meets it again and reports it
        plan.compile(dtype, layout, target).resident  # noqa: B018 - loads the code


def compile_plans(
    plans: Sequence[Plan], dtype: str, layout: str, target: str, step: Callable[[], None]
) -> Iterator[tuple[Plan, Any]]:
    """Each plan with its loaded kernel, or with the error; `step` is called after each.

    Where kernels are kept on disk, processes side by side fill that cache first.
    """
    if len(plans) > 2 and hasattr(codegen, "cache_directory"):
        start = multiprocessing.get_context("spawn")  # CUDA does not survive a fork
        with ProcessPoolExecutor(min(WORKERS, len(plans)), mp_context=start) as pool:
            jobs = [pool.submit(_fill_cache, plan, dtype, layout, target) for plan in plans]
            with suppress(BrokenExecutor):  # what breaks here is met again below
                for job in as_completed(jobs):
                    job.result()
    for plan in plans:
        try:
            kernel = plan.compile(dtype, layout, target)
            kernel.resident  # noqa: B018 - loads the code
        except CoordGraphError as error:
            yield plan, error
        else:
            yield plan, kernel
        step()
