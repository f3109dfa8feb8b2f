"""Contenders of `python -m benchmarks groups`: cuBLAS, PyTorch, Triton and coordgraph's kernels."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from benchmarks.peers.contender import CUBLAS, Unavailable
from benchmarks.peers.plans import Plan
from benchmarks.problems.grouped import GroupedProblem, Launch
from benchmarks.timing.sampler import quick_seconds
from codegen.call.matmul import chosen, grouped_matmul
from coordgraph import CoordGraphError

__all__ = ["PEERS", "Prepare", "cublas", "find_contenders", "grouped_mm", "plan_kernel"]

GROUPED_MM, TRITON = "torch._grouped_mm", "Triton"
PEERS = (CUBLAS, GROUPED_MM, TRITON)
"""Names of the contenders that are not kernels of coordgraph."""
LIBRARY = "codegen.grouped_matmul"
Prepare = Callable[[GroupedProblem], Launch]
"""A function from a grouped problem to a function that launches it.

A `Prepare` raises Unavailable or CoordGraphError if its contender cannot compute the problem."""


def cublas(problem: GroupedProblem) -> Launch:
    """Contender: one `torch.matmul` per non-empty group; D of groups with k = 0 is set to zero."""
    matmul, filled = problem.torch.matmul, {group for group, _ in problem.filled_groups()}
    empty = [g for g in range(len(problem.sizes)) if problem.axis == "k" and g not in filled]

    def launch(number: int) -> Any:
        out = problem.sets[number][2]
        for group, part in problem.filled_groups():
            matmul(*problem.operands(number, group, part), out=problem.product(out, group, part))
        for group in empty:
            out[group].zero_()
        return out

    return launch


def grouped_mm(problem: GroupedProblem) -> Launch:
    """Contender: `torch._grouped_mm`, one kernel that reads the groups' ends from device memory."""
    if problem.dtype != "bf16":
        raise Unavailable(
            f"torch._grouped_mm multiplies bf16 only, not {problem.dtype}; use --dtype bf16"
        )
    if problem.grouped_mm_operands(0) is None:
        raise Unavailable(
            "torch._grouped_mm needs groups that share two of their extents m, n and k, but "
            "products of a list share none; use --axis m or k"
        )
    ends = problem.device_offsets[1:].contiguous()

    def launch(number: int) -> Any:
        operands = problem.grouped_mm_operands(number)
        assert operands is not None
        return problem.torch._grouped_mm(*operands, offs=ends)

    return launch


class TritonGroups:
    """Contender: a persistent Triton kernel, with its fastest configuration for each problem.

    Attributes:
        details: columns for the record, about the problem that was prepared last.
    """

    def __init__(self) -> None:
        try:
            import triton
        except ImportError as error:
            raise Unavailable(
                f"the package triton cannot be imported ({error}); install triton"
            ) from None
        self.version = triton.__version__
        self.details: dict[str, Any] = {}

    def __call__(self, problem: GroupedProblem) -> Launch:
        """Time every configuration on the problem; return a function that launches the fastest.

        Raises:
            RuntimeError: a configuration gives a wrong result, which is a bug in the kernel.
            Unavailable: no configuration runs.
        """
        if problem.axis == "mnk":
            from benchmarks.peers.triton_lists import Product, configurations
        else:
            from benchmarks.peers.triton_groups import Product, configurations

        best: tuple[float, str, Launch] | None = None
        reasons: list[str] = []
        for config in configurations():
            launch = _launches(Product(config), problem)
            try:
                reason = problem.fault(lambda launch=launch: launch(0))
                seconds = quick_seconds(launch, len(problem.sets)) if reason is None else 0.0
            except Unavailable as error:
                reason, seconds = str(error), 0.0
            if reason is not None:
                reasons.append(f"{config}: {reason}")
            elif best is None or seconds < best[0]:
                best = seconds, str(config), launch
        if wrong := [reason for reason in reasons if "WRONG" in reason]:
            raise RuntimeError("; ".join(wrong))
        if best is None:
            raise Unavailable("no Triton configuration runs: " + "; ".join(reasons))
        self.details = {"configuration": best[1], "triton": self.version}
        return best[2]


class Library:
    """Contender: `codegen.grouped_matmul`, which chooses a plan by its cost model.

    Attributes:
        details: columns for the record, about the problem that was prepared last.
    """

    def __init__(self) -> None:
        self.details: dict[str, Any] = {}

    def __call__(self, problem: GroupedProblem) -> Launch:
        """Return a function that launches `problem`; the plan it uses is stored in `details`."""
        gemm = problem.gemm(problem.dtype)
        options = {
            "group_axis": gemm.group_axis,
            "transpose_a": gemm.transpose_a,
            "transpose_b": gemm.transpose_b,
        }
        a, b, out = problem.sets[0]
        self.details = {
            "plan": str(chosen(a, b, out=out, offsets=problem.device_offsets, **options))
        }

        def run(a: Any, b: Any, out: Any, offsets: Any) -> None:
            grouped_matmul(a, b, offsets, out=out, **options)

        return _launches(run, problem)


def _launches(run: Callable[[Any, Any, Any, Any], Any], problem: GroupedProblem) -> Launch:
    """A function that calls `run` with A, B and D of an operand set, and with the groups'
    offsets.
    """

    def launch(number: int) -> Any:
        a, b, out = problem.sets[number]
        run(a, b, out, problem.device_offsets)
        return out

    return launch


def plan_kernel(plan: Plan, kernel: Any) -> Prepare:
    """A contender that launches a plan's kernel.

    `kernel` may be the CoordGraphError that building it raised; then preparing raises it again.
    """

    def prepare(problem: GroupedProblem) -> Launch:
        if isinstance(kernel, CoordGraphError):
            raise kernel

        def run(a: Any, b: Any, out: Any, offsets: Any) -> None:
            kernel(a, b, out=out, offsets=offsets, workgroups=plan.workgroups)

        return _launches(run, problem)

    return prepare


def find_contenders(
    plans: Iterable[tuple[Plan, Any]], report_missing: Callable[[str], None], axis: str = "m"
) -> dict[str, Prepare]:
    """All contenders available on this machine, by name.

    Args:
        plans: plans of coordgraph's kernels, each with its kernel or the error of building it.
        report_missing: called with a sentence about each library that is not installed.
        axis: the extent that groups divide: `m` or `k`; `mnk` for products that share no extent.
    """
    import torch

    found: dict[str, Prepare] = {CUBLAS: cublas}
    if hasattr(torch, "_grouped_mm"):
        found[GROUPED_MM] = grouped_mm
    else:
        report_missing(f"without {GROUPED_MM}: PyTorch {torch.__version__} lacks it")
    try:
        if axis != "k":
            found[TRITON] = TritonGroups()
    except Unavailable as error:
        report_missing(f"without {TRITON}: {error}")
    if axis != "mnk":
        found[LIBRARY] = Library()
    return found | {str(plan): plan_kernel(plan, kernel) for plan, kernel in plans}
