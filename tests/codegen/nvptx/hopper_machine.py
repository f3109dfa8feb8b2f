"""A simulated Hopper GPU that runs lowered kernels, one warpgroup step at a time, in random order.

Each warp role of each workgroup is an agent that walks the control graph (`hopper_role`); in every
step one agent, drawn at random, advances. `hopper_memory` holds the memory model: what operations
change, and what counts as an error.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Mapping, Sequence
from functools import cache
from itertools import product
from typing import Any

from sympy import Symbol

from coordgraph import KernelGraph
from coordgraph.control.resolve import Node, resolve
from coordgraph.coordinates.dimensions import Workitem
from coordgraph.gemm import OFFSETS
from coordgraph.integers import evaluate
from coordgraph.tilings import macro_tile
from tests.codegen.nvptx.hopper_control import ORDER, Agent, Ready
from tests.codegen.nvptx.hopper_filling import WARPGROUP
from tests.codegen.nvptx.hopper_maps import Matrices
from tests.codegen.nvptx.hopper_memory import Device, Place, Workgroup
from tests.codegen.nvptx.hopper_role import Role

__all__ = ["Deadlock", "Hopper"]

CLUSTER = ("cluster.m", "cluster.n", "cluster.k")


class Deadlock(AssertionError):
    """Raised if every agent that has not finished waits for another one."""


class Hopper(Device):
    """Simulates a kernel's lowered graph on one problem.

    Args:
        graph: the graph that `LowerToHopper` returned.
        sizes: values of the size parameters m, n and k, and of `workgroups` if the graph has it.
        resident: number of clusters that run at the same time; when one ends, the next one starts.
        seed: the seed of the random order in which agents advance.
        offsets: for groups along m or k, the index at which each group starts on that axis, then
            the end of the last group; else None.
        sides: for a list of products, three sequences, along m, n and k: the index at which each
            product starts, then the end of the last product; else empty.
    """

    def __init__(
        self,
        graph: KernelGraph,
        sizes: Mapping[str, int],
        *,
        resident: int,
        seed: int,
        offsets: Sequence[int] | None = None,
        sides: Sequence[Sequence[int]] = (),
    ) -> None:
        super().__init__()
        self.graph, self.chance, self.resident = graph, random.Random(seed), resident
        given = {p.name for p in graph.parameters.given}
        known = {**sizes, "read_c": 0}
        tables = {} if offsets is None else {OFFSETS: offsets}
        tables |= dict(zip(map(graph.gemm.offsets, "mnk"), sides, strict=False))
        values = graph.parameters.launch({k: v for k, v in known.items() if k in given}, tables)
        named = (*graph.parameters.items, *graph.parameters.tables)
        self.parameters: dict[Symbol, Any] = {p.symbol: values[p.name] for p in named}
        self.offsets = offsets
        along_k = sides[2] if sides else offsets
        self.ends = along_k[1:] if along_k and graph.gemm.ragged("k") else ()
        """The index along k at which each group ends, if extents along k differ; else empty."""
        self.rows = 0 if sides else sizes["m"] + macro_tile(graph.coordinates)[0]
        """With groups along k, each group has a D of its own: the number of rows from the start of
        one D to the start of the next (m and a macro tile of padding). 0 for a list of products.
        """
        self.matrices = Matrices(sides, values) if sides else None
        size = graph.coordinates[graph.workgroup.id].size
        assert size is not None
        self.grid = int(evaluate(size, self.parameters))
        self.nodes = _resolved(graph)
        (workitem,) = graph.coordinates.of_kind(Workitem)
        self.warpgroups = workitem.fixed_size // WARPGROUP
        self.cluster = tuple(
            graph.coordinates[d].fixed_size if d in graph.coordinates else 1 for d in CLUSTER
        )
        self.ranks = self.cluster[0] * self.cluster[1] * self.cluster[2]
        self.turns = ORDER in graph.coordinates
        self.team = 1 if self.turns else self.warpgroups - 1
        """The number of warpgroups that compute one tile together."""
        self.ticket = 0
        """The counter in device memory from which workgroups take tickets (numbers of tiles)."""
        self.boxes: dict[Place, str] = {}
        """For each stored box of D, by its first row and column: `engine` if TMA stored it, `rows`
        if threads did.
        """
        self.memory: dict[int, list[Workgroup]] = {}

    def run(self) -> None:
        """Run all workgroups until each has finished."""
        waiting = deque(range(self.grid))
        agents: dict[int, list[tuple[Agent, Ready]]] = {}
        while waiting or agents:
            while waiting and len(agents) < self.resident:
                number = waiting.popleft()
                agents[number] = [(agent, lambda: True) for agent in self._begin(number)]
            able = [(n, i) for n, all in agents.items() for i, (_, go) in enumerate(all) if go()]
            if not able:
                raise Deadlock(f"workgroups {sorted(agents)} wait for ever")
            number, i = self.chance.choice(able)
            agent, _ = agents[number][i]
            try:
                agents[number][i] = (agent, next(agent))
            except StopIteration:
                del agents[number][i]
                if not agents[number]:
                    del agents[number]

    def _begin(self, number: int) -> list[Agent]:
        self.memory[number] = [Workgroup(self.team) for _ in range(self.ranks)]
        made: list[Agent] = []
        first, *rest = self.nodes
        for rank in range(self.ranks):
            for _ in Role(self, number, rank, 0).run((first,)):
                raise AssertionError("a warp waits before mbarriers are initialised")
            made += [Role(self, number, rank, w).run(tuple(rest)) for w in range(self.warpgroups)]
            if self.matrices:
                describer = Role(self, number, rank, self.warpgroups - 1, warp=1)
                made.append(describer.run(tuple(rest)))
        return made

    def sharing(self, rank: int, along: tuple[str, ...]) -> list[int]:
        """The ranks in a cluster whose coordinates equal those of `rank`, except along `along`.

        `along` has names out of `CLUSTER`, such as `cluster.m`.
        """
        _, n, k = self.cluster
        here = (rank // (n * k), rank // k % n, rank % k)
        places = product(*(range(count) for count in self.cluster))
        return [
            (p[0] * n + p[1]) * k + p[2]
            for p in places
            if all(a == b or d in along for a, b, d in zip(p, here, CLUSTER, strict=True))
        ]


@cache
def _resolved(graph: KernelGraph) -> tuple[Node, ...]:
    return resolve(graph.control.root.body, graph.scope())
