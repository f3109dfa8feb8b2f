"""The first launch for a cache key: choose a plan, build its kernel and prepare later launches."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from functools import partial
from typing import Any

from codegen.call.arrangement import Launch, Prepared
from codegen.call.arrays import library
from codegen.call.build import try_plans
from codegen.call.checks import ArgumentMismatch, number
from codegen.call.describe import describe
from codegen.call.views import LABELS
from codegen.kernel import Kernel
from codegen.lru import LRUCache
from coordgraph import LaunchError
from coordgraph.validation import flag
from passes.choosing import Plan

__all__ = ["first_launch"]


def first_launch(
    prepared: LRUCache[Hashable, Prepared],
    key: Hashable,
    arrays: Mapping[str, Any],
    scalars: tuple[Any, float, Any],
    *,
    plan: Plan | str | None,
    tune: bool = False,
    numbers: Mapping[str, Any] | None = None,
    **options: Any,
) -> Any:
    """Describe a call, choose a plan, build its kernel and launch it.

    Args:
        prepared: the cache to which the result is added for later calls with the same key.
        key: the cache key of the call.
        arrays: the operands by the names of the graph's tensors.
        scalars: alpha, beta and the stream.
        plan: the caller's plan, or None.
        tune: whether to measure plans first, unless they were measured before.
        numbers: further scalars of the epilogue, by name.
        options: further arguments of `describe`.

    Raises:
        LaunchError, CodegenError, PassError, ParseError, VerifyError: as for `matmul`.
    """
    alpha, beta, stream = scalars
    if type(alpha) is not float:
        number(alpha, "alpha")
    flag(tune, "tune", LaunchError)
    if tune and options.get("invariant"):
        raise LaunchError(
            "tune=True measures plans with other orders of additions, which invariant=True "
            "excludes; leave out one of them"
        )
    call = describe(arrays, beta=beta, **options)
    a, b, c, out = (arrays[name] for name in "ABCD")
    operands = {LABELS.get(name, name): array for name, array in list(arrays.items())[4:]}
    operands |= numbers or {}

    def launch(plan: Plan, kernel: Kernel) -> Any:
        start: Launch = partial(kernel, workgroups=plan.workgroups)
        swap_a, swap_b = call.arrangement.transpose
        if call.arrangement.rearranges:
            start, swap_a, swap_b = partial(call.arrangement.launch, start), False, False
        prepared.put(key, (start, swap_a, swap_b))
        left = library(a).transposed(a) if swap_a else a
        right = library(b).transposed(b) if swap_b else b
        return start(left, right, c, out, alpha, beta, stream, **operands)

    if tune and plan is None:
        from codegen.call.tuning import tune_plans

        tune_plans(call.request, call.views, stream)
    try:
        (d,) = try_plans(call.request, plan, launch)
    # The advice on `Gemm(…)` is left out: it is for callers of kernels, not of `matmul`.
    except ArgumentMismatch as error:
        raise LaunchError(error.problem) from None
    return d
