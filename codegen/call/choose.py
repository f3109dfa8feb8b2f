"""Choose the plans to try for a call, in the order in which to try them."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

from codegen.call import families, measured
from codegen.call.request import PlanRequest
from coordgraph import CodegenError, LaunchError
from passes.choosing import Plan
from passes.choosing.summation_order import SummationOrder

__all__ = ["plans"]


def plans(request: PlanRequest, wanted: Plan | str | None = None) -> Iterator[Plan]:
    """Yield the caller's plan only; or without one, the fastest measured plan, then other plans.

    The other plans are those whose kernels `codegen.warm` has built, if the size is in the range of
    a call of `warm`; then those of the cost model or, without a cost model, of data-sheet rates of
    the GPU, the cheapest first; then the fallback plan, which a fixed rule derives from the sizes.

    If the request is for a batch-invariant product, every plan, also one of `codegen.warm_calls`,
    is checked to add along k in the order that is pinned for n and k, and measured plans are not
    used.

    Raises:
        LaunchError: `wanted` is neither a plan nor text.
        CodegenError: `wanted` adds along k in another order than the pinned one.
        PassError, ParseError, VerifyError: `wanted` is malformed, or cannot be applied.
    """
    if isinstance(wanted, str):
        wanted = Plan.parse(wanted)
    elif not (wanted is None or isinstance(wanted, Plan)):
        raise LaunchError(
            f"plan = {wanted!r} is neither a Plan nor its text; write it like '128x256x64 "
            "data-parallel', or let `coordgraph explain` list the plans for a problem"
        )
    if request.order is not None:
        yield from _pinned(request, request.order, wanted)
    elif wanted is not None:
        yield wanted
    else:
        times = None if request.target == "cpu" else measured.remembered(request)
        if times is not None:
            yield times.plan
        if families.known:
            yield from families.plans_among(request)
        yield from request.plans()


def _pinned(request: PlanRequest, order: SummationOrder, wanted: Plan | None) -> Iterator[Plan]:
    """The plans for a batch-invariant product: those that add along k in the order `order`."""
    # `order_in_graph` imports the checks of graphs, which other calls do not need.
    from passes.choosing.order_in_graph import why_not

    chosen = chain(families.plans_among(request) if families.known else (), request.plans())
    for plan in chosen if wanted is None else (wanted,):
        if (refusal := why_not(order, plan, request.gemm)) is None:
            yield plan
        elif wanted is not None:
            raise CodegenError(
                f"the plan '{plan}' cannot be used with invariant=True: {refusal}; leave out the "
                f"plan, or give one such as '{request.simple_plan}'"
            )
