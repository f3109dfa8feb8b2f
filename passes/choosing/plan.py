"""`Plan`: how to multiply: a macro tile, the cluster that divides it, a schedule, and its grid."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from coordgraph import Gemm, KernelGraph, PassError, validation
from passes.base import Pass
from passes.choosing.known_schedules import family
from passes.lowering.architectures import first_with, option_values
from passes.pipeline import Pipeline

__all__ = ["Plan"]

NO_CLUSTER = (1, 1, 1)
CLUSTER_OPTIONS = ("cluster_m", "cluster_n", "cluster_k")
COOPERATIVE = "cooperative"
_TEXT = re.compile(
    r"\s*(?P<tile>\d+x\d+x\d+)(?:@c(?P<cluster>\d+x\d+(?:x\d+)?))?"
    r"(?:@(?P<consumers>[a-z][a-z-]*))?\s+"
    r"(?P<pipeline>\S.*?)(?:\s+on\s+(?P<workgroups>\d+))?\s*"
)


@dataclass(frozen=True)
class Plan:
    """How to multiply matrices; written `256x256x64@c2x1 stream-k{owner=last} on 66`.

    Consumers other than `cooperative` follow the cluster: `256x128x64@c2x1@pingpong stream-k`.

    Plans that differ only in `workgroups` share a kernel, which takes problems of every size.

    Args:
        tile: elements of the macro tile along m, n and k; a cluster computes one macro tile.
        cluster: CTAs of a cluster along m, n and k.
        pipeline: the text of the passes that schedule the problem, separated by commas.
        workgroups: the grid, counted in clusters; None if the schedule fixes it.
        consumers: how warpgroups share the work, for lowerings with the option `consumers`.

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
        validation.text(self.pipeline, "pipeline of a plan", PassError)
        if self.workgroups is not None:
            grid = validation.whole(self.workgroups, "workgroups of a plan", PassError, least=1)
            object.__setattr__(self, "workgroups", grid)
        known = option_values("consumers")
        if self.consumers not in known:
            raise PassError(
                f"consumers of a plan = {self.consumers!r}; there are {', '.join(known)}"
            )

    @classmethod
    def parse(cls, text: str) -> Plan:
        """Parse the text of a plan.

        Raises:
            PassError: the text is malformed.
            ParseError: the text of the pipeline is malformed.
        """
        found = _TEXT.fullmatch(validation.text(text, "a plan", PassError))
        if not found or (found["consumers"] or COOPERATIVE) not in option_values("consumers"):
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
        """The text of the plan without its grid; plans with the same text share a kernel."""
        divided = self.cluster[:2] if self.cluster[2] == 1 else self.cluster
        cluster = "" if self.cluster == NO_CLUSTER else f"@c{_by(divided)}"
        consumers = "" if self.consumers == COOPERATIVE else f"@{self.consumers}"
        return f"{_by(self.tile)}{cluster}{consumers} {self.pipeline}"

    @property
    def schedule(self) -> Pass:
        """The schedule: the last pass of the pipeline."""
        return _last_pass(self.pipeline)

    @property
    def family(self) -> str:
        """The kind of its schedule; see `passes.choosing.known_schedules.family`."""
        return family(self.schedule)

    @property
    def options(self) -> dict[str, Any]:
        """The options that the plan sets of a lowering, by name, without those at defaults."""
        axes = zip(CLUSTER_OPTIONS, self.cluster, strict=True)
        found: dict[str, Any] = {name: count for name, count in axes if count > 1}
        return found if self.consumers == COOPERATIVE else {**found, "consumers": self.consumers}

    @property
    def lowering(self) -> Pass:
        """The lowering with the plan's options, for launches without C.

        It is the first registered lowering that has options for clusters and consumers.
        """
        architecture, lowering = first_with(*CLUSTER_OPTIONS, "consumers", "reads_c")
        return lowering.options(architecture.name, **self.options, reads_c=False)

    @property
    def asks_for(self) -> str:
        """The part of the plan that not every lowering supports, as text for messages, or ''."""
        if self.cluster != NO_CLUSTER:
            return "clusters"
        return "" if self.consumers == COOPERATIVE else f"{self.consumers} consumers"

    def graph(self, gemm: Gemm) -> KernelGraph:
        """The scheduled graph; sizes that `gemm` fixes are fixed in the kernel.

        Raises:
            PassError, VerifyError, ParseError: the plan cannot be applied.
        """
        return Pipeline.parse(self.pipeline)(gemm.graph(self.tile), verify="outside")

    def why_not(self, gemm: Gemm) -> str | None:
        """Why `lowering` refuses the plan, or None."""
        return self.lowering.why_not(replace(gemm, m=None, n=None, k=None).graph(self.tile))


@cache
def _last_pass(pipeline: str) -> Pass:
    return Pipeline.parse(pipeline).passes[-1]


def _by(numbers: tuple[int, ...]) -> str:
    return "x".join(map(str, numbers))


def _three(extents: Any, what: str) -> tuple[int, int, int]:
    """Check that `extents` are three integers of at least 1, and return them."""
    try:
        m, n, k = extents
    except (TypeError, ValueError):
        raise PassError(f"{what} = {extents!r} is not three numbers, of m, n and k") from None
    m, n, k = (validation.whole(each, what, PassError, least=1) for each in (m, n, k))
    return m, n, k


def _triple(text: str) -> tuple[int, int, int]:
    m, n, *k = map(int, text.split("x"))
    return m, n, (k or [1])[0]
