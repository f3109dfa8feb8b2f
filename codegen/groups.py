"""`grouped_matmul`: products of one launch of which an extent is data, by the plan that suits them.

The host never reads where groups begin. A plan is chosen for as many groups of equal size, and
serves whatever they are.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from codegen.arrays import library
from codegen.checks import NO_OFFSETS, Misfit, number
from codegen.preparing import (
    ALIGNED,
    Prepared,
    Seen,
    best,
    built,
    check_options,
    glance,
    kind_of,
    refuse,
    see,
    told,
)
from codegen.recent import Recent
from coordgraph import CodegenError, LaunchError
from coordgraph.gemm import GROUP_AXES, OFFSETS
from passes.choosing import Plan

__all__ = ["chosen", "forget", "grouped_matmul"]

MOST_CALLS = 1024
_AXES = tuple(axis for axis in GROUP_AXES if len(axis) == 1)

_calls = Recent[Hashable, Prepared](MOST_CALLS)


def grouped_matmul(
    a: Any,
    b: Any,
    offsets: Any,
    *,
    group_axis: str = "m",
    c: Any = None,
    out: Any = None,
    alpha: float = 1.0,
    beta: float = 0.0,
    transpose_a: bool = False,
    transpose_b: bool = False,
    stream: Any = None,
    plan: Plan | str | None = None,
) -> Any:
    """`alpha·A·B + beta·C` of every group by one kernel, whose plan suits groups of average size.

    Where groups begin is data on the device: calls with other `offsets` of as many groups compile
    and choose nothing, also replays of a CUDA graph. Groups may be empty, and of any sizes.

    Args:
        a, b: with `group_axis="m"` A (m x k, the rows of all groups) and B (groups x k x n); with
            `"k"` A (m x k, the columns of all groups) and B (k x n, their rows). GPU arrays, or
            numpy arrays for the CPU. Views of transposes of row-major matrices are read where they
            lie. Unlike those of a batch in `matmul`, the matrices of B must lie one after another:
            neither a single one expanded, nor with gaps between them.
        offsets: i32 (groups + 1), where A and B are: where each group begins along the axis, and
            where the last one ends. They must rise, and end at or before m, or k.
        group_axis: what groups part.
        c: C as D is, needed where beta is not zero.
        out: where D goes, m x n, or with `"k"` groups x m x n, without gaps; None for a new array.
            Rows of no group are not written, so in a new array they hold whatever was in memory, as
            those of `torch.empty`; a group without k makes zeros, or `beta·C`.
        alpha, beta: scalars of the epilogue.
        transpose_a, transpose_b: the array holds the transpose: A as k x m, B as n x k, for each
            group. Along m only B can be; along k A should be, and B should not: GPUs read other
            layouts slowly.
        stream: of the GPU; by default the one that the library of `a` works on.
        plan: use this one, as `'128x256x64 data-parallel{persistent=true}'`.

    Raises:
        LaunchError: an argument is not what it should be, or shapes, types or memory do not fit;
            nothing was launched. Lists of products (`"mnk"`) have no plans to choose from.
        CodegenError: there is no GPU, or it does not multiply this type, or not by `plan`.
        PassError, ParseError, VerifyError: `plan` cannot be used.
    """
    beta = beta if type(beta) is float else number(beta, "beta")
    turns = transpose_a, transpose_b
    try:
        key: Hashable = (
            *(a.shape, b.shape, a.stride(), b.stride(), a.dtype, a.device),
            None if out is None else out.dtype,
            (a.data_ptr() | b.data_ptr()) & ALIGNED,
            *(offsets.shape, group_axis, beta == 0, *turns, plan),
        )
    except (AttributeError, RuntimeError):
        shown = *glance(a, "a"), *glance(b, "b"), _glance(offsets)
        key = (*shown, kind_of(out), group_axis, beta == 0, *turns, plan)
    try:
        found = _calls.get(key)
    except (TypeError, ValueError):  # an option has no hash or no truth, so it is none
        found = None
    while True:
        if found is None:
            number(alpha, "alpha")
            check_options(plan, transpose_a=transpose_a, transpose_b=transpose_b)
            arrays = _named(a, b, c, out, offsets)
            found = _calls.put(key, _prepare(arrays, beta, turns, group_axis, plan))
        kernel, workgroups, turn_a, turn_b = found
        one = library(a).turned(a) if turn_a else a
        other = library(b).turned(b) if turn_b else b
        grid = {"workgroups": workgroups, "offsets": offsets}
        try:
            return kernel(one, other, c, out, alpha, beta, stream, **grid)
        except Misfit as error:  # the caller makes no other kernel
            raise LaunchError(error.plain) from None
        except CodegenError as error:  # the device does not take the code
            if plan is not None:
                raise
            refuse(kernel, error)
            found = None


def _glance(offsets: Any) -> Hashable:
    """What of `offsets` decides the plan.

    Raises:
        LaunchError: they are no array. What `numpy.asarray` makes of numbers would be i64.
    """
    if offsets is None:
        raise LaunchError(NO_OFFSETS)
    if isinstance(offsets, list | tuple | range):
        raise LaunchError(
            f"offsets: a {type(offsets).__name__} is no array; make one of i32 where a and b are: "
            "torch.tensor(offsets, dtype=torch.int32, device=a.device), or for the CPU "
            "numpy.array(offsets, numpy.int32)"
        )
    return glance(offsets, OFFSETS)


def _prepare(
    arrays: dict[str, Any],
    beta: float,
    turns: tuple[bool, bool],
    group_axis: str,
    plan: Plan | str | None,
) -> Prepared:
    """Choose for a call of a new kind, and build the kernel."""
    seen = _seen(arrays, beta, turns, group_axis)
    return best(seen) if plan is None else told(plan, seen)


def _named(a: Any, b: Any, c: Any, out: Any, offsets: Any) -> dict[str, Any]:
    return {"A": a, "B": b, "C": c, "D": out, OFFSETS: offsets}


def _seen(arrays: dict[str, Any], beta: float, turns: tuple[bool, bool], group_axis: str) -> Seen:
    if group_axis not in _AXES:
        lists = " Lists of products are compiled with a plan of one's choice: see docs/groups.md"
        raise LaunchError(
            f"group_axis = {group_axis!r} should be {' or '.join(map(repr, _AXES))}."
            + lists * (group_axis in GROUP_AXES)
        )
    return see(arrays, beta, *turns, grouped=True, group_axis=group_axis)


def chosen(
    a: Any,
    b: Any,
    offsets: Any,
    *,
    group_axis: str = "m",
    out: Any = None,
    transpose_a: bool = False,
    transpose_b: bool = False,
) -> Plan:
    """The plan that `grouped_matmul` takes for such a call where none is told; its kernel is built.

    Raises:
        LaunchError, CodegenError: as `grouped_matmul`.
    """
    seen = _seen(_named(a, b, None, out, offsets), 0.0, (transpose_a, transpose_b), group_axis)
    return next(built(seen.situation))[0]


def forget() -> None:
    """Forget every call of this process."""
    global _calls
    _calls = Recent[Hashable, Prepared](MOST_CALLS)
