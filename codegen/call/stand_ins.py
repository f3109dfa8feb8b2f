"""Which kernel serves a call while the kernel of a better plan is being built."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import islice
from typing import NamedTuple

from codegen.call import background_compiler
from codegen.call.build import MOST_ATTEMPTS, built, known
from codegen.call.choose import plans
from codegen.call.compile_workers import Job
from codegen.call.families import by_padding
from codegen.call.request import PlanRequest
from codegen.call.views import TensorView
from coordgraph import CoordGraphError
from passes.choosing import Plan, choices
from passes.choosing.kernel_family import KernelFamily

__all__ = ["StandIn", "stand_in"]

UNREPEATABLE = "atomic"
"""The way of adding partial sums (a schedule's `reduction`) whose results differ from run to run;
plans have it only if the caller asks."""

_parsed = lru_cache(1024)(Plan.parse)


class StandIn(NamedTuple):
    """How to serve a call at once.

    Attributes:
        plan: a plan whose kernel is loaded.
        job: the kernel to build in the background, which is that of the plan chosen for the call;
            None if no such kernel can be built.
    """

    plan: Plan
    job: Job | None


def stand_in(
    request: PlanRequest, views: Mapping[str, TensorView], scalars: Mapping[str, float]
) -> StandIn | None:
    """The plan that serves a call at once; None if the call should use the plan chosen for it.

    The result is None in two cases: the kernel of the chosen plan is loaded or in the cache on
    disk; or no loaded kernel can serve the call. Plans whose kernels cannot be built are skipped.

    Args:
        request: the problem and the device.
        views: the arrays of the call, by the names of tensors.
        scalars: the numbers of the call, by name.
    """
    if any(view.bytes == 0 for view in views.values()):
        return None
    job: Job | None = None
    for better in islice(plans(request), MOST_ATTEMPTS):
        found = known(better, request)
        if isinstance(found, CoordGraphError):
            continue
        if found is not None and found.is_loaded_for(views, scalars):
            return None
        job = Job(request, better, views, scalars)
        if not background_compiler.is_waiting(job) and job.is_done:
            return None
        break
    every = built(request).items()
    loaded = [_parsed(name) for name, k in every if k.is_loaded_for(views, scalars)]
    serving = _best(request, loaded)
    return None if serving is None else StandIn(serving, job)


def _best(request: PlanRequest, loaded: Sequence[Plan]) -> Plan | None:
    """The best plan for a request, by the cost model, among plans whose kernels are loaded.

    If the model ranks none of them, the result is the plan that computes the fewest elements
    outside the matrices, and of several such plans the one with the largest tile. None if no plan
    may be used.
    """
    device = request.constants
    if device is not None and loaded:
        family, batches = KernelFamily(tuple(loaded)), request.batches
        found = choices(
            request.gemm,
            device,
            batches=batches,
            reads_c=request.reads_c,
            among=family,
            order=request.order,
        )
        if best := next((c.plan for c in found if _is_allowed(c.plan, request)), None):
            return best
    repeatable = (p for p in loaded if getattr(p.schedule, "reduction", "") != UNREPEATABLE)
    allowed = (p for p in repeatable if _is_allowed(p, request))
    return next(iter(by_padding(request, allowed)), None)


def _is_allowed(plan: Plan, request: PlanRequest) -> bool:
    """Whether a plan adds products along k in the order that the request demands, if it does."""
    if request.order is None:
        return True
    # `order_in_graph` imports the checks of graphs, which other calls do not need.
    from passes.choosing.order_in_graph import why_not

    return why_not(request.order, plan, request.gemm) is None
