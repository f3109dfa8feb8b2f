"""Choose the plans to try for a call, in the order in which to try them."""

from __future__ import annotations

from collections.abc import Iterator

from codegen.call import families, measured
from codegen.call.request import PlanRequest
from coordgraph import CodegenError, LaunchError
from passes.choosing import Plan

__all__ = ["plans"]


def plans(request: PlanRequest, wanted: Plan | str | None = None) -> Iterator[Plan]:
    """Yield the caller's plan only; or without one, the fastest measured plan, then other plans.

    The other plans are those whose kernels `codegen.warm` built for this range of sizes, if it was
    called; then those of the cost model, the cheapest first; then the fallback plan, which a fixed
    rule derives from the sizes without a cost model. Without a model it is the only other plan.

    If the request is for a batch-invariant product, every plan is checked to add along k in the
    order that is pinned for n and k, and measured plans are not used.

    Raises:
        LaunchError: `wanted` is neither a plan nor text.
        CodegenError: `wanted` adds along k in another order than the pinned one.
        PassError, ParseError, VerifyError: `wanted` is malformed, or cannot be applied.
    """
    if request.order is None:
        yield from _plans(request, wanted)
        return
    # imported here because it imports the checks of graphs, which other calls do not need
    from passes.choosing.order_in_graph import why_not

    for plan in _plans(request, wanted):
        if (refusal := why_not(request.order, plan, request.gemm)) is None:
            yield plan
        elif wanted is not None:
            raise CodegenError(
                f"the plan '{plan}' cannot be used with invariant=True: {refusal}; leave out the "
                f"plan, or give one such as '{request.simple_plan}'"
            )


def _plans(request: PlanRequest, wanted: Plan | str | None) -> Iterator[Plan]:
    """The plans of `plans`, without a check of the order in which they add along k."""
    if isinstance(wanted, str):
        yield Plan.parse(wanted)
    elif isinstance(wanted, Plan):
        yield wanted
    elif wanted is not None:
        raise LaunchError(
            f"plan = {wanted!r} is neither a Plan nor its text; write it like '128x256x64 "
            "data-parallel', or let `coordgraph explain` list the plans for a problem"
        )
    elif request.order is not None:
        yield from request.plans()
    else:
        times = None if request.target == "cpu" else measured.remembered(request)
        if times is not None:
            yield times.plan
        if families.known:
            yield from families.plans_among(request)
        yield from request.plans()
