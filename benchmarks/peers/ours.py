"""Contenders of coordgraph: the kernel of a given plan, and `codegen.matmul`, which chooses one."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import Any

import codegen
from benchmarks.peers.contender import COORDGRAPH
from benchmarks.peers.plans import Plan
from benchmarks.problems.problem import Problem, Run, torch_dtype, transposed
from codegen.call.matmul import chosen
from coordgraph import CoordGraphError

__all__ = ["Library", "PlanKernel", "compile_choice"]


class PlanKernel:
    """Contender: the kernel of one plan (tile, cluster and schedule).

    Args:
        plan: the plan; its text is the contender's name.
        kernel: the loaded kernel, or the CoordGraphError that building it raised.
    """

    ours = True

    def __init__(self, plan: Plan, kernel: Any) -> None:
        self.plan, self.name, self.kernel = plan, str(plan), kernel
        self.details: dict[str, Any] = {}
        if not isinstance(kernel, CoordGraphError):
            self.details = {"registers": kernel.registers, "resident": kernel.resident}

    def prepare(self, problem: Problem) -> Run:
        """A function that launches the kernel with the grid of its plan."""
        if isinstance(self.kernel, CoordGraphError):
            raise self.kernel
        grid = self.plan.workgroups
        return lambda a, b, out: self.kernel(a, b, out=out, workgroups=grid)


class Library:
    """Contender: `codegen.matmul`, which chooses a plan for each problem.

    Args:
        tune: True to choose by measuring plans, False to choose by the cost model alone.
        invariant: True to add along k in one order for every m.
    """

    ours = True

    def __init__(self, *, tune: bool = False, invariant: bool = False) -> None:
        self.name = f"{COORDGRAPH} invariant" if invariant else COORDGRAPH
        self.tune, self.invariant = tune, invariant
        self.details: dict[str, Any] = {}

    def prepare(self, problem: Problem) -> Run:
        """Call `codegen.matmul` once to record its plan; return a function that calls it again."""
        transposes: dict[str, Any] = {
            "transpose_a": problem.transpose_a,
            "transpose_b": problem.transpose_b,
            "invariant": self.invariant,
        }
        a, b, out = problem.sets[0]
        start = time.perf_counter()
        codegen.matmul(a, b, out=out, tune=self.tune, **transposes)
        seconds = time.perf_counter() - start
        # `codegen.matmul` remembers the plan that tuning found, so later calls need no `tune`.
        plan = str(chosen(a, b, out=out, **transposes))
        self.details = {"plan": plan, "first_call_seconds": seconds, "tuned": self.tune}
        return lambda a, b, out: codegen.matmul(a, b, out=out, **transposes)


def compile_choice(size: tuple[int, int, int], layout: str, dtype: str) -> None:
    """Compile the kernel that `codegen.matmul` chooses for a problem into the cache on disk.

    The function runs in a worker process and ignores errors, which the main process raises again.
    """
    import torch

    (m, n, k), kind = size, torch_dtype(dtype)
    transpose_a, transpose_b = transposed(layout)
    a = torch.empty((k, m) if transpose_a else (m, k), dtype=kind, device="cuda")
    b = torch.empty((n, k) if transpose_b else (k, n), dtype=kind, device="cuda")
    with suppress(CoordGraphError):
        codegen.matmul(a, b, transpose_a=transpose_a, transpose_b=transpose_b)
