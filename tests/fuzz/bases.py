"""The correct graphs that the fuzzer mutates."""

from __future__ import annotations

import json
from functools import cache
from typing import Any, NamedTuple

from coordgraph import Gemm, KernelGraph
from passes import Pipeline

__all__ = ["BASES", "GPU_SHARE", "Base", "base_data", "base_graph", "base_text"]


class Base(NamedTuple):
    """A correct graph, from which the fuzzer makes mutants.

    Args:
        schedule: the text of the pipeline.
        gemm: the arguments of `Gemm`.
        tile: extents of a macro tile in m, n and k, in elements.
    """

    schedule: str
    gemm: tuple[tuple[str, Any], ...] = (("dtype", "f32"),)
    tile: tuple[int, int, int] = (4, 4, 4)


F32 = (("dtype", "f32"),)
BATCH = (*F32, ("batched", True))
ALONG_M = (*F32, ("grouped", True))
ALONG_K = (*ALONG_M, ("group_axis", "k"))
LIST = (*ALONG_M, ("group_axis", "mnk"))
GAPS = (*F32, ("leading_dimensions", ("A", "B", "C")))
HALF = (("dtype", "bf16"),)
WHOLE = (("dtype", "i8"),)
GPU_TILE = (64, 64, 64)

CPU_BASES = (
    Base("data-parallel"),
    Base("data-parallel{persistent=true}"),
    Base("stream-k"),
    Base("stream-k{workgroups=3}"),
    Base("stream-k{owner=last}"),
    Base("stream-k{reduction=tree}"),
    Base("stream-k{reduction=turnstile}"),
    Base("stream-k{reduction=scatter}"),
    Base("split-k{splits=none,reduction=scatter,adjacent=tiles}"),
    Base("split-k{splits=none,reduction=peers}"),
    Base("stream-k{reduction=atomic}"),
    Base("two-tile-stream-k{workgroups=3,first=dp}"),
    Base("hybrid-stream-k{workgroups=2}"),
    Base("split-k{splits=3}"),
    Base("split-k{splits=2,reduction=atomic}"),
    Base("heterogeneous-tiles"),
    Base("reorder{group=2},stream-k"),
    Base("rasterize{order=hilbert},data-parallel"),
    Base("data-parallel", (*F32, ("transpose_a", True), ("transpose_b", True))),
    Base("stream-k", WHOLE),
    Base("stream-k", BATCH),
    Base("data-parallel{persistent=true}", ALONG_M),
    Base("stream-k", ALONG_M),
    Base("stream-k", ALONG_K),
    Base("data-parallel{persistent=true}", LIST),
    Base("stream-k", LIST),
    Base("stream-k", GAPS),
    Base("data-parallel", (*BATCH, *GAPS, ("transposed_operands", ("C",)))),
)
"""Small graphs from which mutants are made; these graphs are cheap to run on the CPU."""
GPU_BASES = (
    Base("data-parallel", HALF, GPU_TILE),
    Base("stream-k{workgroups=3}", HALF, GPU_TILE),
    Base("split-k{splits=2}", HALF, GPU_TILE),
)
"""Graphs from which mutants are made for GPUs: their element types and tiles are such that the
lowerings for GPUs accept them."""
BASES = (*CPU_BASES, *GPU_BASES)
GPU_SHARE = 0.08
"""Fraction of the mutants that are made from `GPU_BASES`; small because generating PTX is slow."""


@cache
def base_graph(base: Base) -> KernelGraph:
    """Build the correct graph that `base` describes."""
    problem = Gemm(**dict(base.gemm)).graph(base.tile)
    return Pipeline.parse(base.schedule)(problem, verify="structure")


@cache
def base_text(base: Base) -> str:
    """The text form of a correct graph."""
    return base_graph(base).text()


@cache
def base_data(base: Base) -> str:
    """The correct graph of `base` as plain data (dicts, lists, numbers, texts), in JSON."""
    return json.dumps(base_graph(base).json())
