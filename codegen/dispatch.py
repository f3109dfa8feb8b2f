"""`matmul`: multiply matrices by the plan that suits them.

A model of what plans cost chooses one; nothing is measured unless `tune` asks for it. Which kernel
and grid a call needs follows from shapes, strides, types and device: for calls like one before, it
is a look-up.
"""

from __future__ import annotations

import threading
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from codegen.arrays import library
from codegen.checks import LABELS, TensorView, number, numpy_view, numpy_views, problem_parameters
from codegen.kernel import Kernel
from codegen.recent import Recent
from codegen.situation import Situation, check_grid, compile_plan
from coordgraph import CodegenError, CoordGraphError, Gemm, LaunchError
from coordgraph.given import flag
from passes.choosing import Plan

__all__ = ["Prepared", "Situation", "chosen", "forget", "matmul"]

MOST_CALLS = 4096
ALIGNED = 15
"""The low bits of an address that the copy engine wants to be 0."""
MOST_ATTEMPTS = 24
"""Plans to try until one can be built."""


class Prepared(NamedTuple):
    """What a call like one before needs."""

    kernel: Kernel
    workgroups: int | None
    turn_a: bool
    turn_b: bool
    """Pass the array's transpose, which is row-major."""


_calls = Recent[Hashable, Prepared](MOST_CALLS)
_kernels: dict[tuple[str, Gemm, str, bool, bool], Kernel | CoordGraphError] = {}
_lock = threading.RLock()


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
            transpose of a row-major array are read where they lie. Extents may be 0.
        c: C (m x n), needed where beta is not zero.
        out: where D goes (m x n); None for a new array of the kind and type of `a`.
        alpha, beta: scalars of the epilogue.
        transpose_a, transpose_b: the array holds the transpose: A as k x m, B as n x k.
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
        key = (*_glance(a, "a"), *_glance(b, "b"), _kind(out), beta == 0, *turns, plan)
    try:
        found = None if tune else _calls.get(key)
    except (TypeError, ValueError):  # an option has no hash or no truth, so it is none
        found = None
    if found is None:
        number(alpha, "alpha")
        _check_options(transpose_a, transpose_b, tune, plan)
        found = _prepare(a, b, c, out, beta, transpose_a, transpose_b, stream, tune, plan)
        _calls.put(key, found)
    kernel, workgroups, turn_a, turn_b = found
    one, other = a.T if turn_a else a, b.T if turn_b else b
    try:
        return kernel(one, other, c, out, alpha, beta, stream, workgroups=workgroups)
    except CodegenError as error:  # the device does not take the code: it spills, for instance
        if plan is not None:
            raise
        _refuse(kernel, error)
    _calls.put(key, _prepare(a, b, c, out, beta, transpose_a, transpose_b, stream, False, None))
    return matmul(
        *(a, b, c, out, alpha, beta),
        transpose_a=transpose_a,
        transpose_b=transpose_b,
        stream=stream,
    )


def _glance(array: Any, what: str) -> tuple[Hashable, ...]:
    """What of an array decides the plan, for libraries other than PyTorch."""
    home = library(array)
    if home.on_host:
        view = numpy_view(array, what)
        return (view.shape, view.strides, view.dtype)
    view = home.view(array, what)
    return (view.shape, view.strides, view.dtype, view.device, view.pointer & ALIGNED)


def _kind(out: Any) -> Hashable:
    return None if out is None else str(getattr(out, "dtype", None))


def _check_options(transpose_a: Any, transpose_b: Any, tune: Any, plan: Any) -> None:
    """LaunchError where one is of another kind than `matmul` says."""
    for name, value in (("transpose_a", transpose_a), ("transpose_b", transpose_b), ("tune", tune)):
        flag(value, name, LaunchError)
    if plan is not None and not isinstance(plan, Plan | str):
        raise LaunchError(
            f"plan = {plan!r} is neither a Plan nor the text of one, such as "
            "'128x256x64 data-parallel'; coordgraph explain prints those that suit a problem"
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
    views, situation, turns = _seen(a, b, c, out, beta, transpose_a, transpose_b)
    if plan is not None:
        told = Plan.parse(plan) if isinstance(plan, str) else plan
        return Prepared(_kernel(told, situation), told.workgroups, *turns)
    if tune and not any(view.bytes == 0 for view in views.values()):
        from codegen.tuning import tuned

        best = tuned(situation, views, stream, build=_built)
        return Prepared(_kernel(best, situation), best.workgroups, *turns)
    for best, kernel in _built(situation):
        return Prepared(kernel, best.workgroups, *turns)
    raise CodegenError(f"no plan can be built for {situation.target}")


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

    Raises:
        LaunchError, CodegenError: as `matmul`.
    """
    _, situation, _ = _seen(a, b, c, out, beta, transpose_a, transpose_b)
    return next(_built(situation))[0]


def _seen(
    a: Any, b: Any, c: Any, out: Any, beta: float, transpose_a: bool, transpose_b: bool
) -> tuple[dict[str, TensorView], Situation, tuple[bool, bool]]:
    """The arrays, A and B row-major; what decides on the plan; whether A and B are transposes."""
    views = _views(a, b, c, out)
    turn_a, turn_b = turned = _is_turned(views["A"]), _is_turned(views["B"])
    for name, turn in zip("AB", turned, strict=True):
        if turn:
            views[name] = _transposed(views[name])
    situation = _situation(views, transpose_a != turn_a, transpose_b != turn_b, beta=beta)
    return views, situation, turned


def _views(a: Any, b: Any, c: Any, out: Any) -> dict[str, TensorView]:
    if library(a).on_host:
        return numpy_views(a, b, c, out)
    arrays = {"A": a, "B": b, "C": c, "D": out}
    return {
        name: library(array).view(array, LABELS[name])
        for name, array in arrays.items()
        if array is not None
    }


def _is_turned(view: TensorView) -> bool:
    """True for the transpose of a row-major matrix that is none itself."""
    return len(view.shape) == 2 and not view.contiguous and _transposed(view).contiguous


def _transposed(view: TensorView) -> TensorView:
    return replace(view, shape=view.shape[::-1], strides=view.strides[::-1])


def _situation(
    views: Mapping[str, TensorView], transpose_a: bool, transpose_b: bool, *, beta: float
) -> Situation:
    """Raises LaunchError: A and B do not fit each other.

    An extent of 0 counts as 1: any plan will do.
    """
    a = views["A"]
    out = views["D"].dtype if "D" in views else a.dtype
    gemm = Gemm(a.dtype, out, transpose_a=transpose_a, transpose_b=transpose_b)
    sizes = problem_parameters(gemm.graph(), views, beta=beta)
    problem = replace(gemm, **{axis: max(sizes[axis], 1) for axis in "mnk"})
    if a.device is None:
        return Situation(problem, "cpu", reads_c=beta != 0)
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
    )


def _built(situation: Situation) -> Iterator[tuple[Plan, Kernel]]:
    """Plans that can be built, the best first."""
    from codegen import tuning

    refused: CoordGraphError | None = None
    for attempt, plan in enumerate(tuning.preferred(situation)):
        try:
            yield plan, _kernel(plan, situation)
        except CodegenError as error:  # it spills, or is not for this device
            refused = error
            if attempt >= MOST_ATTEMPTS:
                break
    if refused is not None:
        raise refused


def _kernel(plan: Plan, situation: Situation) -> Kernel:
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


def _refuse(kernel: Kernel, error: CodegenError) -> None:
    """Never choose a kernel again."""
    with _lock:
        _kernels.update({key: error for key, known in _kernels.items() if known is kernel})


def forget() -> None:
    """Forget every plan and kernel of this process."""
    global _calls
    with _lock:
        _calls = Recent[Hashable, Prepared](MOST_CALLS)
        _kernels.clear()
