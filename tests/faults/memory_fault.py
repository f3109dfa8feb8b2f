"""`MemoryFault`: a faulty lowered graph, made by editing the text of a correct one."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from typing import Any

from coordgraph import Gemm, KernelGraph, parse
from coordgraph.epilogue import ALPHA_BETA
from coordgraph.verification.memory_order.check import NAME as MEMORY_ORDER
from passes import Pipeline
from passes.lowering import LowerToHopper, LowerToTensorCores
from tests.faults.fault import Edit
from tests.support.epilogues import EPILOGUES

__all__ = [
    "CLUSTER",
    "PINGPONG",
    "SPLIT",
    "SQUARE",
    "MemoryFault",
    "between",
    "correct",
    "drop",
    "fault",
    "swap",
    "table",
]

STAGES = 3
CLUSTER = LowerToHopper(stages=STAGES, cluster_m=2)
SQUARE = LowerToHopper(stages=STAGES, cluster_m=2, cluster_n=2)
SPLIT = LowerToHopper(stages=STAGES, cluster_k=2)
PINGPONG = LowerToHopper(stages=STAGES, consumers="pingpong")


@dataclass(frozen=True)
class MemoryFault:
    """A fault of a lowered graph: how to make it, and what the check must say.

    Args:
        name: what is wrong with the graph, as a phrase.
        schedule: the pipeline that makes the scheduled graph.
        edits: the changes of the correct lowered graph's text that make the fault.
        lowering: the options of the lowering to sm_90a; None lowers to sm_80.
        shows: a text that the counterexample must contain.
        gemm: further arguments of `Gemm`.
        operand: whether the epilogue adds an operand as large as D, which TMA loads.
        check: the name of the check that must refute the graph.
    """

    name: str
    schedule: str
    edits: tuple[Edit, ...]
    shows: str
    lowering: LowerToHopper | None = LowerToHopper(stages=STAGES)  # noqa: RUF009 - frozen
    operand: bool = False
    gemm: tuple[tuple[str, Any], ...] = ()
    check: str = MEMORY_ORDER

    @property
    def target(self) -> str:
        """The architecture, `sm_80` or `sm_90a`, that the faulty graph is lowered for."""
        return "sm_80" if self.lowering is None else "sm_90a"

    @property
    def kernel(self) -> str:
        """Text after the architecture's name in the table of faults: `, ` and the kernel's feature.

        Features are a cluster, ping-pong, several products, an epilogue of two sums, or an operand
        loaded by TMA; the text is empty if the kernel has none.
        """
        found = {
            CLUSTER: "a cluster along m",
            SQUARE: "a cluster along m and n",
            SPLIT: "a cluster along k",
            PINGPONG: "ping-pong",
        }
        more = found.get(self.lowering) if self.lowering else None
        given = dict(self.gemm)
        more = "groups along m" if "grouped" in given else more
        more = "a list of products" if "group_axis" in given else more
        more = "an epilogue of two sums" if "epilogue" in given else more
        more = "an operand loaded by TMA" if self.operand else more
        return f", {more}" if more else ""

    def graph(self) -> KernelGraph:
        """Make the faulty graph; AssertionError if an edit changes nothing."""
        text = correct(self.schedule, self.lowering, self.operand, self.gemm).text()
        for edit in self.edits:
            before = text
            text = edit(text) if callable(edit) else text.replace(*edit)
            assert text != before, f"{self.name}: the edit {edit} changes nothing"
        return parse(text)


@cache
def correct(
    schedule: str,
    lowering: LowerToHopper | None,
    operand: bool = False,
    gemm: tuple[tuple[str, Any], ...] = (),
) -> KernelGraph:
    """A correct lowered graph, before a test plants a fault; workgroups have 64 x 64 x 64 tiles."""
    m, n, k = (1, 1, 1)
    if lowering:
        m, n, k = lowering.cluster_m, lowering.cluster_n, lowering.cluster_k
    function = EPILOGUES[0].function if operand else ALPHA_BETA
    given: dict[str, Any] = {"transpose_b": True, "epilogue": function, **dict(gemm)}
    problem = Gemm("bf16", **given)
    scheduled = Pipeline.parse(schedule)(
        problem.graph((64 * m, 64 * n, 64 * k)), verify="structure"
    )
    return (lowering or LowerToTensorCores(stages=STAGES))(scheduled)


def drop(line: str, number: int = 0) -> Edit:
    """Edit: remove a line that contains `line`; `number` selects one of several, from 0."""

    def edit(text: str) -> str:
        lines = text.split("\n")
        at = [i for i, found in enumerate(lines) if line in found]
        del lines[at[number]]
        return "\n".join(lines)

    return edit


def swap(first: str, second: str) -> Edit:
    """Edit: exchange the first line that contains `first` with the next one with `second`."""

    def edit(text: str) -> str:
        lines = text.split("\n")
        a = next(i for i, found in enumerate(lines) if first in found)
        b = next(i for i, found in enumerate(lines) if i > a and second in found)
        lines[a], lines[b] = lines[b], lines[a]
        return "\n".join(lines)

    return edit


def between(line: str, after: str) -> Edit:
    """Edit: remove the first line with `line` that follows the first line with `after`."""

    def edit(text: str) -> str:
        lines = text.split("\n")
        start = next(i for i, found in enumerate(lines) if after in found)
        del lines[next(i for i, found in enumerate(lines) if i > start and line in found)]
        return "\n".join(lines)

    return edit


def fault(name: str, schedule: str, shows: str, *edits: Edit, **options: Any) -> MemoryFault:
    """Make a `MemoryFault`; the edits are the last positional arguments."""
    return MemoryFault(name, schedule, edits, shows, **options)


def table(faults: Iterable[MemoryFault]) -> str:
    """Faults of lowered graphs as a Markdown table."""
    rows = ["| target | fault | put into |", "|---|---|---|"]
    rows += [f"| {f.target} | {f.name} | `{f.schedule}`{f.kernel} |" for f in faults]
    return "\n".join(rows) + "\n"
