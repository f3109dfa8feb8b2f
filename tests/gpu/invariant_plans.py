"""Plans of batch-invariant products for many m, chosen in several processes."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from multiprocessing import get_context

from codegen.call.compile_workers import CompileWorkers
from codegen.call.request import PlanRequest
from passes.choosing import Plan

__all__ = ["compiled_plans"]


def first_plan(request: PlanRequest, m: int) -> str:
    """The text of the plan that `matmul` tries first for this m."""
    return str(next(request_for(request, m).plans()))


def request_for(request: PlanRequest, m: int) -> PlanRequest:
    """A copy of `request` for a product with another m."""
    return replace(request, gemm=replace(request.gemm, m=m))


def compiled_plans(request: PlanRequest, rows: Sequence[int]) -> dict[int, str]:
    """For each m, the text of the plan that is tried first; compile all of them to the disk cache.

    Args:
        request: the request for some m.
        rows: the values of m.
    """
    workers = os.cpu_count() or 1
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        found = pool.map(partial(first_plan, request), rows, chunksize=64)
        plans = dict(zip(rows, found, strict=True))
    kernels = {Plan.parse(text).kernel: text for text in plans.values()}
    with CompileWorkers(request, workers) as compiling:
        compiling.compile([Plan.parse(text) for text in kernels.values()])
    return plans
