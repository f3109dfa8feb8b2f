"""The kernels that `warm` built in this process, by the kind of problem and device."""

from __future__ import annotations

import threading
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import replace
from itertools import islice
from math import ceil
from typing import Any

from codegen.call.request import PlanRequest
from passes.choosing import Plan, mma_sync, ranked, sizes
from passes.choosing.kernel_family import KernelFamily

__all__ = ["add", "by_padding", "family_of", "forget", "kind_of", "known", "plans_among"]

FIRST = 4
"""Largest number of plans that `plans_among` yields by predicted time. Their kernels are built, so
usually the first plan is launched, and the others are not needed."""

known: dict[Hashable, KernelFamily] = {}
"""The kernels that `warm` has built, by kind of problem and device."""
_lock = threading.Lock()


def add(request: PlanRequest, family: KernelFamily) -> KernelFamily:
    """Record built kernels, for later calls with the same kind of problem and device.

    Returns:
        All kernels that were recorded for this kind of problem and device.
    """
    key = kind_of(request)
    with _lock:
        before = known.get(key)
        found = known[key] = family if before is None else before.joined(family)
    return found


def family_of(request: PlanRequest) -> KernelFamily | None:
    """The kernels that `warm` built for a request's kind, device and size, or None."""
    if (found := known.get(kind_of(request))) is None:
        return None
    return found if found.covers(sizes(request.gemm)) else None


def plans_among(request: PlanRequest) -> Iterator[Plan]:
    """Yield plans whose kernels `warm` has built, the cheapest by the cost model first.

    Without a cost model, data-sheet rates of the GPU rank the plans. Without such rates too,
    `PlanRequest.simple_plan` is the first plan, if its kernel is built. All other built kernels
    follow, those that compute the fewest elements outside the matrices first, so that a call whose
    size is in the range always finds a built kernel.
    """
    device, family = request.constants, family_of(request)
    if family is None:
        return
    limits: dict[str, Any] = {"batches": request.batches, "reads_c": request.reads_c}
    kernels = frozenset(family.kernels)
    found: Iterator[Plan] = iter((request.simple_plan,))
    if device is not None:
        limits |= {"among": family, "order": request.order}
        found = (choice.plan for choice in ranked(request.gemm, device, FIRST, **limits))
    elif (figures := request.figures) is not None:
        found = (choice.plan for choice in mma_sync.choices(request.gemm, figures, **limits))
    yielded = set[Plan]()
    for plan in islice((p for p in found if _kernel(p) in kernels), FIRST):
        yielded.add(_kernel(plan))
        yield plan
    yield from by_padding(request, (p for p in family.kernels if p not in yielded))


def by_padding(request: PlanRequest, plans: Iterable[Plan]) -> list[Plan]:
    """Sort plans by the number of elements that they compute outside the matrices.

    Of plans with the same number, the one with the largest tile is the first.
    """
    size = sizes(request.gemm)

    def computed(plan: Plan) -> tuple[int, int]:
        m, n, k = (ceil(x / side) * side for x, side in zip(size, plan.tile, strict=True))
        return m * n * k, -plan.tile[0] * plan.tile[1]

    return sorted(plans, key=computed)


def forget() -> None:
    """Drop the record of what `warm` built: later calls choose among all plans.

    The built kernels stay cached.
    """
    with _lock:
        known.clear()


def kind_of(request: PlanRequest) -> Hashable:
    """A key that is equal for requests on one GPU whose plans are chosen among the same kernels."""
    where = request.target, request.device, request.ordinal, request.instructions
    return request.any_size, *where, request.reads_c, request.invariant


def _kernel(plan: Plan) -> Plan:
    """The plan without its grid, which names its kernel."""
    return replace(plan, workgroups=None)
