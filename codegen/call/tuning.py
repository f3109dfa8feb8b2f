"""Tuning: find the fastest plan of a problem by measuring, and keep the times for later calls."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import islice
from math import inf
from typing import TYPE_CHECKING, Any

from codegen.call.bench import opened
from codegen.call.build import kernel_of, refuse
from codegen.call.compile_workers import CompileWorkers
from codegen.call.measured import remember, remembered
from codegen.call.progress import Advance, progress
from codegen.call.request import PlanRequest
from codegen.call.rounds import HEAT_SECONDS, Rounds
from codegen.call.views import TensorView
from coordgraph import CodegenError, CoordGraphError, LaunchError
from passes.choosing import Plan
from passes.choosing.candidates import candidates
from passes.choosing.model import cost
from passes.choosing.search import MOST_MEASURED, search

if TYPE_CHECKING:
    from codegen.call.bench import Bench

__all__ = ["find_fastest", "tune_plans"]


def tune_plans(request: PlanRequest, views: Mapping[str, TensorView], stream: Any) -> None:
    """Find the fastest plan for a call by measuring some plans, unless that was done before.

    The times are stored, and `codegen.call.choose` prefers the fastest plan from then on. Nothing
    is measured on the CPU, for products without elements, or if there is only one plan.

    Args:
        request: the problem and the device.
        views: row-major A and B, which are copied; and the operands of an epilogue of the caller,
            which are read. No memory of the caller is written.
        stream: the stream of the call, or None.

    Raises:
        LaunchError: the stream is capturing a CUDA graph, or a plan gives a wrong result.
        CodegenError: no plan can be built.
    """
    empty = any(view.bytes == 0 for view in views.values())
    if request.target == "cpu" or empty or remembered(request) is not None:
        return
    _refuse_capture(stream)
    if request.constants is None and request.figures is None:
        return  # there is only one plan, so there is nothing to compare
    with (
        opened(request, views) as bench,
        CompileWorkers(request) as workers,
        progress("tuning") as advance,
    ):
        seconds = find_fastest(request, bench, workers.compile, advance)
    remember(request, seconds)


def find_fastest(
    request: PlanRequest,
    bench: Bench,
    compile_all: Callable[[Sequence[Plan]], Collection[Plan]],
    advance: Advance = lambda step, done, of: None,
) -> dict[Plan, float]:
    """Find the fastest plan for a request by measuring some of the candidates.

    Args:
        request: the problem and the device, for which there is a cost model or data-sheet rates.
        bench: starts plans and takes samples of their times.
        compile_all: compiles the kernels of some plans, in parallel; returns plans whose kernels
            cannot be built.
        advance: called with the current step, the number of plans done, and that of all plans.

    Returns:
        The seconds of a launch of each measured plan.

    Raises:
        LaunchError: a plan gives a wrong result.
        CodegenError: no plan can be built.
    """
    rounds = Rounds(bench.sample, bench.sample_under_load, heat_seconds=HEAT_SECONDS)

    def measure(plans: Sequence[Plan]) -> list[float]:
        advance("compiling", len(rounds.seconds), MOST_MEASURED)
        refused = compile_all(plans)
        advance("measuring", len(rounds.seconds), MOST_MEASURED)
        started = [plan for plan in plans if plan not in refused and _start(request, bench, plan)]
        found = dict(zip(started, rounds.measure(started), strict=True))
        return [found.get(plan, inf) for plan in plans]

    if (device := request.constants) is None:
        measure(list(request.plans()))
    else:
        table = candidates(
            request.gemm, device, batches=request.batches, reads_c=request.reads_c, tuning=True
        )
        # The plan that is used without tuning is measured too: tuning must not make a call slower.
        first = islice(request.plans(), 1)
        search(table, cost(table, device).total, device, measure, first=list(first))
    if not rounds.seconds:
        raise CodegenError(
            f"no plan can be built for {request.target}; call matmul with one plan, as in "
            "plan='128x256x64 data-parallel', to see why it cannot be built"
        )
    advance("measuring the fastest again", len(rounds.seconds), MOST_MEASURED)
    return rounds.final()


def _start(request: PlanRequest, bench: Bench, plan: Plan) -> bool:
    """Build a plan's kernel and launch it once; False if it cannot be built or loaded."""
    try:
        kernel = kernel_of(plan, request)
    except CoordGraphError:
        return False
    try:
        bench.start(plan, kernel)
    except CodegenError as error:  # the device refuses the kernel's code
        refuse(kernel, error)
        return False
    return True


def _refuse_capture(stream: Any) -> None:
    from codegen.call.arrays import stream_handle
    from codegen.targets.nvptx.driver import is_capturing

    handles = [0] if stream is None else [stream_handle(stream)]
    torch = sys.modules.get("torch")
    if stream is None and torch is not None and torch.cuda.is_initialized():
        handles = [int(torch.cuda.current_stream().cuda_stream)]
    for handle in handles:
        if is_capturing(handle):
            raise LaunchError(
                "tune=True measures launches, which is impossible while a CUDA graph is captured; "
                "call matmul with tune=True before the capture, and without it in the capture"
            )
