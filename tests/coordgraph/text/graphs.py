"""Unscheduled, scheduled and lowered graphs, for tests of their text forms."""

from __future__ import annotations

from functools import cache, partial

from coordgraph import Gemm, KernelGraph
from passes import Pipeline
from passes.lowering import LowerToTensorCores

PIPELINES = (
    "",
    "data-parallel",
    "data-parallel{persistent=true,workgroups=132}",
    "reorder{swap=true,group=3},stream-k",
    "stream-k{workgroups=132,owner=last}",
    "two-tile-stream-k{first=dp}",
    "heterogeneous-tiles{workgroups=132,small_n=32}",
    "rasterize{width=4,snake=true,along=n},two-tile-stream-k{waves=contiguous,least=4}",
)
PROBLEMS = (
    Gemm(),
    Gemm("f16", "f32", m=1280, n=1536, k=16384, transpose_b=True),
)


@cache
def scheduled(problem: Gemm, pipeline: str) -> KernelGraph:
    graph = problem.graph((128, 128, 32))
    return Pipeline.parse(pipeline)(graph) if pipeline else graph


@cache
def lowered() -> KernelGraph:
    return LowerToTensorCores()(scheduled(Gemm(), "stream-k{workgroups=132,owner=last}"))


MAKERS = (*(partial(scheduled, g, p) for g in PROBLEMS for p in PIPELINES), lowered)
"""Functions that each return one of the graphs whose text forms are tested, so that no graph is
built while tests are collected."""
