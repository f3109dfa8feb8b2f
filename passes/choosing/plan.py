"""`Plan`: how to multiply. A macro tile, the cluster that divides it, a schedule, and its grid."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from coordgraph import Gemm, KernelGraph, PassError, given
from passes.base import Pass
from passes.choosing.schedules import family
from passes.lowering import CONSUMERS, LowerToHopper
from passes.pipeline import Pipeline

__all__ = ["Plan"]

NO_CLUSTER = (1, 1, 1)
COOPERATIVE = LowerToHopper.consumers
_TEXT = re.compile(
    r"\s*(?P<tile>\d+x\d+x\d+)(?:@c(?P<cluster>\d+x\d+(?:x\d+)?))?"
    rf"(?:@(?P<consumers>{'|'.join(CONSUMERS)}))?\s+"
    r"(?P<pipeline>\S.*?)(?:\s+on\s+(?P<workgroups>\d+))?\s*"
)


@dataclass(frozen=True)
class Plan:
    """How to multiply matrices; written `256x256x64@c2x1 stream-k{owner=last} on 66`.

    Consumers that are not cooperative come behind the cluster: `256x128x64@c2x1@pingpong stream-k`.

    Plans that differ in `workgroups` alone are served by one kernel, of every size of problem.

    Args:
        tile: elements of the macro tile in m, n and k. A cluster has one of them together.
        cluster: workgroups of CUDA that divide it in m, n and k.
        pipeline: the passes that schedule it, separated by commas.
        workgroups: the grid, counted in clusters; None where the schedule has no such choice.
        consumers: how warpgroups share the work; see `LowerToHopper`.

    Raises:
        PassError: a part is not of its type, or a number is less than 1.
    """

    tile: tuple[int, int, int]
    cluster: tuple[int, int, int] = NO_CLUSTER
    pipeline: str = "data-parallel"
    workgroups: int | None = None
    consumers: str = COOPERATIVE

    def __post_init__(self) -> None:
        for name in ("tile", "cluster"):
            object.__setattr__(self, name, _three(getattr(self, name), f"{name} of a plan"))
        given.text(self.pipeline, "pipeline of a plan", PassError)
        if self.workgroups is not None:
            grid = given.whole(self.workgroups, "workgroups of a plan", PassError, least=1)
            object.__setattr__(self, "workgroups", grid)
        if self.consumers not in tuple(CONSUMERS):
            raise PassError(
                f"consumers of a plan = {self.consumers!r}; there are {', '.join(CONSUMERS)}"
            )

    @classmethod
    def parse(cls, text: str) -> Plan:
        """The plan of its text.

        Raises:
            PassError: the text is malformed.
            ParseError: the pipeline is.
        """
        found = _TEXT.fullmatch(given.text(text, "a plan", PassError))
        if not found:
            raise PassError(
                f"'{text}' is no plan; write it like '128x256x64 data-parallel' or "
                "'256x256x64@c2x1 stream-k{owner=last} on 66'"
            )
        cluster = _triple(found["cluster"] or "1x1")
        grid = found["workgroups"]
        pipeline = str(Pipeline.parse(found["pipeline"]))
        consumers = found["consumers"] or COOPERATIVE
        return cls(
            _triple(found["tile"]), cluster, pipeline, int(grid) if grid else None, consumers
        )

    def __str__(self) -> str:
        grid = "" if self.workgroups is None else f" on {self.workgroups}"
        return f"{self.kernel}{grid}"

    @property
    def kernel(self) -> str:
        """The text of all but the grid: plans with the same one share a kernel."""
        divided = self.cluster[:2] if self.cluster[2] == 1 else self.cluster
        cluster = "" if self.cluster == NO_CLUSTER else f"@c{_by(divided)}"
        consumers = "" if self.consumers == COOPERATIVE else f"@{self.consumers}"
        return f"{_by(self.tile)}{cluster}{consumers} {self.pipeline}"

    @property
    def schedule(self) -> Pass:
        """The last pass of the pipeline."""
        return _last_pass(self.pipeline)

    @property
    def family(self) -> str:
        """What kind of schedule it has; see `passes.choosing.schedules.family`."""
        return family(self.schedule)

    @property
    def lowering(self) -> LowerToHopper:
        """The lowering for the copy engine that cluster and consumers ask for, without C."""
        m, n, k = self.cluster
        return LowerToHopper(
            cluster_m=m, cluster_n=n, cluster_k=k, consumers=self.consumers, reads_c=False
        )

    @property
    def asks_for(self) -> str:
        """What of the plan nothing but the lowering for the copy engine has, in words."""
        if self.cluster != NO_CLUSTER:
            return "clusters"
        return "" if self.consumers == COOPERATIVE else f"{self.consumers} consumers"

    def graph(self, gemm: Gemm) -> KernelGraph:
        """The scheduled graph; sizes that `gemm` fixes are fixed in the kernel.

        Raises:
            PassError, VerifyError, ParseError: the plan cannot be applied.
        """
        return Pipeline.parse(self.pipeline)(gemm.graph(self.tile))

    def why_not(self, gemm: Gemm) -> str | None:
        """Why the plan cannot be lowered for the copy engine, or None."""
        return self.lowering.why_not(replace(gemm, m=None, n=None, k=None).graph(self.tile))


@cache
def _last_pass(pipeline: str) -> Pass:
    return Pipeline.parse(pipeline).passes[-1]


def _by(numbers: tuple[int, ...]) -> str:
    return "x".join(map(str, numbers))


def _three(extents: Any, what: str) -> tuple[int, int, int]:
    """The numbers of m, n and k."""
    try:
        m, n, k = extents
    except (TypeError, ValueError):
        raise PassError(f"{what} = {extents!r} is not three numbers, of m, n and k") from None
    m, n, k = (given.whole(each, what, PassError, least=1) for each in (m, n, k))
    return m, n, k


def _triple(text: str) -> tuple[int, int, int]:
    m, n, *k = map(int, text.split("x"))
    return m, n, (k or [1])[0]
