"""`TileWork`: the seconds and bytes of a workgroup's steps on one tile, without other workgroups.

For kernels with wgmma and TMA (sm_90a), the cost model gives the times of an iteration and of the
end of a tile. For other kernels, these times follow from public data of the GPU: the slowest of
multiplications, loads and the latency of loads determines the time of an iteration.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from math import prod

import numpy as np
from numpy.typing import NDArray
from sympy import Integer

from coordgraph import KernelGraph
from coordgraph.control.operations import AccumulatePartial, MultiplyAccumulate, SendPartial
from coordgraph.elements import ROW_BYTES, dtype
from coordgraph.integers import FloorDiv, FloorMod
from coordgraph.interpreter.lockstep import StepKind, Steps
from coordgraph.interpreter.program import program
from passes.choosing.constants import Constants
from passes.choosing.kernel_shape import Shape
from passes.choosing.model import iteration, tile_end
from passes.choosing.plan_table import Flag, Table
from passes.kit.reduce_scatter import finishes_shares
from passes.lowering import CONSUMERS
from passes.simulation.machine import Machine

__all__ = ["Kernel", "Setup", "TileWork", "divisions_of", "fixed_seconds", "tile_works"]

MOST_STAGES = 4
"""Largest number of pipeline stages in shared memory of kernels with mma.sync."""


@dataclass(frozen=True)
class Kernel:
    """The properties of a compiled kernel on which its simulated speed depends.

    Args:
        cluster: numbers of CTAs of a cluster along m, n and k; a cluster computes one macro tile.
        consumers: `cooperative`, or `pingpong` if the warpgroups of a CTA alternate between tiles.
        reads_c: whether the epilogue reads C.
        resident: number of workgroups that one SM runs at the same time.
    """

    cluster: tuple[int, int, int] = (1, 1, 1)
    consumers: str = "cooperative"
    reads_c: bool = False
    resident: int = 1

    @property
    def turns(self) -> int:
        """Number of warpgroups that alternate between tiles; 1 if they divide each tile."""
        return CONSUMERS[self.consumers]

    @property
    def plain(self) -> bool:
        """Whether CTAs have no cluster and all warpgroups of a CTA compute a tile together."""
        return prod(self.cluster) == self.turns == 1


@dataclass(frozen=True)
class Setup:
    """Seconds before a workgroup multiplies, without the further time of its first iteration.

    Attributes:
        launch: seconds of a launch before any workgroup begins.
        first: seconds from the start of a workgroup that is the first one on its SM.
        later: seconds from the start of a workgroup that follows another one on its SM.
    """

    launch: float
    first: float
    later: float

    @classmethod
    def of(cls, machine: Machine, kernel: Kernel, divisions: int) -> Setup:
        """Compute the `Setup` of a kernel's workgroups on a machine.

        Args:
            machine: the GPU.
            kernel: the cluster shape, and whether the consumers are cooperative or ping-pong.
            divisions: number of integer divisions that a workgroup executes before its first load.
        """
        c, clustered = machine.constants, prod(kernel.cluster) > 1
        launch = machine.launch_seconds + (c.cluster_seconds if c and clustered else 0.0)
        indices = machine.division_seconds * divisions
        return cls(launch, machine.fill_seconds + indices, machine.start_seconds + indices)


def divisions_of(graph: KernelGraph) -> int:
    """Number of integer divisions that a workgroup computes before it loads its first tiles.

    Divisions by constants are not counted, since they become multiplications. A quotient and the
    remainder of the same division count once.
    """
    code = program(graph)
    first = next(code.work(MultiplyAccumulate)).multiplied.values
    found = {
        node.args
        for value in (*first, *code.bounds())
        for node in value.atoms(FloorDiv, FloorMod)
        if not isinstance(node.args[1], Integer)
    }
    return len(found)


@dataclass(frozen=True)
class TileWork:
    """Seconds and bytes of one workgroup's work on tiles of one shape.

    Attributes:
        shape: extents of a macro tile along m, n and k, in elements.
        free, crowded: seconds of an iteration: `free` if at most half of the SMs multiply,
            `crowded` if more SMs do.
        first: further seconds of a workgroup's first iteration, whose loads do not overlap with
            multiplications.
        asked_a, asked_b: bytes of A and of B that are requested from the L2 cache per iteration.
        power: seconds of an iteration's multiplications at the power limit of the whole device.
        finish: seconds of the epilogue of a tile and of copying the tile out of registers.
        drain: seconds from the last copy out of registers until the tile is in memory, when the
            workgroup can end.
        handover: seconds between the main loops of two warpgroups that alternate between tiles.
        send: seconds of writing a partial sum and setting its flag.
        receive: seconds of reading a partial sum and adding it.
        shared: seconds before the shares of a tile are added, if several workgroups finish a tile.
        add: seconds of reading and adding a whole tile of partial sums, share by share.
        partial_bytes: bytes of a partial sum.
        stored_bytes: bytes of a whole tile of D.
    """

    shape: tuple[int, int, int]
    free: float
    crowded: float
    first: float
    asked_a: float
    asked_b: float
    power: float
    finish: float
    drain: float
    handover: float
    send: float
    receive: float
    shared: float
    add: float
    partial_bytes: float
    stored_bytes: float


def tile_works(
    graph: KernelGraph, sizes: Mapping[str, int], machine: Machine, kernel: Kernel
) -> list[TileWork]:
    """Seconds and bytes of work on a tile, for each of a graph's `tilings` (tile shapes) in order.

    Args:
        graph: the scheduled graph.
        sizes: `m`, `n` and `k` of a product, on average if products differ.
        machine: the GPU.
        kernel: the cluster shape, and whether the consumers are cooperative or ping-pong.
    """
    if machine.constants is not None:
        return _hopper(graph, sizes, machine, machine.constants, kernel)
    return [_plain(graph, tiling.summed, machine, kernel) for tiling in graph.tilings]


@dataclass(frozen=True)
class _OneKernel(Table):
    """A plan table with one row, for a kernel that is given as a graph and not as a plan.

    Args:
        sends: whether workgroups of the kernel send partial sums.
        finishes: whether each workgroup computes one partial sum and then finishes shares of the
            tile, as `passes.kit.reduce_scatter.finishes_shares` tells.
    """

    sends: bool = False
    finishes: bool = False

    @cached_property
    def finishes_shares(self) -> Flag:
        return np.array([self.finishes])

    @cached_property
    def streams(self) -> Flag:
        return np.array([self.sends])


def _hopper(
    graph: KernelGraph,
    sizes: Mapping[str, int],
    machine: Machine,
    c: Constants,
    kernel: Kernel,
) -> list[TileWork]:
    """Seconds and bytes of work on a tile with wgmma and TMA, by the cost model."""
    gemm = graph.gemm
    out = dtype(gemm.out_dtype or gemm.dtype).bytes / gemm.sums
    sends = any(isinstance(op, SendPartial | AccumulatePartial) for op in graph.control.operations)
    numbers = {f.name: 0.0 for f in fields(Table)} | {
        **{"l": 1, "width": 1, **sizes},
        **{"ragged_m": gemm.ragged("m"), "ragged_k": gemm.ragged("k")},
        **{"turned_a": gemm.transpose_a, "turned_b": gemm.transpose_b},
        **{"in_bytes": dtype(gemm.dtype).bytes, "out_bytes": out},
        **{"c_bytes": out * gemm.sums * kernel.reads_c, "turns": kernel.turns},
        **dict(zip(("cluster_m", "cluster_n", "cluster_k"), kernel.cluster, strict=True)),
    }
    del numbers["schedules"], numbers["alike"]
    found: list[TileWork] = []
    larger = None
    for tiling in graph.tilings:
        extents = dict(zip(("tile_m", "tile_n", "tile_k"), tiling.summed, strict=True))
        columns = {name: np.array([float(v)]) for name, v in (numbers | extents).items()}
        table = _OneKernel(**columns, schedules=(), sends=sends, finishes=finishes_shares(graph))
        shape = Shape(table, larger)
        larger = larger or shape
        found.append(_of_shape(table, shape, machine, c, tiling.summed))
    return found


def _of_shape(
    t: Table, s: Shape, machine: Machine, c: Constants, extents: tuple[int, int, int]
) -> TileWork:
    """Seconds and bytes of work on tiles of one shape, from a plan table with one row."""

    def one(column: NDArray[np.float64]) -> float:
        return float(np.broadcast_to(column, 1)[0])

    step = {crowded: iteration(s, c, np.array([crowded])) for crowded in (False, True)}
    tile, drain, summed = map(one, tile_end(t, s, c))
    workgroups, partial = one(s.workgroups), one(s.partial_bytes)
    rows, columns = one(s.rows / t.cluster_n), one(s.columns / t.cluster_m)
    asked = one(s.asked_bytes) * workgroups
    flops = 2 * prod(extents) * one(t.in_bytes) / 2
    return TileWork(
        shape=extents,
        free=one(step[False][0]),
        crowded=one(step[True][0]),
        first=one(step[True][1]),
        asked_a=asked * rows / (rows + columns),
        asked_b=asked * columns / (rows + columns),
        power=flops / c.power_flops + workgroups * one(step[True][2]) / c.power_shared,
        finish=tile + summed,
        drain=drain,
        handover=c.handover_seconds,
        send=c.send_seconds + partial / c.send_rate,
        receive=one(s.steps) * c.receive_seconds + partial / c.receive_rate,
        shared=c.scatter_seconds,
        add=partial / c.scatter_rate,
        partial_bytes=partial * workgroups,
        stored_bytes=extents[0] * extents[1] * one(t.out_bytes),
    )


def _plain(
    graph: KernelGraph, extents: tuple[int, int, int], machine: Machine, kernel: Kernel
) -> TileWork:
    """Seconds and bytes of work on a tile with mma.sync, from public data of the GPU."""
    gemm = graph.gemm
    kind, out = dtype(gemm.dtype), dtype(gemm.out_dtype or gemm.dtype).bytes / gemm.sums
    (m, n, k), each = extents, kernel.resident / machine.processors
    flops = 2 * m * n * k * (kind.bytes / 2)
    multiply = flops * kernel.resident / (machine.flops_per_clock * machine.clock)
    multiply += machine.iteration_seconds
    loaded = (m + n) * k * kind.bytes
    stages = max(2, min(MOST_STAGES, int(machine.shared_bytes / kernel.resident // loaded)))
    times = multiply, loaded * each / machine.l2_rate, machine.latency_seconds / (stages - 1)
    step = sum(x**machine.sharpness for x in times) ** (1 / machine.sharpness)
    stored, partial = m * n * out, m * n * (ROW_BYTES // 32)
    stores, partials = (x * each / machine.l2_rate for x in (stored, partial))
    return TileWork(
        shape=extents,
        free=step,
        crowded=step,
        first=multiply,
        asked_a=loaded * m / (m + n),
        asked_b=loaded * n / (m + n),
        power=flops / machine.power_flops,
        finish=machine.tile_seconds + stores,
        drain=stores,
        handover=0.0,
        send=machine.partial_seconds + partials,
        receive=partials,
        shared=machine.partial_seconds,
        add=partials,
        partial_bytes=partial,
        stored_bytes=stored,
    )


def fixed_seconds(steps: Steps, works: Sequence[TileWork]) -> NDArray[np.float64]:
    """Seconds of each step that does not share resources; 0 for main loops and for waits."""
    kind, tiling = steps.kind, steps.tiling
    seconds = np.zeros(len(steps))

    def of(name: str) -> NDArray[np.float64]:
        return np.array([getattr(work, name) for work in works])[tiling]

    shares = np.maximum(steps.count, 1)
    seconds = np.where(kind == StepKind.SEND, of("send"), seconds)
    seconds = np.where(kind == StepKind.RECEIVE, of("receive"), seconds)
    after_wait = np.zeros(len(steps), bool)
    after_wait[1:] = kind[:-1] == StepKind.AWAIT
    adds = of("add") / shares + np.where(after_wait, of("shared"), 0)
    seconds = np.where(kind == StepKind.ADD, adds, seconds)
    return np.where(kind == StepKind.STORE, of("finish") / shares, seconds)
