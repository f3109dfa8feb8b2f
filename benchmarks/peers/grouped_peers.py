"""Contenders of the measure `groups`: cuBLAS, `torch._grouped_mm`, Triton, and our kernels."""

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
"""Names of contenders that are not ours."""
LIBRARY = "codegen.grouped_matmul"
Prepare = Callable[[GroupedProblem], Launch]
"""Returns launches for a problem; raises Unavailable or CoordGraphError where there are none."""


def cublas(problem: GroupedProblem) -> Launch:
    """One `torch.matmul` for each group that is not empty; D of empty groups along k is zeroed."""
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
    """PyTorch's grouped kernel, which reads where groups end on the device."""
    if problem.dtype != "bf16":
        raise Unavailable("torch._grouped_mm multiplies bf16 only")
    if problem.grouped_mm_operands(0) is None:
        raise Unavailable("torch._grouped_mm multiplies groups that share two of their extents")
    ends = problem.device_offsets[1:].contiguous()

    def launch(number: int) -> Any:
        operands = problem.grouped_mm_operands(number)
        assert operands is not None
        return problem.torch._grouped_mm(*operands, offs=ends)

    return launch


class TritonGroups:
    """A persistent Triton kernel, by the fastest of its configurations for each problem.

    Attributes:
        details: columns for the record, about the problem that was prepared last.
    """

    def __init__(self) -> None:
        try:
            import triton
        except ImportError as error:
            raise Unavailable(f"the package triton cannot be imported ({error})") from None
        self.version = triton.__version__
        self.details: dict[str, Any] = {}

    def __call__(self, problem: GroupedProblem) -> Launch:
        """Try every configuration on the problem.

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
    """`codegen.grouped_matmul`, which chooses a plan without measuring.

    Attributes:
        details: columns for the record, about the problem that was prepared last.
    """

    def __init__(self) -> None:
        self.details: dict[str, Any] = {}

    def __call__(self, problem: GroupedProblem) -> Launch:
        """Record the plan that is chosen for the problem, and launch it."""
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
    """Launches of a function of A, B, D and the groups' offsets on the device."""

    def launch(number: int) -> Any:
        a, b, out = problem.sets[number]
        run(a, b, out, problem.device_offsets)
        return out

    return launch


def plan_kernel(plan: Plan, kernel: Any) -> Prepare:
    """The kernel of a plan as a contender; `kernel` may be the error that building it raised."""

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
    """All contenders that this machine has, by name: peers, `grouped_matmul`, and given kernels.

    Args:
        plans: plans of ours, each with its kernel or the error that building it raised.
        report_missing: called with a sentence about each peer that is not installed.
        axis: the extent that groups divide, a key of `AXES`.
    """
    import torch

    found: dict[str, Prepare] = {CUBLAS: cublas}
    if hasattr(torch, "_grouped_mm"):
        found[GROUPED_MM] = grouped_mm
    else:
        report_missing(f"without {GROUPED_MM}: PyTorch {torch.__version__} has none")
    try:
        if axis != "k":
            found[TRITON] = TritonGroups()
    except Unavailable as error:
        report_missing(f"without {TRITON}: {error}")
    if axis != "mnk":
        found[LIBRARY] = Library()
    return found | {str(plan): plan_kernel(plan, kernel) for plan, kernel in plans}
