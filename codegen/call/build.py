"""Build the kernels of plans, each once in a process; if a plan fails, the next one is tried."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from itertools import chain
from typing import TypeVar

from codegen.api import compile
from codegen.call.choose import plans
from codegen.call.request import PlanRequest
from codegen.kernel import Kernel
from coordgraph import CodegenError, CoordGraphError, Gemm, KernelGraph
from coordgraph.collection import collection_paused
from passes import Pass
from passes.choosing import Plan
from passes.lowering import architecture_of
from passes.lowering.architectures import ALIGNED_BYTES, Alignment

__all__ = [
    "built",
    "check_grid",
    "compile_plan",
    "fail",
    "forget",
    "kernel_of",
    "known",
    "lowering_of",
    "refuse",
    "try_plans",
]

MOST_ATTEMPTS = 24
"""After this many plans that cannot be compiled or launched, `try_plans` raises the last error."""
T = TypeVar("T")

_kernels: dict[tuple[str, Gemm, str, str, bool, str | None], Kernel | CoordGraphError] = {}
"""For each kernel that this process has tried to build: the kernel, or the error.

A key is the plan's text without its grid, followed by the items of `PlanRequest.kind`: the problem
without sizes, the target, the matrix instructions, whether C is added, and the only instructions
that may multiply (None: any).
"""
_refused: list[Kernel] = []
"""Kernels whose entry in `_kernels` was replaced by an error. They are kept alive, because a
captured CUDA graph may still launch them and use their workspaces."""
_lock = threading.RLock()


def try_plans(
    request: PlanRequest,
    wanted: Plan | str | None,
    use: Callable[[Plan, Kernel], T],
    count: int = 1,
    first: Plan | None = None,
) -> list[T]:
    """Call `use` with each plan and its kernel in turn, until `use` has succeeded `count` times.

    A plan is skipped if its kernel cannot be built, or if `use` raises CodegenError because the
    device refuses the code, for example when registers spill. A skipped kernel is not tried again.

    Args:
        request: the problem and the device.
        wanted: the caller's plan; no other plan is tried. None tries the chosen plans in order.
        use: the function to call with a plan and its kernel; it may launch the kernel.
        count: number of results after which to stop.
        first: a plan to try before the chosen plans.

    Returns:
        The results of `use`; at least one.

    Raises:
        CodegenError: no plan worked; the error is that of the last plan.
        PassError, VerifyError, ParseError: the caller's plan cannot be applied.
    """
    results: list[T] = []
    refusal = CodegenError(f"no plan can be built for {request.target}")
    chosen = plans(request, wanted)
    for attempt, plan in enumerate(chosen if first is None else chain((first,), chosen)):
        kernel = None
        try:
            kernel = kernel_of(plan, request)
            results.append(use(plan, kernel))
        except CodegenError as error:
            if wanted is not None:
                raise
            if kernel is not None:
                refuse(kernel, error)
            refusal = error
            if attempt >= MOST_ATTEMPTS:
                break
        if len(results) == count:
            break
    if not results:
        raise refusal
    return results


def kernel_of(plan: Plan, request: PlanRequest) -> Kernel:
    """The kernel of a plan, from the cache of this process or compiled.

    Raises:
        CoordGraphError: the kernel cannot be built. The error is cached too, and raised again at
            once. Plans that differ only in the grid share a kernel, so the grid is always checked.
    """
    key = plan.kernel, *request.kind
    found = _kernels.get(key)
    # A kernel that is built is found without the lock, which another thread may hold for seconds.
    if found is None:
        with _lock:
            if key not in _kernels:
                gemm, target, _, reads_c, only = request.kind
                alignment = request.alignment
                try:
                    _kernels[key] = compile_plan(
                        plan,
                        gemm,
                        target,
                        alignment=alignment,
                        reads_c=reads_c,
                        instructions=only,
                    )
                except CoordGraphError as error:
                    _kernels[key] = error
            found = _kernels[key]
    if isinstance(found, CoordGraphError):
        raise found
    if plan.workgroups is not None:
        check_grid(plan, found.graph)
    return found


def known(plan: Plan, request: PlanRequest) -> Kernel | CoordGraphError | None:
    """A plan's kernel, or the error of its build; None if this process has not tried to build it.

    Unlike `kernel_of`, this function never waits for another thread that compiles.
    """
    return _kernels.get((plan.kernel, *request.kind))


def built(request: PlanRequest) -> dict[str, Kernel]:
    """The kernels that this process has built for problems of the request's kind.

    Problems of one kind (`PlanRequest.kind`) share kernels whatever their sizes. The keys of the
    result are the plans of the kernels without their grids, as text (`Plan.kernel`).
    """
    kind = request.kind
    every = list(_kernels.items())  # copied: another thread may add a kernel meanwhile
    return {key[0]: k for key, k in every if key[1:] == kind and isinstance(k, Kernel)}


def refuse(kernel: Kernel, error: CodegenError) -> None:
    """Replace a cached kernel by an error; later requests for that kernel raise the error."""
    with _lock:
        _refused.append(kernel)
        _kernels.update({key: error for key, known in _kernels.items() if known is kernel})


def fail(plan: Plan, request: PlanRequest, error: CoordGraphError) -> None:
    """Record that a plan's kernel cannot be built: later requests for it raise `error`."""
    key = plan.kernel, *request.kind
    with _lock:
        if isinstance(before := _kernels.get(key), Kernel):
            _refused.append(before)
        _kernels[key] = error


def forget() -> None:
    """Drop the cached kernels and errors of this process, and kernels kept alive after an error."""
    with _lock:
        _kernels.clear()
        _refused.clear()


def compile_plan(
    plan: Plan,
    gemm: Gemm,
    target: str,
    *,
    alignment: int = ALIGNED_BYTES,
    reads_c: bool = False,
    instructions: str | None = None,
    timeline: bool | int = False,
) -> Kernel:
    """Compile the kernel of a plan; sizes that `gemm` fixes are fixed in the kernel.

    The grid of the plan is ignored here; `check_grid` checks it.

    Args:
        plan: the tile, cluster shape, schedule and grid.
        gemm: the problem.
        target: a target of `codegen.compile`, except `native`.
        alignment: the power of two, up to 16, of which addresses and strides of A and B are
            multiples, in bytes.
        reads_c: whether the kernel reads C and adds it.
        instructions: the matrix instructions that the kernel must use, as for `codegen.compile`.
        timeline: whether the kernel records its timeline, as for `codegen.compile`.

    Raises:
        CodegenError: no lowering of the target has the options that the plan sets (such as the
            cluster) and takes tensors with this alignment.
        PassError, VerifyError, ParseError: the plan cannot be applied.
    """
    with collection_paused():
        graph = plan.graph(gemm)
        lowering = lowering_of(plan, graph, target, alignment, reads_c=reads_c)
        made = compile(
            graph, target, lowering=lowering, instructions=instructions, timeline=timeline
        )
    made.title = str(plan)
    return made


def lowering_of(
    plan: Plan, graph: KernelGraph, target: str, alignment: int, *, reads_c: bool
) -> Pass | None:
    """The target's fastest lowering with the options (such as the cluster) that the plan sets.

    The result is None if the plan sets no options.

    Raises:
        CodegenError: no lowering of the target has the options that the plan sets and takes
            tensors with this alignment.
    """
    refusals: list[str] = []
    for lowering in architecture_of(target).lowerings if target.startswith("sm_") else ():
        if not lowering.has(*plan.options):
            continue
        made = lowering.options(target, **plan.options)
        without, final = (
            lowering.configured(made, lowering.variant(Alignment(bytes=alignment), reads_c=c))
            for c in (False, reads_c)
        )
        refusal = without.kept_why_not(graph) or lowering.why_not_aligned(alignment)
        if refusal is not None:
            refusals.append(refusal)
        elif reason := final.kept_why_not(graph):
            raise CodegenError(
                f"the plan '{plan.kernel}' does not work for calls that add C: {reason}; choose "
                "another plan"
            )
        else:
            return final if plan.options else None
    if plan.asks_for:
        why = f"cannot have here: {'; '.join(refusals)}" if refusals else "do not have"
        raise CodegenError(
            f"the plan '{plan.kernel}' needs {plan.asks_for}, which kernels for {target} {why}; "
            f"{'or ' * (';' in why)}leave {plan.asks_for} out of the plan"
        )
    return None


def check_grid(plan: Plan, graph: KernelGraph) -> None:
    """Check that a plan with a grid has a schedule whose grid can be chosen.

    Raises:
        CodegenError: the plan has a grid, but its schedule fixes the number of workgroups.
    """
    if plan.workgroups is not None and "workgroups" not in graph.parameters:
        raise CodegenError(
            f"the plan '{plan}' gives a number of workgroups, which '{plan.pipeline}' does not let "
            f"a plan choose; leave out 'on {plan.workgroups}'"
        )


def _renew_lock() -> None:
    """Make a new lock in a forked child process, which cannot release the parent's lock."""
    global _lock
    _lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_lock)
