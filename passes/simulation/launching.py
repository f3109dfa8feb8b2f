"""`simulate`: runs a scheduled graph on a model of a GPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coordgraph import Gemm, KernelGraph, LaunchError, PassError, VerifyError
from coordgraph.collection import collection_paused
from coordgraph.control.tickets import DynamicFor
from coordgraph.elements import dtype
from coordgraph.gemm import OFFSETS, OFFSETS_OF
from coordgraph.integers import evaluate
from coordgraph.interpreter.lockstep import Steps, record_steps
from passes.choosing.device_names import matching
from passes.choosing.plan import CLUSTER_OPTIONS, Plan
from passes.lowering.acceptance import accepting
from passes.simulation.engine import Engine
from passes.simulation.events import Events
from passes.simulation.machine import MACHINES, Machine
from passes.simulation.main_loops import MainLoops
from passes.simulation.memory import Traffic
from passes.simulation.simulation import Simulation
from passes.simulation.uniform_engine import UniformEngine
from passes.simulation.uniform_tables import UniformTables
from passes.simulation.work import Kernel, Setup, TileWork, divisions_of, tile_works

__all__ = ["Launch", "machine_named", "plan_launch", "simulate", "simulate_plan"]

DEFAULT = "NVIDIA H200"
MOST_STEPS = 5_000_000
"""Largest number of steps of a launch that is simulated; `simulate` refuses more. The simulation of
a step takes about 4 µs, and the simulation of so many steps takes about 20 s."""
STEPS_OF_TILE = 3
"""Smallest number of steps of an output tile: multiply, finish, store."""


def machine_named(name: str) -> Machine:
    """Find a machine by its full name or by a short name, such as `H200`.

    Raises:
        LaunchError: no machine has that name.
    """
    found = matching(name, MACHINES) if isinstance(name, str) else None
    if found is None:
        raise LaunchError(
            f"machine = {name!r} is not known; use a Machine, or one of: {', '.join(MACHINES)}"
        )
    return MACHINES[found]


def simulate(
    graph: KernelGraph,
    problem: Mapping[str, int],
    machine: Machine | str = DEFAULT,
    *,
    tables: Mapping[str, Sequence[int]] | None = None,
    kernel: Kernel | None = None,
) -> Simulation:
    """Run a scheduled graph on a model of a GPU, event by event.

    The graph defines what every workgroup does, in which order, and for which workgroups it waits.
    The machine defines how long each step takes, and which bandwidths concurrent steps share.

    Args:
        graph: a graph to which a schedule pass has been applied (level "scheduled").
        problem: the launch arguments by name, such as `m`, `n` and `k`. `workgroups` may be left
            out: then as many workgroups are launched as the GPU runs at the same time.
        machine: the GPU, or the name of one of `MACHINES`, such as `H200`.
        tables: the entries of the tables that the graph reads, by name, such as `offsets`.
        kernel: the cluster shape, and whether the consumers are cooperative or ping-pong; by
            default one CTA computes a tile, and its warpgroups compute it together.

    Raises:
        VerifyError: no schedule pass has been applied to the graph.
        LaunchError: a launch argument or a table is missing or out of bounds, or the machine is
            unknown; or the launch has more than `MOST_STEPS` steps.
        PassError: the graph cannot be compiled for the machine.
        Deadlock: the workgroups that run wait for each other, or for a workgroup that cannot start.
    """
    if not isinstance(graph, KernelGraph):
        raise VerifyError(
            f"simulate needs a KernelGraph, not {type(graph).__name__}; pass the result of a "
            "schedule pass, as in simulate(StreamK()(Gemm(...).graph(tile)), {...})"
        )
    machine = machine if isinstance(machine, Machine) else machine_named(machine)
    kernel = kernel or Kernel()
    instructions = instructions_of(graph, machine, kernel)
    # Garbage collection is paused: it would visit millions of tuples again and again, none of them
    # in a reference cycle, which took a fifth of the time.
    with collection_paused():
        return Launch.of(graph, problem, machine, tables, kernel, *instructions).run(machine)


@dataclass(frozen=True)
class Launch:
    """One launch of a scheduled graph, which can be run on several machines.

    Args:
        graph: the scheduled graph.
        kernel: the cluster shape, and whether the consumers are cooperative or ping-pong.
        steps: the steps of every workgroup, such as main loops, sends and stores.
        sizes: m, n and k of each product; one row if all products have the same sizes.
        products: number of products.
        workspace_bytes: bytes of memory for partial sums and flags.
        divisions: number of integer divisions that a workgroup executes before it loads its first
            tiles.
        instructions: the instructions that multiply, `wgmma` or `mma.sync`; '' in tests with graphs
            that no lowering accepts.
        refusals: why faster instructions cannot multiply, a sentence for each.
    """

    graph: KernelGraph
    kernel: Kernel
    steps: Steps
    sizes: NDArray[np.int64]
    products: int
    workspace_bytes: int
    divisions: int
    instructions: str = ""
    refusals: tuple[str, ...] = ()

    @classmethod
    def of(
        cls,
        graph: KernelGraph,
        problem: Mapping[str, int],
        machine: Machine,
        tables: Mapping[str, Sequence[int]] | None,
        kernel: Kernel,
        instructions: str = "",
        refusals: tuple[str, ...] = (),
    ) -> Launch:
        """Record the steps of a launch, so that it can be simulated.

        Args:
            graph: the scheduled graph.
            problem: the launch arguments by name, such as `m`, `n` and `k`.
            machine: the GPU; it determines the number of workgroups if the launch arguments do not
                contain it.
            tables: the entries of the tables that the graph reads, by name.
            kernel: the cluster shape, and whether the consumers are cooperative or ping-pong.
            instructions: the instructions that multiply, `wgmma` or `mma.sync`.
            refusals: why faster instructions cannot multiply, a sentence for each.
        """
        given, tables = dict(problem), tables or {}
        if "workgroups" in graph.parameters and "workgroups" not in given:
            given["workgroups"] = machine.slots(prod(kernel.cluster), kernel.resident)
        # launch arguments whose minimum is 0, such as `read_c`, default to 0, as in `trace`
        free = {p.name: 0 for p in graph.parameters.given if p.minimum == 0}
        values = graph.parameters.launch({**free, **given}, tables)
        # B has columns for each sum of the epilogue, so the product has `sums` times n columns
        sizes = product_sizes(graph, given, tables) * [1, graph.gemm.sums, 1]
        products = given.get("batches", 1) if len(sizes) == 1 else len(sizes)
        # A recorded step needs 88 bytes, so a launch is refused before its steps are recorded if a
        # lower bound of their number is too large already.
        least = _tiles(graph, sizes) * products // len(sizes) * STEPS_OF_TILE
        _check_steps(graph, least, "at least ")
        steps = record_steps(graph, given, tables)
        _check_steps(graph, len(steps), "")
        workspace = sum(
            int(evaluate(tensor.elements, values)) * dtype(tensor.dtype).bytes
            for tensor in graph.tensors
            if tensor.role.workspace
        )
        divisions = divisions_of(graph)
        return cls(
            graph, kernel, steps, sizes, products, workspace, divisions, instructions, refusals
        )

    def run(self, machine: Machine) -> Simulation:
        """Simulate the launch on a machine; raise `PassError` or `Deadlock` like `simulate`."""
        graph, kernel, gemm = self.graph, self.kernel, self.graph.gemm
        means = zip("mnk", self.sizes.mean(axis=0).tolist(), strict=True)
        works = tile_works(graph, dict(means), machine, kernel)
        element, out = dtype(gemm.dtype).bytes, dtype(gemm.out_dtype or gemm.dtype).bytes
        tilings = list(graph.tilings)
        spans = [graph.tilings.span(t) if len(tilings) > 1 else (1, 1) for t in tilings]
        loaded_bytes = prod(tilings[0].shape[:2]) * out * kernel.reads_c
        loops = MainLoops(self.steps, works, spans, self.sizes, element, loaded_bytes)
        setup = Setup.of(machine, kernel, self.divisions)
        engine, events = self._simulated(loops, works, machine, setup)
        m, n, k = self.sizes.T.astype(float)
        alike = self.products / len(self.sizes)
        return Simulation(
            machine=machine,
            instructions=self.instructions,
            refusals=self.refusals,
            steps=engine.executed,
            events=events,
            makespan=engine.times.makespan(setup.launch),
            slots=engine.slots,
            launch_seconds=setup.launch,
            flops=float((2 * m * n * k).sum() * alike),
            asked_bytes=engine.traffic.asked,
            read_a_bytes=engine.traffic.read_a,
            read_b_bytes=engine.traffic.read_b,
            compulsory_bytes=float(((m + n) * k).sum() * element * alike),
            stored_bytes=float((m * n).sum() * out * alike / gemm.sums),
            workspace_bytes=self.workspace_bytes,
        )

    def _simulated(
        self, loops: MainLoops, works: Sequence[TileWork], machine: Machine, setup: Setup
    ) -> tuple[Engine | UniformEngine, Events]:
        """Simulate the launch; return the engine that did, and the events.

        Args:
            loops: the k tiles that each main loop of the launch reads, and their bytes.
            works: for each tile shape, the seconds and bytes of work on one tile.
            machine: the GPU.
            setup: seconds from the launch and from the start of a workgroup until it multiplies.
        """
        kernel, merged = self.kernel, machine.merged
        dynamic = bool(self.graph.control.of_kind(DynamicFor))
        if len(works) == kernel.turns == 1 and not dynamic:
            later = setup.later + works[0].first
            tables = UniformTables.of(self.steps, loops, works[0], merged=merged, later=later)
            if tables is not None:
                fast = UniformEngine(tables, works[0], machine, kernel, setup)
                if (events := fast.run()) is not None:
                    return fast, events
        traffic = Traffic(loops, capacity=machine.l2_bytes, merged=merged)
        engine = Engine(self.steps, works, machine, kernel, setup, traffic, dynamic=dynamic)
        return engine, engine.run()


def _tiles(graph: KernelGraph, sizes: NDArray[np.int64]) -> int:
    """Smallest number of output tiles that cover all products; `sizes` has rows (m, n, k)."""
    m, n = (max(tiling.summed[axis] for tiling in graph.tilings) for axis in (0, 1))
    return int((-(-sizes[:, 0] // m) * -(-sizes[:, 1] // n)).sum())


def _check_steps(graph: KernelGraph, steps: int, least: str) -> None:
    """Raise an error if a launch has more than `MOST_STEPS` steps.

    Args:
        graph: the graph, whose tile the error message names.
        steps: the number of steps.
        least: text before the number in the message: `at least ` for a lower bound, else ''.
    """
    if steps <= MOST_STEPS:
        return
    tile = "x".join(map(str, next(iter(graph.tilings)).shape))
    raise LaunchError(
        f"the launch has {least}{steps / 1e6:.3g} million steps with the tile {tile}, and at most "
        f"{MOST_STEPS / 1e6:.3g} million are simulated, which takes about 20 s; choose a larger "
        "tile or a smaller problem"
    )


def instructions_of(
    graph: KernelGraph, machine: Machine, kernel: Kernel
) -> tuple[str, tuple[str, ...]]:
    """The matrix instructions of the kernel for a machine, and why faster ones are not used.

    Returns:
        (`wgmma` or `mma.sync`; for each faster lowering, the reason why it refuses the graph).

    Raises:
        VerifyError: no schedule pass has been applied to the graph.
        PassError: every lowering refuses the graph, or does not support the kernel's cluster shape
            and consumers.
    """
    graph.workgroup  # noqa: B018 - raises an error with advice if no schedule was applied
    if machine.constants is None and not kernel.plain:
        raise PassError(
            f"clusters and pingpong consumers need wgmma, which {machine.name} "
            f"({machine.architecture}) does not have; leave cluster and consumers at their defaults"
        )
    divided = zip(CLUSTER_OPTIONS, kernel.cluster, strict=True)
    options: dict[str, Any] = {name: count for name, count in divided if count > 1}
    if kernel.turns > 1:
        options["consumers"] = kernel.consumers
    found, refusals = accepting(graph, machine.architecture, reads_c=kernel.reads_c, **options)
    return found.instructions, refusals


def product_sizes(
    graph: KernelGraph, given: Mapping[str, int], tables: Mapping[str, Sequence[int]]
) -> NDArray[np.int64]:
    """An array with a row (m, n, k) for each product; a single row if all products are equal."""
    gemm, columns = graph.gemm, list[list[int]]()
    for axis in "mnk":
        table = tables.get(OFFSETS_OF[axis], tables.get(OFFSETS))
        if gemm.ragged(axis) and table is not None:
            columns.append([b - a for a, b in pairwise(table)])
        else:
            fixed = getattr(gemm, axis)
            columns.append([int(given[axis] if fixed is None else fixed)])
    count = max(map(len, columns))
    return np.array([c * count if len(c) == 1 else c for c in columns], np.int64).T


def simulate_plan(gemm: Gemm, plan: Plan, machine: Machine | str = DEFAULT) -> Simulation:
    """Simulate the kernel of a plan on a model of a GPU.

    Args:
        gemm: the problem, with values for m, n and k.
        plan: the tile, cluster, schedule and grid.
        machine: the GPU, or the name of one of `MACHINES`, such as `H200`.

    Raises:
        PassError: the plan cannot be applied to the problem.
    """
    machine = machine if isinstance(machine, Machine) else machine_named(machine)
    return plan_launch(gemm, plan, machine).run(machine)


def plan_launch(gemm: Gemm, plan: Plan, machine: Machine) -> Launch:
    """Record the steps of a launch of a plan's kernel; `gemm` must have values for m, n and k."""
    graph = plan.graph(replace(gemm, m=None, n=None, k=None))
    given = {axis: size for axis in "mnk" if (size := getattr(gemm, axis)) is not None}
    if plan.workgroups is not None:
        given["workgroups"] = plan.workgroups
    kernel = Kernel(plan.cluster, plan.consumers)
    return Launch.of(graph, given, machine, None, kernel, *instructions_of(graph, machine, kernel))
