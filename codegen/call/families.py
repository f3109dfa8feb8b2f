"""The kernels that `warm` built in this process, by the kind of problem and device."""

from __future__ import annotations

import threading
from collections.abc import Hashable, Iterator
from dataclasses import replace
from itertools import islice

from codegen.call.request import PlanRequest
from passes.choosing import Plan, mma_sync, ranked, sizes
from passes.choosing.kernel_family import KernelFamily

__all__ = ["add", "family_of", "forget", "known", "plans_among"]

FIRST = 4
"""Largest number of plans that `plans_among` yields. Their kernels are built, so usually the
first plan is launched, and the others are not needed."""

known: dict[Hashable, KernelFamily] = {}
"""The kernels that `warm` has built, by kind of problem and device."""
_lock = threading.Lock()


def add(request: PlanRequest, family: KernelFamily) -> KernelFamily:
    """Record built kernels, for later calls with the same kind of problem and device.

    Returns:
        All kernels that were recorded for this kind of problem and device.
    """
    key = _key(request)
    with _lock:
        before = known.get(key)
        found = known[key] = family if before is None else before.joined(family)
    return found


def family_of(request: PlanRequest) -> KernelFamily | None:
    """The kernels that `warm` built for a request's kind, device and size, or None."""
    if (found := known.get(_key(request))) is None:
        return None
    return found if found.covers(sizes(request.gemm)) else None


def plans_among(request: PlanRequest) -> Iterator[Plan]:
    """Yield plans whose kernels `warm` has built, the cheapest by the cost model first.

    Without a cost model, data-sheet rates of the GPU rank the plans. Without both, nothing is
    yielded.
    """
    device, family = request.constants, family_of(request)
    if family is None:
        return
    if device is not None:
        for choice in ranked(request.gemm, device, FIRST, reads_c=request.reads_c, among=family):
            yield choice.plan
    elif (figures := request.figures) is not None:
        found = mma_sync.choices(request.gemm, figures, reads_c=request.reads_c)
        plans = (choice.plan for choice in found)
        kernels = frozenset(family.kernels)
        yield from islice((p for p in plans if replace(p, workgroups=None) in kernels), FIRST)


def forget() -> None:
    """Drop the record of what `warm` built: later calls choose among all plans.

    The built kernels stay cached.
    """
    with _lock:
        known.clear()


def _key(request: PlanRequest) -> Hashable:
    where = request.target, request.device, request.ordinal, request.instructions
    return request.any_size, *where, request.reads_c
