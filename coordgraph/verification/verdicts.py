"""Verdicts of checks: a property is proved, holds in tested launches, is refuted or untested."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from coordgraph.errors import VerifyError
from coordgraph.interpreter.faults import places
from coordgraph.verification.launch import Launch

__all__ = ["Counterexample", "Outcome", "Report", "Verdict"]


class Outcome(StrEnum):
    """The result of a check: proved, holds in examined launches, refuted, or not examined."""

    PROVED = "proved for all sizes"
    """The property holds in every launch that the graph's parameters allow."""
    HOLDS = "holds for these sizes"
    """The property holds in every examined launch; it is not known for other launches."""
    REFUTED = "refuted"
    """The property does not hold: there is a counterexample."""
    UNKNOWN = "not examined"
    """No proof was found, and no launch was examined because none is small enough."""


@dataclass(frozen=True)
class Counterexample:
    """One violation of a checked property: what is wrong, in which launch, and where.

    Args:
        problem: what is wrong, as one sentence.
        launch: the launch arguments with which the violation happens; None for every launch.
        workgroups: the numbers of the workgroups that take part, in order.
        tile: the output tile: (m, n), or (product, m, n) in a kernel for several products.
        coordinates: the indices that are known at the operation that violates the property, by
            dimension id.
        interleaving: the events that lead to the violation, in order, if the order of threads
            matters.
    """

    problem: str
    launch: Launch | None = None
    workgroups: tuple[int, ...] = ()
    tile: tuple[int, ...] = ()
    coordinates: Mapping[str, int] = field(default_factory=dict[str, int])
    interleaving: tuple[str, ...] = ()

    def __str__(self) -> str:
        where = places(self.workgroups, self.tile)
        where += [f"{name} = {value}" for name, value in self.coordinates.items()]
        at = f" [{', '.join(where)}]" if where else ""
        start = f"with {self.launch}: " if self.launch is not None else ""
        events = "".join(f"\n  {event}" for event in self.interleaving)
        return f"{start}{self.problem}{at}{events}"

    def json(self) -> dict[str, Any]:
        """The counterexample as plain data for `json.dumps`."""
        found: dict[str, Any] = {"problem": self.problem}
        if self.launch is not None:
            found["launch"] = {"parameters": self.launch.values, "tables": self.launch.tables}
        if self.workgroups:
            found["workgroups"] = list(self.workgroups)
        if self.tile:
            found["tile"] = list(self.tile)
        if self.coordinates:
            found["coordinates"] = dict(self.coordinates)
        if self.interleaving:
            found["interleaving"] = list(self.interleaving)
        return found


@dataclass(frozen=True)
class Verdict:
    """The result of one named check.

    Args:
        name: the name of the check.
        outcome: whether the property is proved, holds in the examined launches, is refuted, or was
            not examined.
        method: the method of the check: `edge laws`, `interval proof`, `enumeration`, or several.
        detail: what was proved or examined, as a phrase.
        counterexamples: the violations that were found, the first of each kind; empty unless the
            property is refuted.
        launches: the examined launches if the property was tested only in these; else empty.
        seconds: the time that the check took, in seconds.
    """

    name: str
    outcome: Outcome
    method: str
    detail: str = ""
    counterexamples: tuple[Counterexample, ...] = ()
    launches: tuple[Launch, ...] = ()
    seconds: float = 0.0

    @property
    def refuted(self) -> bool:
        """Whether the check has a counterexample."""
        return self.outcome is Outcome.REFUTED

    @property
    def summary(self) -> str:
        """The outcome as a phrase for tables, such as `holds for 11 launches`."""
        if self.outcome is not Outcome.HOLDS or not self.launches:
            return self.outcome.value
        count = len(self.launches)
        return f"holds for {count} {'launch' if count == 1 else 'launches'}"

    def json(self) -> dict[str, Any]:
        """The verdict as plain data for `json.dumps`."""
        return {
            "check": self.name,
            "verdict": self.outcome.value,
            "method": self.method,
            "detail": self.detail,
            "counterexamples": [found.json() for found in self.counterexamples],
            "launches": [str(launch) for launch in self.launches],
            "seconds": self.seconds,
        }


@dataclass(frozen=True)
class Report:
    """The verdicts of all checks of a graph; `print(report)` shows a table.

    Args:
        verdicts: the verdict of each check, in the order in which the checks ran.
        launches: the launches that checks could examine. A verdict lists the launches that its
            check did examine.
        not_covered: what no check examines although a user may expect it, as a sentence; '' if
            there is no such thing.
    """

    verdicts: tuple[Verdict, ...]
    launches: tuple[Launch, ...] = ()
    not_covered: str = ""

    def __iter__(self) -> Iterator[Verdict]:
        return iter(self.verdicts)

    def __getitem__(self, name: str) -> Verdict:
        for verdict in self.verdicts:
            if verdict.name == name:
                return verdict
        raise VerifyError(
            f"no check '{name}' ran; choose one of {', '.join(v.name for v in self.verdicts)}"
        )

    @property
    def refuted(self) -> tuple[Verdict, ...]:
        """The verdicts with a counterexample; empty if the graph has no known fault."""
        return tuple(verdict for verdict in self.verdicts if verdict.refuted)

    @property
    def unexamined(self) -> tuple[Verdict, ...]:
        """The verdicts about properties that are neither proved nor examined in any launch."""
        return tuple(verdict for verdict in self.verdicts if verdict.outcome is Outcome.UNKNOWN)

    @property
    def seconds(self) -> float:
        """Time in seconds that all checks took together."""
        return sum(verdict.seconds for verdict in self.verdicts)

    def raise_if_refuted(self) -> Report:
        """Return the report, or raise an error that lists every counterexample.

        Raises:
            VerifyError: a check is refuted; `problems` has a message for each counterexample.
        """
        if problems := [
            f"{verdict.name}: {found}"
            for verdict in self.refuted
            for found in verdict.counterexamples
        ]:
            raise VerifyError(*problems)
        return self

    def json(self) -> dict[str, Any]:
        """The report as plain data for `json.dumps`."""
        return {
            "refuted": bool(self.refuted),
            "verdicts": [verdict.json() for verdict in self.verdicts],
            "launches": [str(launch) for launch in self.launches],
            "not_covered": self.not_covered,
            "seconds": self.seconds,
        }

    def __str__(self) -> str:
        rows = [("check", "verdict", "method", "detail", "time")]
        rows += [
            (v.name, v.summary, v.method, v.detail, f"{v.seconds * 1e3:.0f} ms")
            for v in self.verdicts
        ]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = [
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
            for row in rows
        ]
        for verdict in self.refuted:
            lines += [f"{verdict.name}: {found}" for found in verdict.counterexamples]
        if self.not_covered:
            lines.append(self.not_covered)
        return "\n".join(lines)
