"""Makes a scheduled graph from the options --schedule, --tile and --workgroups, or from --plan."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import typer

from codegen.cli.errors import Unavailable
from codegen.cli.names import registered_passes
from codegen.cli.options import (
    DEFAULT_SCHEDULE,
    Problem,
    Scheduling,
    read_pipeline,
)
from codegen.cli.stages import read_graph
from coordgraph import Gemm, KernelGraph, PassError
from coordgraph.elements import dtype
from passes.lowering.architectures import ALIGNED_BYTES

if TYPE_CHECKING:
    from codegen.kernel import Kernel
    from codegen.targets.nvptx.driver import Device
    from passes.choosing import Plan

__all__ = ["Scheduled", "from_file", "from_graph", "scheduled"]

AUTO = "auto"
"""The value of --plan that means the plan which `codegen.matmul` chooses."""


@dataclass(frozen=True)
class Scheduled:
    """A scheduled graph and the options that it was made from.

    Args:
        problem: the options of the problem.
        graph: the scheduled graph.
        plan: the plan that made the graph, or None.
    """

    problem: Problem
    graph: KernelGraph
    plan: Plan | None = None

    @property
    def grid(self) -> int | None:
        """The number of workgroups that the plan sets; None if it sets none, or without a plan."""
        return None if self.plan is None else self.plan.workgroups

    @property
    def title(self) -> str:
        """The applied passes as pipeline text."""
        return ",".join(self.graph.log)

    @property
    def alignment(self) -> int:
        """The alignment of A and B in bytes: 16, or 1 if a row's bytes are no multiple of 16."""
        from codegen.call.request import unaligned

        p = self.problem
        sized = None not in (p.m, p.n, p.k)
        return 1 if sized and unaligned(_sized(p)) else ALIGNED_BYTES

    def compile(
        self,
        target: str,
        *,
        reads_c: bool = False,
        instructions: str | None = None,
        timeline: bool = False,
    ) -> Kernel:
        """Compile the graph to a kernel, with the cluster shape of the plan if there is a plan.

        Args:
            target: the name of a target, such as `cpu` or `sm_90a`, but not `native`.
            reads_c: whether the kernel reads C and adds it.
            instructions: the matrix instructions that the kernel must use; None for any.
            timeline: whether the kernel records its timeline.
        """
        if self.plan is None:
            from codegen import compile

            return compile(self.graph, target, instructions=instructions, timeline=timeline)
        from codegen.call.build import check_grid, compile_plan

        check_grid(self.plan, self.graph)
        return compile_plan(
            self.plan,
            Gemm.of(self.graph.gemm),
            target,
            alignment=self.alignment,
            reads_c=reads_c,
            instructions=instructions,
            timeline=timeline,
        )

    def instructions(self, kernel: Kernel, *, reads_c: bool = False) -> tuple[str, tuple[str, ...]]:
        """The matrix and copy instructions that the kernel uses for the problem's sizes; and notes.

        The second item of the result has, for each faster lowering, a sentence that says why the
        kernel does not use this lowering.

        Args:
            kernel: the compiled kernel.
            reads_c: whether C is added.
        """
        if not kernel.target.startswith("sm_"):
            return kernel.instruction_family, ()
        from codegen.targets.nvptx import CudaKernel

        if not isinstance(kernel, CudaKernel):
            return kernel.instruction_family, ()
        chosen = kernel.choice(self.alignment, reads_c=reads_c)
        return chosen.family, chosen.notes


def scheduled(
    problem: Problem, how: Scheduling, *, fixed: bool, reads_c: bool = False
) -> Scheduled:
    """Make the graph of a problem and schedule it as the options say.

    Args:
        problem: the options of the problem.
        how: the schedule or the plan, and the target, which is not `native`.
        fixed: whether the given sizes become constants of the graph, not launch arguments.
        reads_c: whether C is added; if so, `--plan auto` chooses a plan that has registers for C.

    Raises:
        typer.BadParameter: options contradict each other.
        PassError, ParseError: the text of the plan or the schedule is malformed or cannot be
            applied, or its result is not scheduled, or is lowered already.
        Unavailable: `--plan auto` needs a GPU that this machine does not have.
    """
    schedule, plan, target = how.schedule, how.plan, how.target
    if plan is None:
        schedule = DEFAULT_SCHEDULE if schedule is None else schedule
        pipeline = read_pipeline(schedule, how.workgroups)
        graph = pipeline(problem.graph(how.tile, fixed=fixed))
        _refuse_unscheduled(graph, str(pipeline))
        return Scheduled(problem, graph)
    given = {"--schedule": schedule, "--workgroups": how.workgroups, "--tile": how.tile}
    if others := [name for name, value in given.items() if value is not None]:
        raise typer.BadParameter(
            f"--plan gives the tile, the schedule and the grid; leave out {', '.join(others)}"
        )
    if plan == AUTO and not problem.single:
        raise typer.BadParameter(
            "--plan auto chooses plans for single products only; give a plan or a schedule for "
            "batches and groups"
        )
    from passes.choosing import Plan

    registered_passes()
    chosen = _chosen(problem, target, reads_c) if plan == AUTO else Plan.parse(plan)
    graph = chosen.graph(problem.gemm(fixed=fixed))
    _refuse_unscheduled(graph, chosen.pipeline)
    return Scheduled(problem, graph, chosen)


def from_file(problem: Problem, how: Scheduling, source: str) -> Scheduled:
    """Read a scheduled graph from a file.

    Args:
        problem: the options of the problem; the graph decides types, layouts and fixed sizes.
        how: the options for schedule and plan; none may be given, since the graph replaces them.
        source: the file, or `-` for stdin.

    Raises:
        typer.BadParameter: an option contradicts the graph, or gives a schedule, batch or groups.
        ParseError: the file is no graph.
        PassError: the graph is not scheduled, or is lowered already.
    """
    others = {name: getattr(how, name) for name in ("schedule", "workgroups", "tile", "plan")}
    others |= {"batched": problem.batched or None, "groups": problem.groups or None}
    if given := [f"--{name}" for name, value in others.items() if value is not None]:
        raise typer.BadParameter(
            f"--from gives a graph that is scheduled already; leave out {', '.join(given)}"
        )
    made, usual = from_graph(problem, read_graph(source)), Problem()
    for name in ("dtype", "out_dtype", "transpose_a", "transpose_b"):
        asked, found = getattr(problem, name), getattr(made.problem, name)
        if asked not in (getattr(usual, name), found):
            raise typer.BadParameter(
                f"--{name.replace('_', '-')} contradicts the graph, which has {name}={found}; "
                "leave the option out"
            )
    return made


def from_graph(problem: Problem, graph: KernelGraph) -> Scheduled:
    """Make a `Scheduled` from a graph that was read from a file.

    The types, layouts and fixed sizes of the graph replace those in `problem`.

    Raises:
        PassError: the graph is not scheduled, or is lowered already.
    """
    if graph.level == "problem":
        raise PassError(
            f"the graph has no schedule: apply one, as in 'coordgraph opt -p {DEFAULT_SCHEDULE}'"
        )
    if graph.level != "scheduled":
        raise PassError(
            f"the graph is {graph.level} already; give the scheduled graph, which 'compile' "
            "lowers for the target itself"
        )
    return Scheduled(problem.of(graph.gemm), graph)


def _refuse_unscheduled(graph: KernelGraph, pipeline: str) -> None:
    """Raise PassError unless a pipeline made a scheduled graph that is not lowered yet."""
    if graph.level == "problem":
        raise PassError(
            f"'{pipeline}' has no schedule: end it with one, as in "
            f"'{pipeline},data-parallel' or '{pipeline},{DEFAULT_SCHEDULE}'"
        )
    if graph.level != "scheduled":
        raise PassError(
            f"'{pipeline}' lowers the graph; leave out '{graph.log[-1]}': compiling a kernel "
            "lowers its graph for the target"
        )


def _chosen(problem: Problem, target: str, reads_c: bool) -> Plan:
    """The plan that `codegen.matmul` chooses: the fastest measured plan, else the model's best."""
    from codegen.call import choose
    from codegen.call.request import PlanRequest, unaligned
    from passes.choosing import constants_of
    from passes.choosing.choosers import modelled

    missing = [f"--{axis}" for axis in "mnk" if getattr(problem, axis) is None]
    if missing:
        raise typer.BadParameter(f"--plan {AUTO} needs all sizes: give {', '.join(missing)} too")
    gemm = _sized(problem)
    if not target.startswith("sm_"):
        return PlanRequest(gemm, "cpu", reads_c=reads_c).simple_plan
    alignment, gpu = 1 if unaligned(gemm) else ALIGNED_BYTES, _gpu_of(target)
    if gpu is not None:
        here = (target, gpu.name, gpu.processors, gpu.ordinal)
        request = PlanRequest(gemm, *here, alignment, reads_c=reads_c)
        return next(choose.plans(request))
    if target not in modelled():
        raise Unavailable(
            f"--plan {AUTO}: the choice for {target} depends on the GPU, and this machine has no "
            "such GPU; give a plan or a schedule"
        )
    base = constants_of()
    request = PlanRequest(gemm, target, base.device, base.processors, 0, alignment, reads_c)
    return next(request.plans())


def _sized(problem: Problem) -> Gemm:
    """The problem with the sizes of the command line as constant m, n and k.

    A `Gemm` refuses k = 0. A kernel that is called with k = 0 multiplies zeros, with the smallest k
    for which rows are multiples of 16 bytes, so the result has this k instead of 0.
    """
    depth = problem.k or ALIGNED_BYTES // dtype(problem.dtype).bytes
    return replace(problem, k=depth).gemm(fixed=True)


def _gpu_of(target: str) -> Device | None:
    """The first GPU of this machine if its architecture is `target`, else None."""
    from codegen.targets.nvptx.driver import device, unavailable

    if unavailable():
        return None
    found = device(0)
    return found if found.architecture == target else None
