"""The first launch for a cache key: choose a plan, build its kernel and prepare later launches."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from codegen.call.arrangement import NO_OPERANDS, Launch, Prepared, Repeat
from codegen.call.arrays import library, stream_handle
from codegen.call.background import setting
from codegen.call.build import try_plans
from codegen.call.checks import ArgumentMismatch, number
from codegen.call.describe import Call, describe
from codegen.call.prepared_calls import repeated_functions
from codegen.call.recorded_calls import note
from codegen.call.views import LABELS
from codegen.kernel import Kernel
from codegen.lru import LRUCache
from coordgraph import LaunchError
from coordgraph.gemm import OFFSETS
from coordgraph.validation import flag
from passes.choosing import Plan

if TYPE_CHECKING:
    from codegen.call.stand_ins import StandIn

__all__ = ["first_launch", "launch_again", "launch_prepared", "repeated"]


def first_launch(
    prepared: LRUCache[Hashable, Prepared],
    key: Hashable,
    arrays: Mapping[str, Any],
    scalars: tuple[Any, float, Any],
    *,
    plan: Plan | str | None,
    tune: bool = False,
    background: bool | None = None,
    numbers: Mapping[str, Any] | None = None,
    **options: Any,
) -> Any:
    """Describe a call, choose a plan, build its kernel and launch it.

    Args:
        prepared: the cache to which the prepared launch is added, for later calls with the same
            key.
        key: the cache key of the call.
        arrays: the operands by the names of the graph's tensors.
        scalars: alpha, beta and the stream.
        plan: the caller's plan, or None.
        tune: whether to measure plans first, unless they were measured before.
        background: whether another loaded kernel may serve the call while the best one is compiled;
            None takes the setting of the process.
        numbers: further scalars of the epilogue, by name.
        options: arguments of `describe` other than `arrays` and `beta`, such as `transpose_a`.

    Raises:
        LaunchError, CodegenError: the call is refused, or no kernel can be built for it.
        PassError, ParseError, VerifyError: `plan` cannot be used.
    """
    alpha, beta, stream = scalars
    if type(alpha) is not float:
        number(alpha, "alpha")
    flag(tune, "tune", LaunchError)
    call = describe(arrays, beta=beta, **options)
    named = {"alpha": alpha, "beta": beta, **(numbers or {})}
    free = plan is None and not tune
    recorded = free and note(call.request.target, arrays, named, options)
    if tune:
        _check_tuned(call)
    a, b, c, out = (arrays[name] for name in "ABCD")
    operands = {LABELS.get(name, name): array for name, array in list(arrays.items())[4:]}
    operands |= numbers or {}
    serving: StandIn | None = None
    served: Prepared | None = None
    behind = setting.on if background is None else flag(background, "background", LaunchError)
    if behind and free:
        from codegen.call.stand_ins import stand_in

        serving = stand_in(call.request, call.views, named)

    def launch(plan: Plan, kernel: Kernel) -> Any:
        nonlocal served
        start: Launch = partial(kernel, workgroups=plan.workgroups)
        swap_a, swap_b = call.arrangement.transpose
        if call.arrangement.rearranges:
            start, swap_a, swap_b = partial(call.arrangement.launch, start), False, False
        entry = Prepared(start, swap_a, swap_b)
        if serving and serving.job:
            served = entry
        elif not recorded:  # a prepared call would not be recorded when it is repeated
            prepared.put(key, entry)
            again = partial(kernel.repeated, workgroups=plan.workgroups)
            rearranges = call.arrangement.rearranges
            entry.repeated = partial(call.arrangement.repeated, again) if rearranges else again
        left = library(a).transposed(a) if swap_a else a
        right = library(b).transposed(b) if swap_b else b
        return start(left, right, c, out, alpha, beta, stream, **operands)

    if tune and plan is None:
        from codegen.call.tuning import tune_plans

        tune_plans(call.request, call.views, stream)
        repeated_functions.clear()  # its entries launch plans chosen before tuning
    try:
        (d,) = try_plans(call.request, plan, launch, first=serving and serving.plan)
    # The second part of the error's message is left out: it advises callers of kernels to change
    # `Gemm(…)`, which callers of `matmul` do not use.
    except ArgumentMismatch as error:
        raise LaunchError(error.problem) from None
    if serving and serving.job and served:
        # A captured launch stays in its CUDA graph, so a better kernel would not be of use.
        if call.request.target != "cpu" and _is_captured(a, stream):
            return d
        from codegen.call.background_compiler import build_behind

        prepared.put(key, served)
        build_behind(serving.job, served)
    return d


def _check_tuned(call: Call) -> None:
    """Raise LaunchError if a call cannot have `tune=True`."""
    if call.request.invariant:
        raise LaunchError(
            "tune=True measures plans with other orders of additions, which invariant=True "
            "excludes; leave out tune or invariant"
        )
    function = call.request.gemm.epilogue
    if not function.stores_d:
        raise LaunchError(
            f"tune=True compares D between plans, but the epilogue {function.name} does not store "
            "it; leave out tune"
        )


def launch_prepared(prepared: Prepared, a: Any, b: Any, *arguments: Any, **operands: Any) -> Any:
    """Launch a prepared call, with A and B transposed where its kernel needs that.

    Args:
        prepared: the entry of the cache of prepared calls.
        a, b: A and B as the caller gave them.
        arguments: C, D, alpha, beta and the stream.
        operands: further operands by name.
    """
    left = library(a).transposed(a) if prepared.swap_a else a
    right = library(b).transposed(b) if prepared.swap_b else b
    return prepared.launch(left, right, *arguments, **operands)


def launch_again(prepared: Prepared, a: Any, b: Any, *arguments: Any, offsets: Any = None) -> Any:
    """Launch a prepared call with the default epilogue, and set `prepared.repeat` for later ones.

    Args:
        prepared: the entry of the cache of prepared calls.
        a, b: A and B as the caller gave them.
        arguments: C, D, alpha, beta and the stream.
        offsets: the offsets of groups, or None.
    """
    groups = {} if offsets is None else {OFFSETS: offsets}
    d = launch_prepared(prepared, a, b, *arguments, **groups)
    if prepared.repeated is not None:
        c, out, alpha, beta, _ = arguments
        prepared.repeat = repeated(prepared, a, b, c, out, alpha, beta, offsets=offsets)
        prepared.repeated = None
    return d


def repeated(
    prepared: Prepared,
    a: Any,
    b: Any,
    *arguments: Any,
    operands: Mapping[str, Any] = NO_OPERANDS,
    offsets: Any = None,
) -> Repeat | None:
    """A function that repeats a call of a prepared launch with less host time, or None.

    Args:
        prepared: the entry of the cache of prepared calls by which the call was launched.
        a, b: A and B as the caller gave them.
        arguments: C, D, alpha and beta.
        operands: further operands and tables of rows, by name.
        offsets: the offsets of groups, or None.
    """
    if prepared.repeated is None:
        return None
    left = library(a).transposed(a) if prepared.swap_a else a
    right = library(b).transposed(b) if prepared.swap_b else b
    return prepared.repeated(left, right, *arguments, operands=operands, offsets=offsets)


def _is_captured(a: Any, stream: Any) -> bool:
    """Whether a launch on this stream is captured in a CUDA graph."""
    from codegen.targets.nvptx.driver import is_capturing

    handle = library(a).current_stream(a) if stream is None else stream_handle(stream)
    return is_capturing(handle)
