"""The experiment of the Stream-K paper (arXiv:2301.03598): number of sizes, schedules, and grids.

The paper's m, n and k are drawn log-uniform from 128 to 8192. The paper does not list its 32,824
sizes; `benchmarks.problems.log_uniform` draws others from the same distribution.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from benchmarks.problems.shapes import Shape

__all__ = ["COUNT", "WAYS", "Costs", "Way", "best_grid", "output_tiles"]

COUNT = 32_824
"""The number of problem sizes that the Stream-K paper measures."""
Tile = tuple[int, int, int]


@dataclass(frozen=True)
class Way:
    """A schedule to compare, and the number of workgroups with which it is launched.

    Args:
        schedule: the pass, such as `stream-k`.
        grid: the number of workgroups. `T`: one for each output tile. `W`: one for each SM. `g`:
            the number for which the Stream-K paper's cost model predicts the least time.
    """

    schedule: str
    grid: str

    def __str__(self) -> str:
        return f"{self.schedule} on {self.grid}"

    def plan(self, tile: Tile, workgroups: int, chosen: int) -> str:
        """The text of the plan: tile, schedule, and the grid if the schedule does not decide it.

        Args:
            tile: elements of the macro tile along m, n and k.
            workgroups: the number of workgroups for a `grid` of `W`: the number of SMs.
            chosen: the number of workgroups for a `grid` of `g`: that with the least time by the
                Stream-K paper's cost model (`best_grid`).
        """
        grid = {"T": "", "W": f" on {workgroups}", "g": f" on {chosen}"}[self.grid]
        return f"{'x'.join(map(str, tile))} {self.schedule}{grid}"


WAYS = (
    Way("data-parallel", "T"),
    Way("stream-k", "W"),
    Way("two-tile-stream-k", "W"),
    Way("stream-k", "g"),
    Way("two-tile-stream-k", "g"),
)
"""Schedules that are compared, all with the same macro tile. Speedups are relative to the first
schedule, `data-parallel`."""


@dataclass(frozen=True)
class Costs:
    """The seconds of a workgroup's steps, from which the Stream-K paper's model predicts times.

    Args:
        iteration: one iteration (k tile) of the main loop.
        send: storing a partial sum.
        receive: loading and adding one partial sum.
    """

    iteration: float
    send: float
    receive: float


def output_tiles(shape: Shape, tile: Tile) -> int:
    """The number of output tiles of a problem.

    >>> output_tiles(Shape("", 2304, 2304, 4096), (128, 256, 64))
    162
    """
    return -(-shape.m // tile[0]) * -(-shape.n // tile[1])


def best_grid(shape: Shape, tile: Tile, workgroups: int, costs: Costs) -> int:
    """The number of workgroups for which the Stream-K paper's cost model predicts the least time.

    With g workgroups, each has `i = ceil(tiles * depth / g)` iterations, and a tile is summed by
    `p = ceil(depth / i)` workgroups, where depth is the number of k tiles. The busiest workgroup
    takes `i` iterations, one `send` if p > 1, and `p - 1` times `receive`. If there are at least as
    many tiles as SMs, the result is the number of SMs.

    Args:
        shape: m, n and k of the problem.
        tile: elements of the macro tile along m, n and k.
        workgroups: the number of SMs, the largest grid.
        costs: the seconds of an iteration, of a `send` and of a `receive`.

    >>> costs = Costs(iteration=0.6e-6, send=2.1e-6, receive=1.4e-6)
    >>> best_grid(Shape("", 128, 256, 8192), (128, 256, 64), 132, costs)
    8
    """
    tiles, depth = output_tiles(shape, tile), -(-shape.k // tile[2])
    if tiles >= workgroups:
        return workgroups
    grids = np.arange(1, workgroups + 1)
    share = -(-tiles * depth // grids)
    peers = -(-depth // share)
    seconds = share * costs.iteration + (peers > 1) * costs.send + (peers - 1) * costs.receive
    return int(grids[np.argmin(seconds)])
