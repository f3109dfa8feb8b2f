"""The kernels that `warm` built in this process, by the kind of problem and device."""

from __future__ import annotations

import threading
from collections.abc import Hashable, Iterator

from codegen.call.request import PlanRequest
from passes.choosing import Plan, ranked, sizes
from passes.choosing.kernel_family import KernelFamily

__all__ = ["add", "family_of", "forget", "known", "plans_among"]

FIRST = 4
"""Number of plans to rank: all kernels are built, so the first one is launched."""

known: dict[Hashable, KernelFamily] = {}
"""The built kernels by the kind of problem and device; empty if `warm` was not called."""
_lock = threading.Lock()


def add(request: PlanRequest, family: KernelFamily) -> KernelFamily:
    """Add built kernels for problems like that of a request, in the ranges of the family.

    Returns:
        The kernels of this and all earlier calls for such problems.
    """
    key = _key(request)
    with _lock:
        before = known.get(key)
        found = known[key] = family if before is None else before.joined(family)
    return found


def family_of(request: PlanRequest) -> KernelFamily | None:
    """The built kernels for a request's kind of problem, if its size is in their ranges."""
    if (found := known.get(_key(request))) is None:
        return None
    return found if found.covers(sizes(request.gemm)) else None


def plans_among(request: PlanRequest) -> Iterator[Plan]:
    """The plans whose kernels are built, the best by the cost model first; none if none are."""
    device, family = request.constants, family_of(request)
    if device is not None and family is not None:
        for choice in ranked(request.gemm, device, FIRST, reads_c=request.reads_c, among=family):
            yield choice.plan


def forget() -> None:
    """Choose freely again: drop the families, though not the kernels."""
    with _lock:
        known.clear()


def _key(request: PlanRequest) -> Hashable:
    where = request.target, request.device, request.ordinal, request.instructions
    return request.any_size, *where, request.reads_c
