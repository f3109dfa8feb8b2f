"""`matmul`: multiply matrices by the plan that suits them.

A model of what plans cost chooses one; nothing is measured unless `tune` asks for it. Which kernel
and grid a call needs follows from shapes, strides, types and device: for calls like one before, it
is a look-up.
"""

from __future__ import annotations

from collections.abc import Hashable
from functools import partial
from typing import Any

from codegen import preparing
from codegen.arrays import library
from codegen.batches import Batch, Flat, is_batch, within
from codegen.checks import Misfit, number
from codegen.preparing import (
    ALIGNED,
    Prepared,
    Seen,
    best,
    built,
    check_options,
    glance,
    kernel_of,
    kind_of,
    refuse,
    see,
    told,
)
from codegen.recent import Recent
from codegen.situation import Situation
from coordgraph import CodegenError, LaunchError
from passes.choosing import Plan

__all__ = ["Prepared", "Situation", "chosen", "forget", "matmul"]

MOST_CALLS = 4096
NEITHER = (False, False)
"""Of A and B is passed as its transpose."""

_calls = Recent[Hashable, Prepared](MOST_CALLS)


def matmul(
    a: Any,
    b: Any,
    c: Any = None,
    out: Any = None,
    alpha: float = 1.0,
    beta: float = 0.0,
    *,
    transpose_a: bool = False,
    transpose_b: bool = False,
    stream: Any = None,
    tune: bool = False,
    plan: Plan | str | None = None,
) -> Any:
    """`alpha·A·B + beta·C` by the plan that suits the problem and the device.

    The first call of a kind chooses a plan and compiles its kernel, unless one of before serves:
    kernels serve every size, and are kept on disk. Calls like one before go straight to it.

    Args:
        a, b: A (m x k) and B (k x n): GPU arrays, or numpy arrays for the CPU. Views that are the
            transpose of a row-major array are read where they lie. Extents may be 0. Or a batch of
            products: A is l x m x k, B l x k x n, D and C l x m x n; either of A and B may be a
            single matrix that serves all, also expanded, and views of transposes are those of each
            matrix (`b.mT`).
        c: C (m x n, or a batch), needed where beta is not zero.
        out: where D goes (m x n, or a batch); None for a new array of the kind and type of `a`.
        alpha, beta: scalars of the epilogue.
        transpose_a, transpose_b: the array holds the transpose: A as k x m, B as n x k; of a batch
            each matrix.
        stream: of the GPU; by default the one that the library of `a` works on.
        tune: measure the most promising plans and keep the best for calls to come, also of other
            processes; see `codegen.tuning`.
        plan: use this one, as `'128x256x64 data-parallel'`.

    Raises:
        LaunchError: an argument is not what it should be, or shapes, types or memory do not fit;
            nothing was launched.
        CodegenError: there is no GPU, or it does not multiply this type, or not by `plan`.
        PassError, ParseError, VerifyError: `plan` cannot be used.
    """
    beta = beta if type(beta) is float else number(beta, "beta")
    try:
        # What PyTorch's tensors have. Addresses count only as far as the copy engine takes them.
        key = (
            a.shape,
            b.shape,
            a.stride(),
            b.stride(),
            a.dtype,
            a.device,
            None if out is None else out.dtype,
            (a.data_ptr() | b.data_ptr()) & ALIGNED,
            beta == 0,
            transpose_a,
            transpose_b,
            plan,
        )
    except (AttributeError, RuntimeError):
        turns = transpose_a, transpose_b
        key = (*glance(a, "a"), *glance(b, "b"), kind_of(out), beta == 0, *turns, plan)
    try:
        found = None if tune else _calls.get(key)
    except (TypeError, ValueError):  # an option has no hash or no truth, so it is none
        found = None
    if found is None:
        number(alpha, "alpha")
        check_options(plan, transpose_a=transpose_a, transpose_b=transpose_b, tune=tune)
        found = _prepare(a, b, c, out, beta, transpose_a, transpose_b, stream, tune, plan)
        _calls.put(key, found)
    kernel, workgroups, turn_a, turn_b = found
    one = library(a).turned(a) if turn_a else a
    other = library(b).turned(b) if turn_b else b
    try:
        return kernel(one, other, c, out, alpha, beta, stream, workgroups=workgroups)
    except Misfit as error:  # the caller makes no other kernel
        raise LaunchError(error.plain) from None
    except CodegenError as error:  # the device does not take the code: it spills, for instance
        if plan is not None or isinstance(kernel, Flat):
            raise
        refuse(within(kernel), error)
    _calls.put(key, _prepare(a, b, c, out, beta, transpose_a, transpose_b, stream, False, None))
    return matmul(
        *(a, b, c, out, alpha, beta),
        transpose_a=transpose_a,
        transpose_b=transpose_b,
        stream=stream,
    )


def _prepare(
    a: Any,
    b: Any,
    c: Any,
    out: Any,
    beta: float,
    transpose_a: bool,
    transpose_b: bool,
    stream: Any,
    tune: bool,
    plan: Plan | str | None,
) -> Prepared:
    """Choose for a call of a new kind, and build the kernel."""
    options = {"transpose_a": transpose_a, "transpose_b": transpose_b}
    if not is_batch(a, b):
        return _settled(see(_named(a, b, c, out), beta, **options), stream, tune, plan)
    batch = Batch.of(a, b, **options)

    def apart(a: Any, b: Any, c: Any, out: Any, stream: Any, tune: bool) -> Prepared:
        arrays = _named(*batch.operands(a, b), c, out)
        seen = see(arrays, beta, **options, batched=True)
        return batch.arranged(_settled(seen, stream, tune, plan))

    if batch.is_one_product(a, b, transpose_a):
        multiply = partial(matmul, plan=plan, **options)
        told_plan = plan is not None
        return Prepared(Flat(batch, multiply, apart, tune, told_plan), None, *NEITHER)
    return apart(a, b, c, out, stream, tune)


def _named(a: Any, b: Any, c: Any, out: Any) -> dict[str, Any]:
    return {"A": a, "B": b, "C": c, "D": out}


def _settled(seen: Seen, stream: Any, tune: bool, plan: Plan | str | None) -> Prepared:
    """By the plan that is told, measured, or predicted to be the best."""
    if plan is not None:
        return told(plan, seen)
    if tune and not any(view.bytes == 0 for view in seen.views.values()):
        from codegen.tuning import tuned

        fastest = tuned(seen.situation, seen.views, stream, build=built)
        return Prepared(kernel_of(fastest, seen.situation), fastest.workgroups, *seen.turns)
    return best(seen)


def chosen(
    a: Any,
    b: Any,
    c: Any = None,
    out: Any = None,
    beta: float = 0.0,
    *,
    transpose_a: bool = False,
    transpose_b: bool = False,
) -> Plan:
    """The plan that `matmul` takes for such a call where none is told; its kernel is built.

    What only a launch finds, as a `c` that is missing, is not looked for.

    Raises:
        LaunchError, CodegenError: as `matmul`, of what decides the plan.
    """
    options = {"transpose_a": transpose_a, "transpose_b": transpose_b}
    if not is_batch(a, b):
        seen = see(_named(a, b, c, out), beta, **options)
        return next(built(seen.situation))[0]
    batch = Batch.of(a, b, **options)
    one = batch.joined(a, b, c, out) if batch.is_one_product(a, b, transpose_a) else None
    if one is not None:
        return chosen(*one, beta, **options)
    seen = see(_named(*batch.operands(a, b), c, out), beta, **options, batched=True)
    return next(built(seen.situation))[0]


def forget() -> None:
    """Forget every plan and kernel of this process."""
    global _calls
    _calls = Recent[Hashable, Prepared](MOST_CALLS)
    preparing.forget()
