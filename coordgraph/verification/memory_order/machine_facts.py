"""`Facts`: memory, threads and clusters of a lowered graph, for the check `memory order`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from math import prod

from sympy import Integer

from coordgraph.control.asynchronous import AllowNextLaunch
from coordgraph.coordinates.dimensions import Cluster, Shared, User, WarpNumber, Workitem
from coordgraph.elements import dtype
from coordgraph.errors import VerifyError
from coordgraph.kernel import KernelGraph
from coordgraph.tensors import Role
from coordgraph.verification.memory_order.agents import Agent
from coordgraph.verification.memory_order.steps import Place

__all__ = ["Facts"]

TRACKED = (Role.PARTIALS, Role.SUMS, Role.MAPS)
"""Roles of the tensors whose elements several workgroups write and read in one launch."""
MOST_THREADS, MOST_RANKS = 1024, 16
"""Largest numbers of threads of a CTA, and of CTAs of a cluster (CUDA C++ Programming Guide)."""


@dataclass(frozen=True)
class Facts:
    """Memory, threads and clusters of a lowered graph.

    Args:
        threads: number of threads of a workgroup (CTA).
        workitem, warp: ids of the dimensions that number threads and warps; '' if there is none.
        rank: id of the dimension of the CTA's rank in its cluster; '' without clusters.
        cluster: (id, size) of each dimension of the CTA's coordinates in its cluster.
        sizes: bytes of an element, by the id of a dimension of memory.
        lengths: number of elements of an allocation of shared memory, or of a workspace of fixed
            size, by the id of its dimension.
        homes: for each dimension of shared memory, by id: the id of the allocation that contains
            it.
        tracked: ids of the dimensions of memory whose accesses are checked element by element.
        device: ids of the dimensions of device memory.
        overlaps: whether the next launch may begin before this one ends.
    """

    threads: int
    workitem: str
    warp: str
    rank: str
    cluster: Mapping[str, int]
    sizes: Mapping[str, int]
    lengths: Mapping[str, int]
    homes: Mapping[str, str]
    tracked: frozenset[str]
    device: frozenset[str]
    overlaps: bool

    @classmethod
    def of(cls, graph: KernelGraph) -> Facts:
        """Read the facts from a lowered graph.

        Raises:
            VerifyError: the graph has no dimension of threads or several of them, or a number of
                threads in a workgroup, or of workgroups in a cluster, that no GPU allows.
        """
        c = graph.coordinates
        workitems = c.of_kind(Workitem)
        if len(workitems) != 1:
            raise VerifyError(
                f"the graph has {len(workitems)} dimensions of the kind Workitem, but needs "
                "exactly one; lower the graph for a GPU first"
            )
        shared = [memory for memory in c.of_kind(Shared) if not memory.barriers]
        users, tensors = c.of_kind(User), {t.name: t for t in graph.tensors}
        kinds = {m.id: m.element or tensors[m.tensor].dtype for m in shared}
        kinds |= {u.id: tensors[u.tensor].dtype for u in users if u.tensor in tensors}
        device = {u.id for u in users if u.tensor in tensors}
        workspaces = {u.id for u in users if u.id in device and tensors[u.tensor].role in TRACKED}
        sized = [u for u in users if u.id in workspaces and isinstance(u.size, Integer)]
        ranks = [d.id for d in c.of_kind(Cluster)]
        cluster: dict[str, int] = {}
        if ranks:
            (edge,) = (e for e in c.edges_above(ranks[0]) if len(e.upstream) > 1)
            cluster = {name: c[name].fixed_size for name in edge.upstream}
        for what, count, most in (
            ("threads in a workgroup", workitems[0].fixed_size, MOST_THREADS),
            ("workgroups in a cluster", prod(cluster.values()), MOST_RANKS),
        ):
            if not 1 <= count <= most:
                raise VerifyError(
                    f"the graph has {count} {what}; a GPU allows 1 to {most}, so lower the graph "
                    "with another number"
                )
        return cls(
            workitems[0].fixed_size,
            workitems[0].id,
            next((d.id for d in c.of_kind(WarpNumber)), ""),
            ranks[0] if ranks else "",
            cluster,
            {name: dtype(kind).bytes for name, kind in kinds.items()},
            {m.id: m.fixed_size for m in (*shared, *sized)},
            {m.id: m.within or m.id for m in shared},
            frozenset({m.id for m in shared} | workspaces),
            frozenset(device | {t.name for t in graph.tensors if t.role is Role.TABLE}),
            any(graph.control.of_kind(AllowNextLaunch)),
        )

    @property
    def ranks(self) -> int:
        """Number of workgroups (CTAs) in a cluster."""
        return prod(self.cluster.values())

    def is_global(self, dim: str) -> bool:
        """Whether the dimension or tensor `dim` is in device memory."""
        return dim in self.device

    def bytes_of(self, dim: str) -> int:
        """Number of bytes of one element of the buffer or tensor `dim`."""
        return self.sizes[dim]

    def cluster_of(self, workgroup: int) -> int:
        """The number of the cluster to which a workgroup (CTA) belongs."""
        return workgroup // self.ranks

    def peer(self, agent: Agent, rank: int) -> int:
        """The number of the workgroup with the given rank in a simulated thread's cluster."""
        return self.cluster_of(agent.workgroup) * self.ranks + rank

    def receivers(self, agent: Agent, along: tuple[str, ...]) -> list[int]:
        """Numbers of the workgroups that receive a TMA multicast of a simulated thread.

        The receivers are all workgroups whose coordinates in the cluster equal those of the
        thread's workgroup along every dimension that is not in `along`.
        """
        if not along:
            return [agent.workgroup]
        places = list(product(*(range(size) for size in self.cluster.values())))
        own = places[agent.workgroup % self.ranks]
        return [
            self.peer(agent, rank)
            for rank, place in enumerate(places)
            if all(a == b or d in along for a, b, d in zip(place, own, self.cluster, strict=True))
        ]

    def targets(self, agent: Agent, place: Place) -> list[int | None]:
        """Numbers of the workgroups whose shared memory a thread accesses.

        The result is [None] if the thread accesses device memory.
        """
        if place.access.dim not in self.homes:
            return [None]
        if place.rank is not None:
            rank = place.rank if isinstance(place.rank, int) else place.rank[agent.thread]
            return [self.peer(agent, int(rank))]
        return list(self.receivers(agent, place.access.receivers))
