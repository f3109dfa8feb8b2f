"""The launch that the options of `coordgraph simulate` and `coordgraph report` describe."""

from __future__ import annotations

from dataclasses import dataclass, replace

import typer

from codegen.cli.machine_option import machine_of
from codegen.cli.options import Problem, Scheduling
from codegen.cli.products import Products
from codegen.cli.scheduled import Scheduled, from_graph, scheduled
from codegen.cli.stages import read_graph
from passes.lowering.acceptance import check_elements
from passes.simulation import Kernel, Machine

__all__ = ["SimulatedLaunch", "simulated_launch"]


@dataclass(frozen=True)
class SimulatedLaunch:
    """A scheduled graph, the products of one launch, and the machine that simulates it.

    Args:
        made: the scheduled graph, with the plan or pipeline that made it.
        products: the extents of all products.
        machine: the model of the GPU on which the launch is simulated.
        kernel: the cluster shape, and how consumer warpgroups work: cooperative or pingpong.
    """

    made: Scheduled
    products: Products
    machine: Machine
    kernel: Kernel

    @property
    def arguments(self) -> dict[str, int]:
        """The values of the launch arguments that the graph has, by name."""
        names = {p.name for p in self.made.graph.parameters.given}
        given = {name: n for name, n in self.products.arguments().items() if name in names}
        if self.made.grid is not None:
            given["workgroups"] = self.made.grid
        return given


def simulated_launch(
    problem: Problem,
    batches: int | None,
    extents: str | None,
    scheduling: Scheduling,
    source: str | None,
    machine: str,
    beta: float,
) -> SimulatedLaunch:
    """Make the launch that command-line options describe.

    Args:
        problem, batches, extents: the options of the products.
        scheduling: the options for the schedule or plan; the target is replaced by the machine's
            architecture.
        source: the file of a scheduled graph, or None.
        machine: the full or short name of the GPU.
        beta: the factor of C; C is read unless `beta` is 0.

    Raises:
        typer.BadParameter: options contradict each other, or all products are empty.
        PassError: kernels for the machine do not multiply the element type.
    """
    gpu = machine_of(machine)
    products = Products.of(problem, batches, extents)
    if products.empty:
        raise typer.BadParameter(
            "an extent of the problem is 0, so nothing is multiplied; give sizes of at least 1"
        )
    if source is None:
        how = replace(scheduling, target=gpu.architecture)
        made = scheduled(products.problem, how, fixed=False, reads_c=beta != 0)
    else:
        made = from_graph(products.problem, read_graph(source))
    # An element type that the GPU does not multiply is refused here, because the error of code
    # generation advises target='cpu', which is no remedy for a simulated GPU.
    check_elements(made.graph, gpu.architecture)
    kernel = Kernel(reads_c=beta != 0)
    if made.plan is not None:
        kernel = Kernel(made.plan.cluster, made.plan.consumers, beta != 0)
    return SimulatedLaunch(made, products, gpu, kernel)
