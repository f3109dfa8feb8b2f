"""`Fault`: one fault, as an edit of the text of a correct graph."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from coordgraph import CoordGraphError, Gemm, KernelGraph, parse
from passes import Pipeline

__all__ = ["Fault", "correct"]

TILE = (4, 4, 4)
Edit = tuple[str, str] | Callable[[str], str]
"""Type: (text to replace wherever it occurs, replacement), or a function of the whole text."""


@dataclass(frozen=True)
class Fault:
    """One fault: edits of the text of a correct graph, and the check that must refute it.

    Args:
        name: what is wrong with the graph, as a phrase.
        check: the name of the check that must refute the graph; '' if the edits leave it correct.
        schedule: the pipeline that makes the correct graph.
        edits: the changes of the correct graph's text that make the fault.
        gemm: the arguments of `Gemm` other than its element type.
        level: the level of the graph, such as `scheduled`.
    """

    name: str
    check: str
    schedule: str
    edits: tuple[Edit, ...]
    gemm: Mapping[str, Any] = field(default_factory=dict[str, Any])
    level: str = "scheduled"

    def text(self) -> str:
        """The text of the faulty graph; AssertionError if an edit changes nothing."""
        text = correct(self.schedule, tuple(self.gemm.items())).text()
        for edit in self.edits:
            before = text
            text = edit(text) if callable(edit) else text.replace(*edit)
            assert text != before, f"{self.name}: the edit {edit} changes nothing"
        return text

    def graph(self) -> KernelGraph:
        """Parse the faulty graph; raises CoordGraphError if the parser refuses it."""
        return parse(self.text())

    def refuted_by(self) -> tuple[str, ...]:
        """The names of the checks that refute the faulty graph, which is not launched.

        A graph that the parser or `graph.verify()` refuses is refuted by `well-formed`.
        """
        try:
            graph = self.graph()
            graph.verify()
        except CoordGraphError:
            return ("well-formed",)
        return tuple(verdict.name for verdict in graph.check().refuted)


@cache
def correct(schedule: str, gemm: tuple[tuple[str, Any], ...] = ()) -> KernelGraph:
    """The correct graph that faults are added to: tiles of 4 x 4 x 4, elements of type f32."""
    problem = Gemm("f32", **dict(gemm)).graph(TILE)
    return Pipeline.parse(schedule)(problem, verify="structure")
