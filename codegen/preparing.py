"""Preparing a call of a new kind: look at its arrays, choose a plan, and build its kernel.

`matmul` and `grouped_matmul` keep what comes of it by what their arrays look like; kernels are kept
here, for both.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from codegen.arrays import library
from codegen.checks import (
    LABELS,
    TensorView,
    numpy_view,
    numpy_views,
    problem_parameters,
    product_sizes,
)
from codegen.kernel import Kernel
from codegen.situation import Situation, check_grid, compile_plan
from coordgraph import CodegenError, CoordGraphError, Gemm, LaunchError, VerifyError
from coordgraph.gemm import OFFSETS
from coordgraph.given import flag
from coordgraph.tensors import DTYPES
from passes.choosing import Plan

__all__ = [
    "ALIGNED",
    "Prepared",
    "Seen",
    "best",
    "built",
    "check_options",
    "forget",
    "glance",
    "kernel_of",
    "kind_of",
    "refuse",
    "see",
    "told",
]

ALIGNED = 15
"""The low bits of an address that the copy engine wants to be 0."""
MOST_ATTEMPTS = 24
"""Plans to try until one can be built."""


class Prepared(NamedTuple):
    """What a call like one before needs."""

    kernel: Callable[..., Any]
    workgroups: int | None
    turn_a: bool
    turn_b: bool
    """Pass the array's transpose, which is row-major."""


@dataclass(frozen=True)
class Seen:
    """What the arrays of a call are.

    Args:
        views: the arrays; A and B row-major.
        situation: what decides on the plan.
        turns: whether A and B are the transposes of what the caller gave.
    """

    views: Mapping[str, TensorView]
    situation: Situation
    turns: tuple[bool, bool]


_kernels: dict[tuple[str, Gemm, str, bool, bool], Kernel | CoordGraphError] = {}
_lock = threading.RLock()


def glance(array: Any, what: str) -> tuple[Hashable, ...]:
    """What of an array decides the plan, for libraries other than PyTorch."""
    home = library(array)
    if home.on_host:
        view = numpy_view(array, what)
        return (view.shape, view.strides, view.dtype)
    view = home.view(array, what)
    return (view.shape, view.strides, view.dtype, view.device, view.pointer & ALIGNED)


def kind_of(out: Any) -> Hashable:
    """The type of an output that may be None."""
    return None if out is None else str(getattr(out, "dtype", None))


def check_options(plan: Any, **flags: Any) -> None:
    """LaunchError where one is of another kind than `matmul` says."""
    for name, value in flags.items():
        flag(value, name, LaunchError)
    if plan is not None and not isinstance(plan, Plan | str):
        raise LaunchError(
            f"plan = {plan!r} is neither a Plan nor the text of one, such as "
            "'128x256x64 data-parallel'; coordgraph explain prints those that suit a problem"
        )


def best(seen: Seen) -> Prepared:
    """By the plan that is predicted, or was measured, to be the best."""
    for plan, kernel in built(seen.situation):
        return Prepared(kernel, plan.workgroups, *seen.turns)
    raise CodegenError(f"no plan can be built for {seen.situation.target}")


def told(plan: Plan | str, seen: Seen) -> Prepared:
    """By the plan that the caller wants."""
    plan = Plan.parse(plan) if isinstance(plan, str) else plan
    return Prepared(kernel_of(plan, seen.situation), plan.workgroups, *seen.turns)


def see(
    arrays: Mapping[str, Any],
    beta: float,
    transpose_a: bool,
    transpose_b: bool,
    **kind: Any,
) -> Seen:
    """Look at the arrays of a call.

    Args:
        arrays: by the names of tensors and tables; None where there is none.
        beta: of the epilogue.
        transpose_a, transpose_b: the array holds the transpose.
        kind: of the product, as `Gemm` takes it: `batched=True`, or `grouped=True` and the axis.

    Raises:
        LaunchError: one is no array or holds no floating-point numbers, or A and B do not fit
            each other.
    """
    views = _views(arrays)
    _check_types(views)
    a, b = (views[name].shape for name in "AB")
    if min(len(a), len(b)) >= 2:
        product_sizes(a, b, transpose_a, transpose_b)  # before they are turned
    turn_a, turn_b = turns = _is_turned(views["A"]), _is_turned(views["B"])
    for name, turn in zip("AB", turns, strict=True):
        if turn:
            views[name] = _transposed(views[name])
    if kind.get("group_axis") == "m" and transpose_a != turn_a:
        raise LaunchError(
            "groups are rows of a, so a must be row-major: pass a contiguous copy, no transpose"
        )
    a, given = views["A"], views.get("D")
    gemm = Gemm(
        a.dtype,
        a.dtype if given is None else given.dtype,
        transpose_a=transpose_a != turn_a,
        transpose_b=transpose_b != turn_b,
        **kind,
    )
    return Seen(views, _situation(gemm, views, beta=beta), turns)


def _views(arrays: Mapping[str, Any]) -> dict[str, TensorView]:
    if library(arrays["A"]).on_host:
        return numpy_views(*(arrays.get(name) for name in (*"ABCD", OFFSETS)))
    return {
        name: library(array).view(array, LABELS[name])
        for name, array in arrays.items()
        if array is not None
    }


def _check_types(views: Mapping[str, TensorView]) -> None:
    for name in "ABCD":
        if name in views and views[name].dtype == "i32":
            *known, last = (kind for kind in DTYPES if kind != "i32")
            raise LaunchError(
                f"{LABELS[name]} holds i32; matrices hold {', '.join(known)} or {last}: convert it"
            )


def _is_turned(view: TensorView) -> bool:
    """True for transposes of row-major matrices that are none themselves."""
    axes = len(view.shape)
    if axes == 3:
        return _is_turned(view.first)
    return axes == 2 and not view.contiguous and _transposed(view).contiguous


def _transposed(view: TensorView) -> TensorView:
    """Each matrix turned."""
    return library(view).turned(view)


def _situation(gemm: Gemm, views: Mapping[str, TensorView], *, beta: float) -> Situation:
    """Raises LaunchError: A and B do not fit each other, or are too large.

    An extent of 0 counts as 1: any plan will do.
    """
    a = views["A"]
    sizes = problem_parameters(gemm.graph(), views, beta=beta)
    try:
        problem = replace(gemm, **{axis: max(sizes[axis], 1) for axis in "mnk"})
    except VerifyError as error:  # an extent is over what kernels count
        raise LaunchError(str(error).removeprefix("Gemm: ")) from error
    batches = max(sizes.get("batches", sizes.get("groups", 1)), 1)
    if a.device is None:
        return Situation(problem, "cpu", reads_c=beta != 0, batches=batches)
    from codegen.nvptx.driver import device
    from codegen.nvptx.tensormaps import copy_engine_takes

    where = device(int(a.device))
    boxes = all(copy_engine_takes(views[name]) for name in "AB")
    return Situation(
        problem,
        where.architecture,
        where.name,
        where.processors,
        where.ordinal,
        boxes,
        reads_c=beta != 0,
        batches=batches,
    )


def built(situation: Situation) -> Iterator[tuple[Plan, Kernel]]:
    """Plans that can be built, the best first."""
    from codegen import tuning

    refused: CoordGraphError | None = None
    for attempt, plan in enumerate(tuning.preferred(situation)):
        try:
            yield plan, kernel_of(plan, situation)
        except CodegenError as error:  # it spills, or is not for this device
            refused = error
            if attempt >= MOST_ATTEMPTS:
                break
    if refused is not None:
        raise refused


def kernel_of(plan: Plan, situation: Situation) -> Kernel:
    """The kernel of a plan. One that was refused once is refused again at once.

    Plans that differ in the grid alone share it, so the grid is looked at each time.
    """
    key = plan.kernel, situation.any_size, situation.target, situation.boxes, situation.reads_c
    with _lock:
        if key not in _kernels:
            try:
                _kernels[key] = compile_plan(
                    plan,
                    situation.any_size,
                    situation.target,
                    boxes=situation.boxes,
                    reads_c=situation.reads_c,
                )
            except CoordGraphError as error:
                _kernels[key] = error
        found = _kernels[key]
    if isinstance(found, CoordGraphError):
        raise found
    check_grid(plan, found.graph)
    return found


def refuse(kernel: Callable[..., Any], error: CodegenError) -> None:
    """Never choose a kernel again."""
    with _lock:
        _kernels.update({key: error for key, known in _kernels.items() if known is kernel})


def forget() -> None:
    """Forget every kernel of this process."""
    with _lock:
        _kernels.clear()
