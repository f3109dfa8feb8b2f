"""The pass protocol: graph to graph, with a contract on both sides.

A pass is a frozen dataclass; its fields are its options, in Python, in pipeline text and on the
command line. Write one anywhere: subclass `Pass`, give it a `name`, say in `why_not` what it
cannot do, and return a new graph from `apply`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, fields
from typing import ClassVar

from coordgraph import CoordGraphError, KernelGraph, PassError
from coordgraph.checks import run_checks

__all__ = ["PASSES", "Pass"]

PASSES: dict[str, type[Pass]] = {}


@dataclass(frozen=True)
class Pass(ABC):
    """Turns one kernel graph into another, or refuses in words; it never skips silently."""

    name: ClassVar[str] = ""
    """How pipelines call it."""
    requires: ClassVar[tuple[str, ...]] = ("problem",)
    """Named checks that the graph must pass before."""
    establishes: ClassVar[tuple[str, ...]] = ()
    """Named checks that the graph passes after."""

    def __init_subclass__(cls) -> None:
        if cls.__dict__.get("name"):
            PASSES[cls.name] = cls

    def why_not(self, graph: KernelGraph) -> str | None:
        """Why this pass would refuse the graph, or None."""
        return None

    @abstractmethod
    def apply(self, graph: KernelGraph) -> KernelGraph:
        """The rewritten graph; called once the contract holds."""

    def __call__(self, graph: KernelGraph) -> KernelGraph:
        """Apply the pass.

        Raises:
            PassError: the contract does not hold before or after, or `why_not` says no.
        """
        if problems := run_checks(graph, self.requires):
            raise PassError(f"{self} cannot start: " + "; ".join(problems))
        if reason := self.why_not(graph):
            raise PassError(f"{self} refuses: {reason}")
        try:
            result = self.apply(graph)
        except PassError:
            raise
        except CoordGraphError as error:
            raise PassError(f"{self} failed: {error}") from error
        if problems := run_checks(result, ("well-formed", *self.establishes)):
            raise PassError(f"{self} left a broken graph: " + "; ".join(problems))
        return result

    @property
    def options(self) -> dict[str, object]:
        """The options that differ from their defaults."""
        return {f.name: v for f in fields(self) if (v := getattr(self, f.name)) != f.default}

    def __str__(self) -> str:
        """The pipeline text: `stream-k{workgroups=132}`; parses back to an equal pass."""
        inside = ",".join(f"{name}={_value(value)}" for name, value in self.options.items())
        return f"{self.name}{{{inside}}}" if inside else self.name


def _value(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
