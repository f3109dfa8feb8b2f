"""How a kernel is made of options: by --schedule and --tile, or by --plan, which says all of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import typer

from codegen.cli.options import DEFAULT_SCHEDULE, Problem, read_pipeline
from coordgraph import KernelGraph

if TYPE_CHECKING:
    from codegen.kernel import Kernel
    from passes.choosing import Plan

__all__ = ["Scheduled", "scheduled"]


@dataclass(frozen=True)
class Scheduled:
    """A scheduled graph, and how to compile it.

    Args:
        problem: its options.
        graph: what the passes made of it.
        plan: whose graph it is, or None.
    """

    problem: Problem
    graph: KernelGraph
    plan: Plan | None = None

    @property
    def grid(self) -> int | None:
        """The workgroups to launch, where the options say how many."""
        return None if self.plan is None else self.plan.workgroups

    @property
    def title(self) -> str:
        """The passes as text."""
        return ",".join(self.graph.log)

    def compile(self, target: str, *, reads_c: bool = False) -> Kernel:
        """The kernel for a target that is settled, with the cluster that a plan asks for."""
        if self.plan is None:
            from codegen import compile

            return compile(self.graph, target)
        from codegen.situation import check_grid, compile_plan, unaligned

        check_grid(self.plan, self.graph)
        p = self.problem
        sized = None not in (p.m, p.n, p.k)
        return compile_plan(
            self.plan,
            self.graph.gemm,
            target,
            boxes=not (sized and unaligned(p.gemm(fixed=True))),
            reads_c=reads_c,
        )


def scheduled(
    problem: Problem,
    target: str,
    *,
    fixed: bool,
    plan: str | None,
    schedule: str | None,
    workgroups: int | None,
    tile: Any,
) -> Scheduled:
    """What the options say.

    Raises:
        typer.BadParameter: they contradict each other.
        PassError, ParseError: the text of the plan or the schedule is malformed, or cannot be
            applied.
    """
    if plan is None:
        pipeline = read_pipeline(schedule or DEFAULT_SCHEDULE, workgroups)
        return Scheduled(problem, pipeline(problem.graph(tile, target, fixed=fixed)))
    given = {"--schedule": schedule, "--workgroups": workgroups, "--tile": tile}
    if others := [name for name, value in given.items() if value is not None]:
        raise typer.BadParameter(
            f"--plan says the tile, the schedule and the grid: leave out {', '.join(others)}"
        )
    from passes.choosing import Plan

    chosen = Plan.parse(plan)
    return Scheduled(problem, chosen.graph(problem.gemm(fixed=fixed)), chosen)
