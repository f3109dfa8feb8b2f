"""`Plan`: how to multiply: a macro tile, the cluster that computes it, a schedule, and its grid."""

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

__all__ = ["CLUSTER_OPTIONS", "Plan"]

NO_CLUSTER = (1, 1, 1)
"""The value of `Plan.cluster` for a plan without clusters, in which one CTA computes a macro
tile."""
CLUSTER_OPTIONS = ("cluster_m", "cluster_n", "cluster_k")
"""Names of the lowering options for the number of CTAs in a cluster along m, n and k."""
COOPERATIVE = "cooperative"
"""The default of `Plan.consumers`: all warpgroups of a CTA compute one tile together."""
_TEXT = re.compile(
    r"\s*(?P<tile>\d+x\d+x\d+)(?:@c(?P<cluster>\d+x\d+(?:x\d+)?))?"
    r"(?:@(?P<consumers>[a-z][a-z-]*))?\s+"
    r"(?P<pipeline>\S.*?)(?:\s+on\s+(?P<workgroups>\d+))?\s*"
)
"""Pattern of the text of a plan: `256x128x64@c2x1@pingpong stream-k{owner=last} on 66`."""


@dataclass(frozen=True)
class Plan:
    """How to multiply matrices: tile, cluster, schedule and grid.

    The text of a plan is `256x256x64@c2x1 stream-k{owner=last} on 66`: tile, cluster (after `@c`),
    passes, and number of workgroups. Consumers other than `cooperative` follow the cluster:
    `256x128x64@c2x1@pingpong stream-k`.

    Plans that differ only in `workgroups` share a kernel, which accepts problems of every size.

    Args:
        tile: elements of the macro tile along m, n and k; a cluster computes one macro tile.
        cluster: number of CTAs of a cluster along m, n and k.
        pipeline: the text of the passes that schedule the problem, separated by commas.
        workgroups: the grid, as a number of clusters; None if the schedule determines the grid.
        consumers: how warpgroups share the work, `cooperative` (on one tile) or `pingpong` (each
            on tiles of its own), for lowerings with the option `consumers`.

    Raises:
        PassError: a field has the wrong type, or a number is less than 1.
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
                f"consumers of a plan = {self.consumers!r} is unknown; use one of "
                f"{', '.join(known)}"
            )

    @classmethod
    def parse(cls, text: str) -> Plan:
        """Parse the text of a plan, such as `128x256x64 stream-k{owner=last} on 132`.

        Raises:
            PassError: the text is malformed, or names unknown consumers.
            ParseError: the text of the passes is malformed.
        """
        found = _TEXT.fullmatch(validation.text(text, "a plan", PassError))
        if text.strip() == "auto":
            raise PassError(
                "'auto' is no plan of a call; leave out plan=, and matmul chooses one, as --plan "
                "auto does on the command line"
            )
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
        """The text of the plan without its grid; plans with equal texts share one kernel."""
        divided = self.cluster[:2] if self.cluster[2] == 1 else self.cluster
        cluster = "" if self.cluster == NO_CLUSTER else f"@c{_by(divided)}"
        consumers = "" if self.consumers == COOPERATIVE else f"@{self.consumers}"
        return f"{_by(self.tile)}{cluster}{consumers} {self.pipeline}"

    @property
    def schedule(self) -> Pass:
        """The schedule of the plan: the last pass of its pipeline."""
        return _last_pass(self.pipeline)

    @property
    def family(self) -> str:
        """The schedule's name with its reduction and similar options, such as `stream-k tree`."""
        return family(self.schedule)

    @property
    def options(self) -> dict[str, Any]:
        """The lowering options that the plan sets to other values than the defaults, by name."""
        axes = zip(CLUSTER_OPTIONS, self.cluster, strict=True)
        found: dict[str, Any] = {name: count for name, count in axes if count > 1}
        return found if self.consumers == COOPERATIVE else {**found, "consumers": self.consumers}

    @property
    def lowering(self) -> Pass:
        """The lowering pass with the plan's options, for launches without C.

        The pass's class is that of the first registered lowering that has options for clusters and
        consumers.
        """
        architecture, lowering = first_with(*CLUSTER_OPTIONS, "consumers", "reads_c")
        return lowering.options(architecture.name, **self.options, reads_c=False)

    @property
    def asks_for(self) -> str:
        """A feature that the plan needs and some lowerings lack, as text for errors; '' if none."""
        if self.cluster != NO_CLUSTER:
            return "clusters"
        return "" if self.consumers == COOPERATIVE else f"{self.consumers} consumers"

    def graph(self, gemm: Gemm) -> KernelGraph:
        """The scheduled graph of a problem; extents that `gemm` fixes are constants in the kernel.

        Raises:
            PassError, VerifyError, ParseError: the plan cannot be applied to the problem.
        """
        return Pipeline.parse(self.pipeline)(gemm.graph(self.tile), verify="outside")

    def why_not(self, gemm: Gemm) -> str | None:
        """Why the lowering refuses the plan for a problem of any size; None if it accepts the plan.

        The sizes of `gemm` are ignored.
        """
        return self.lowering.why_not(replace(gemm, m=None, n=None, k=None).graph(self.tile))


@cache
def _last_pass(pipeline: str) -> Pass:
    """The last pass of a pipeline's text, which is the schedule."""
    return Pipeline.parse(pipeline).passes[-1]


def _by(numbers: tuple[int, ...]) -> str:
    """Numbers as text, joined by `x`: `256x128x64`."""
    return "x".join(map(str, numbers))


def _three(extents: Any, what: str) -> tuple[int, int, int]:
    """Check that `extents` is a sequence of three integers of at least 1; return it as a tuple.

    Args:
        extents: the value to check.
        what: what the value is, for the error message.

    Raises:
        PassError: there are not three numbers, or one is not an integer of at least 1.
    """
    try:
        m, n, k = extents
    except (TypeError, ValueError):
        raise PassError(
            f"{what} = {extents!r} is not three numbers; give one each for m, n and k"
        ) from None
    m, n, k = (validation.whole(each, what, PassError, least=1) for each in (m, n, k))
    return m, n, k


def _triple(text: str) -> tuple[int, int, int]:
    """Parse two or three numbers joined by `x`; a missing third number is 1."""
    m, n, *k = map(int, text.split("x"))
    return m, n, (k or [1])[0]
