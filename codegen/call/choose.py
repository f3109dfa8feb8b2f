"""Choose the plans to try for a call, in the order in which to try them."""

from __future__ import annotations

from collections.abc import Iterator

from codegen.call import families, measured
from codegen.call.request import PlanRequest
from coordgraph import LaunchError
from passes.choosing import Plan

__all__ = ["plans"]


def plans(request: PlanRequest, wanted: Plan | str | None = None) -> Iterator[Plan]:
    """Yield the caller's plan only; or without one, the fastest measured plan, then other plans.

    The other plans are those whose kernels `codegen.warm` built for this range of sizes, if it was
    called; then those of the cost model, the cheapest first; then the fallback plan, which a fixed
    rule derives from the sizes without a cost model. Without a model it is the only other plan.

    Raises:
        LaunchError: `wanted` is neither a plan nor text.
        PassError, ParseError: the text in `wanted` is malformed.
    """
    if isinstance(wanted, str):
        yield Plan.parse(wanted)
    elif isinstance(wanted, Plan):
        yield wanted
    elif wanted is not None:
        raise LaunchError(
            f"plan = {wanted!r} is neither a Plan nor its text; write it like '128x256x64 "
            "data-parallel', or let `coordgraph explain` list the plans for a problem"
        )
    else:
        times = None if request.target == "cpu" else measured.remembered(request)
        if times is not None:
            yield times.plan
        if families.known:
            yield from families.plans_among(request)
        yield from request.plans()
