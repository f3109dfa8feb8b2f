"""`matmul` and `grouped_matmul`: multiply arrays with an automatically chosen plan.

A cost model chooses the plan; nothing is measured unless `tune` is set. The kernel and grid of a
call follow from its cache key: shapes, strides, types and device. A call with the key of an earlier
call needs only a look-up and a launch.
"""

from __future__ import annotations

from collections.abc import Hashable
from functools import partial
from typing import Any

from codegen.call import build
from codegen.call.broadcasting import MATRICES, MATRIX, Broadcast
from codegen.call.checks import ArgumentMismatch, number
from codegen.call.describe import ALIGNED, array_key, check_offsets, describe
from codegen.call.gradients import differentiable_matmul, recorded, refuse_gradients
from codegen.call.launch import first_launch, launch_again
from codegen.call.prepared_calls import forget_prepared
from codegen.call.prepared_calls import prepared_calls as _prepared
from codegen.call.with_epilogue import launch_with_epilogue
from coordgraph import CodegenError
from coordgraph.epilogue import ALPHA_BETA, EpilogueFunction
from coordgraph.gemm import OFFSETS, PARTS, ROWS, TARGETS
from passes.choosing import Plan

__all__ = ["chosen", "forget", "grouped_matmul", "matmul"]


def matmul(
    a: Any,
    b: Any,
    c: Any = None,
    out: Any = None,
    alpha: float = 1.0,
    beta: float | None = None,
    *,
    transpose_a: bool = False,
    transpose_b: bool = False,
    stream: Any = None,
    tune: bool = False,
    plan: Plan | str | None = None,
    invariant: bool = False,
    background: bool | None = None,
    epilogue: EpilogueFunction | None = None,
    rows: Any = None,
    targets: Any = None,
    parts: str = PARTS[0],
    **operands: Any,
) -> Any:
    """Compute `alpha·A·B + beta·C`, or another epilogue of A·B, with a plan chosen by a cost model.

    The first call with new shapes, types or strides chooses a plan, and compiles its kernel unless
    that is cached. Kernels take every size, and are cached on disk. Later calls only launch.

    If a PyTorch tensor requires a gradient, the operators of `codegen.torch` compute the result,
    and it has a gradient too. Those operators have
    no arguments `out`, `stream`, `tune`, `plan`, `background` and `epilogue`, so such a call with
    one of these arguments is refused. Under `torch.no_grad()` no gradient is recorded, and all
    arguments may be passed.

    Args:
        a, b: A (m x k) and B (k x n): GPU arrays, or numpy arrays for the CPU; codegen.torch.matmul
            takes PyTorch tensors on the CPU. Row-major and column-major views are read in place,
            without a copy, also if their rows (columns) have gaps between them; the elements of a
            row (column) must be adjacent. Extents may be 0. For a batch of products A is l x m x k,
            B is l x k x n, D and C are l x m x n, with any stride between matrices. Either A or B
            may be a single matrix, also expanded, which is used in all products. Vectors and
            further batch axes are multiplied as by `numpy.matmul`. If there are several batch axes,
            and an operand is repeated along some of them but not along all, it is copied.
        c: C, with the shape of D and any layout that A may have. It is needed if beta is not 0, and
            not read if beta is 0.
        out: the array to write D to (m x n, or a batch), of any layout that A may have in which no
            elements share an address; None makes a new array like `a`. Gaps are not written.
        alpha, beta: the factors of A·B and of C. Both are 1 by default, but beta is 0 without
            C, or if an epilogue is given.
        transpose_a, transpose_b: whether the array holds the transpose: A as k x m, B as n x k; in
            a batch, the transpose of each matrix.
        stream: the CUDA stream; by default the current stream of the library of `a`.
        tune: whether to measure some plans, use the fastest, and keep the times for later calls,
            also of other processes; see `codegen.call.tuning`.
        plan: the plan to use, such as `'128x256x64 data-parallel'`; None chooses one.
        invariant: whether the bits of a row of D must not depend on m, on the other rows, or on the
            plan (batch invariance). All plans for these n, k, types and layouts then add along k in
            one order; see `passes.choosing.summation_order`. Excludes `tune`.
        background: whether a missing kernel may be built in the background; the best loaded kernel
            that can compute the product serves the call meanwhile. The last bits of a result may
            change when the new kernel is used. None takes the setting of the process, which
            `codegen.background_builds` changes.
        epilogue: the function that computes D from `A·B`, traced by `coordgraph.epilogue.epilogue`;
            None is `alpha·A·B + beta·C`. Other epilogues take c, alpha and beta only if they have
            parameters of these names. If it has s > 1 sums, as `def swiglu(gate, up)`, B has s·n
            columns and D has n, or b is a tuple of s matrices of n columns and equal strides.
        rows, targets: i32 vectors of m entries on the device of A, by which rows are gathered and
            scattered: row i of the product is row `rows[i]` of A, and is written to row
            `targets[i]` of `out`, which must be given. A then has any number of rows. Entries must
            be numbers of rows of A and of `out`, and entries of `targets` must be distinct: other
            entries are refused on the CPU, but kernels on GPUs do not check them. Rows of `out`
            that are no target keep their values. Only for single products and groups of rows;
            excludes `tune`.
        parts: where B has the n columns of each sum if the epilogue has several: one sum's after
            another's (`stacked`), alternating (`interleaved`), or alternating in blocks of w
            columns (`interleaved:w`); see `coordgraph.Gemm`. Leave it out if b is a tuple.
        operands: operands of the epilogue by name: arrays, and numbers for its scalars. An array
            with the name of one of its outputs besides D receives this output.

    Returns:
        D. If the epilogue has outputs besides D, a tuple: D, then these outputs in the order of
        their declaration. Arrays are made for outputs that the call does not pass. An output that
        reduces rows has one element for each row of D; an output that reduces all of D has no axes.
        If the epilogue does not store D, None takes its place.

    Raises:
        LaunchError: an argument has a wrong type or value, or shapes, element types or memory do
            not fit; nothing was launched.
        CodegenError: there is no GPU, or it cannot multiply this type, or cannot use `plan`.
        PassError, ParseError, VerifyError: `plan` cannot be used.
    """
    left_out = 1.0 if c is not None and epilogue is None else 0.0
    beta = left_out if beta is None else beta if type(beta) is float else number(beta, "beta")
    tabled = b.__class__ is tuple or parts != PARTS[0] or rows is not None or targets is not None
    if epilogue is not None or operands or tabled:
        return launch_with_epilogue(
            {"A": a, "B": b, "C": c, "D": out},
            (alpha, beta, stream),
            epilogue or ALPHA_BETA,
            operands,
            tables={ROWS: rows, TARGETS: targets},
            plan=plan,
            tune=tune,
            invariant=invariant,
            background=background,
            transpose_a=transpose_a,
            transpose_b=transpose_b,
            parts=parts,
        )
    gradient = False
    try:
        # The cache key is made of attributes that PyTorch's tensors have. Of an address only the
        # alignment is in the key, because TMA depends on it. The strides of C and D are in the key
        # if they have gaps or are column-major, because this decides how arrays are rearranged.
        key: Hashable = (
            a.shape,
            b.shape,
            a.stride(),
            b.stride(),
            a.dtype,
            a.device,
            None if out is None else out.dtype,
            None if c is None else c.is_contiguous() or c.stride(),
            out is None or out.is_contiguous() or out.stride(),
            (a.data_ptr() | b.data_ptr()) & ALIGNED,
            beta == 0,
            transpose_a,
            transpose_b,
            plan,
            invariant,
        )
        gradient = a.requires_grad or b.requires_grad or (c is not None and c.requires_grad)
    except (AttributeError, RuntimeError):
        arrays = array_key({"a": a, "b": b}, c, out)
        key = (arrays, beta == 0, transpose_a, transpose_b, plan, invariant)
    if background is not None:
        key = (key, background)
    if gradient and recorded():
        given: Any = {"transpose_a": transpose_a, "transpose_b": transpose_b}
        given |= {"invariant": invariant, "stream": stream, "tune": tune, "plan": plan}
        given |= {"out": out, "background": background}
        d = differentiable_matmul(a, b, c, alpha, beta, **given)
        if d is not None:
            return d
    try:
        prepared = None if tune else _prepared.get(key)
    except (TypeError, ValueError):  # an option is unhashable; `first_launch` reports that
        prepared = None
    try:
        if prepared is not None:
            if prepared.repeat is not None:
                d = prepared.repeat(a, b, c, out, alpha, beta, stream)
                if d is not None:
                    return d
            return launch_again(prepared, a, b, c, out, alpha, beta, stream)
    except (ArgumentMismatch, CodegenError):
        pass  # this launch was refused; `first_launch` reports why, or tries the next plan
    options: Any = {"stream": stream, "tune": tune, "plan": plan, "background": background}
    options |= {"invariant": invariant, "transpose_a": transpose_a, "transpose_b": transpose_b}
    return _first(key, a, b, c, out, alpha, beta, options)


def _first(
    key: Hashable, a: Any, b: Any, c: Any, out: Any, alpha: Any, beta: float, options: Any
) -> Any:
    """A call of `matmul` without an epilogue that no earlier launch serves.

    Args:
        key: the cache key of the call.
        a, b, c, out, alpha, beta: the arguments of `matmul` with these names.
        options: the keyword arguments of `matmul`, by name.
    """
    axes = len(a.shape), len(b.shape)
    if 0 < min(axes) < MATRIX or max(axes) > MATRICES:
        transposes = {name: options[name] for name in ("transpose_a", "transpose_b")}
        broadcast = Broadcast.of(tuple(a.shape), tuple(b.shape), **transposes)
        return broadcast.launch(partial(matmul, **options), a, b, c, out, alpha, beta)
    scalars = alpha, beta, options.pop("stream")
    return first_launch(_prepared, key, {"A": a, "B": b, "C": c, "D": out}, scalars, **options)


def grouped_matmul(
    a: Any,
    b: Any,
    offsets: Any,
    *,
    group_axis: str = "m",
    c: Any = None,
    out: Any = None,
    alpha: float = 1.0,
    beta: float | None = None,
    transpose_a: bool = False,
    transpose_b: bool = False,
    stream: Any = None,
    plan: Plan | str | None = None,
    invariant: bool = False,
    background: bool | None = None,
    epilogue: EpilogueFunction | None = None,
    rows: Any = None,
    targets: Any = None,
    parts: str = PARTS[0],
    **operands: Any,
) -> Any:
    """`alpha·A·B + beta·C` of every group by one kernel, whose plan suits groups of average size.

    `offsets` is data on the device that the host never reads. So a call with other offsets, for the
    same number of groups, neither compiles nor chooses a plan, and a CUDA graph may be replayed
    after the offsets were changed. Groups may be empty, and of any size. The result has no gradient
    for PyTorch.

    Args:
        a, b: with `group_axis="m"` A (m x k, the rows of all groups) and B (groups x k x n); with
            `"k"` A (m x k, the columns of all groups) and B (k x n, the rows of all groups). GPU
            arrays, or numpy arrays for the CPU. Column-major views, gaps between rows and between
            matrices of B are read in place as by `matmul`. B may be one expanded matrix.
        offsets: i32 (groups + 1), on the device of A and B: the start of each group along the axis,
            and the end of the last one. Entries must not decrease; the last is at most m (or k).
        group_axis: the axis that is divided into groups: `"m"` or `"k"`.
        c: C, of the shape of D. It is not read if beta is 0.
        out: the row-major array to write D to: m x n, or groups x m x n with `"k"`; None makes a
            new array. Gaps between rows, and rows of no group, are not written, so in a new array
            they are uninitialized. A group with k = 0 gives zeros, or `beta·C`.
        alpha, beta: the factors of A·B and of C, with defaults as for `matmul`.
        transpose_a, transpose_b: whether the array holds the transpose: A as k x m, B as n x k, for
            each group. With `"m"` only B can be transposed. With `"k"` A should be transposed and B
            should not: GPUs read other layouts slowly.
        stream: the CUDA stream; by default the current stream of the library of `a`.
        plan: the plan to use, such as `'128x256x64 data-parallel{persistent=true}'`.
        invariant: whether the bits of a row of D must not depend on m or other rows; only with
            `"m"`. Sums are then one segment of k, so bits may differ from those of `matmul`.
        background: whether a loaded kernel may serve while a better one is built, as in `matmul`.
        rows, targets: i32 vectors by which rows of all groups are gathered from A and scattered to
            `out`, as in `matmul`; only with `"m"`.
        epilogue, parts, operands: the function that computes D, the order of B's columns if it has
            several sums, its operands; see `matmul`. An operand's coordinate `l` is the group.

    Returns:
        D, or a tuple of D and the epilogue's other outputs, as for `matmul`.

    Raises:
        LaunchError: an argument has a wrong type or value, or shapes, element types or memory do
            not fit; nothing was launched. No plans are known for `group_axis="mnk"`.
        CodegenError: there is no GPU, or it cannot multiply this type, or cannot use `plan`.
        PassError, ParseError, VerifyError: `plan` cannot be used.
    """
    left_out = 1.0 if c is not None and epilogue is None else 0.0
    beta = left_out if beta is None else beta if type(beta) is float else number(beta, "beta")
    tabled = b.__class__ is tuple or parts != PARTS[0] or rows is not None or targets is not None
    if epilogue is not None or operands or tabled:
        check_offsets(offsets)
        return launch_with_epilogue(
            {"A": a, "B": b, "C": c, "D": out},
            (alpha, beta, stream),
            epilogue or ALPHA_BETA,
            operands,
            tables={ROWS: rows, TARGETS: targets},
            offsets=offsets,
            plan=plan,
            invariant=invariant,
            background=background,
            transpose_a=transpose_a,
            transpose_b=transpose_b,
            grouped=True,
            group_axis=group_axis,
            parts=parts,
        )
    transposes, gradient = (transpose_a, transpose_b), False
    try:
        key: Hashable = (
            "groups",
            *(a.shape, b.shape, a.stride(), b.stride(), a.dtype, a.device),
            None if out is None else out.dtype,
            None if c is None else c.is_contiguous() or c.stride(),
            out is None or out.is_contiguous() or out.stride(),
            (a.data_ptr() | b.data_ptr()) & ALIGNED,
            *(offsets.shape, group_axis, beta == 0, *transposes, plan, invariant),
        )
        gradient = a.requires_grad or b.requires_grad or (c is not None and c.requires_grad)
    except (AttributeError, RuntimeError):
        check_offsets(offsets)
        arrays = array_key({"a": a, "b": b, OFFSETS: offsets}, c, out)
        key = ("groups", arrays, group_axis, beta == 0, *transposes, plan, invariant)
    if background is not None:
        key = (key, background)
    if gradient:
        differentiable = ", or use codegen.torch.grouped_mm, whose result has a gradient"
        refuse_gradients({"a": a, "b": b, "c": c}, "grouped_matmul", differentiable)
    try:
        prepared = _prepared.get(key)
    except (TypeError, ValueError):  # an option is unhashable; `first_launch` reports that
        prepared = None
    try:
        if prepared is not None:
            if prepared.repeat is not None:
                d = prepared.repeat(a, b, c, out, alpha, beta, stream, offsets=offsets)
                if d is not None:
                    return d
            return launch_again(prepared, a, b, c, out, alpha, beta, stream, offsets=offsets)
    except (ArgumentMismatch, CodegenError):
        pass  # this launch was refused; `first_launch` reports why, or tries the next plan
    return first_launch(
        _prepared,
        key,
        {"A": a, "B": b, "C": c, "D": out, OFFSETS: offsets},
        (alpha, beta, stream),
        plan=plan,
        invariant=invariant,
        background=background,
        transpose_a=transpose_a,
        transpose_b=transpose_b,
        grouped=True,
        group_axis=group_axis,
    )


def chosen(
    a: Any,
    b: Any,
    c: Any = None,
    out: Any = None,
    beta: float = 0.0,
    *,
    offsets: Any = None,
    group_axis: str = "m",
    transpose_a: bool = False,
    transpose_b: bool = False,
    invariant: bool = False,
) -> Plan:
    """The plan that `matmul` chooses for a call; with `offsets`, that of `grouped_matmul`.

    The plan's kernel is built but not launched, so errors that only a launch finds, such as a
    missing `c`, are not reported.

    Raises:
        LaunchError, CodegenError: an argument that decides the plan is refused, as by `matmul`.
    """
    arrays: dict[str, Any] = {"A": a, "B": b, "C": c, "D": out}
    groups: dict[str, Any] = {}
    if offsets is not None:
        arrays[OFFSETS], groups = offsets, {"grouped": True, "group_axis": group_axis}
    options: Any = {"transpose_a": transpose_a, "transpose_b": transpose_b, **groups}
    call = describe(arrays, beta=beta, invariant=invariant, **options)
    (plan,) = build.try_plans(call.request, None, lambda plan, _: plan)
    return plan


def forget() -> None:
    """Drop every cached call and every cached kernel of this process."""
    forget_prepared()
    build.forget()
