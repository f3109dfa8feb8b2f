"""`NamedCheck`: a property of a graph, and the function that decides it from evidence."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

from coordgraph.verification.evidence import Evidence
from coordgraph.verification.launch import Launch
from coordgraph.verification.verdicts import Counterexample, Outcome

__all__ = ["Finding", "NamedCheck", "enumerated", "named_check"]

SHOWN = 3
"""The largest number of counterexamples that a verdict lists."""


class Finding(NamedTuple):
    """A check's outcome, method, detail, counterexamples and examined launches, as in `Verdict`."""

    outcome: Outcome
    method: str
    detail: str = ""
    counterexamples: tuple[Counterexample, ...] = ()
    launches: tuple[Launch, ...] = ()


@dataclass(frozen=True)
class NamedCheck:
    """A named check: decides whether a graph has one property.

    Args:
        name: the name of the check.
        states: the property, as one sentence.
        examine: the function that decides the property from a graph's traces and runs (`Evidence`).
    """

    name: str
    states: str
    examine: Callable[[Evidence], Finding]


def named_check(name: str, states: str) -> Callable[[Callable[[Evidence], Finding]], NamedCheck]:
    """Decorator that makes a function the named check of a property.

    Args:
        name: the name of the check.
        states: the property, as one sentence.
    """

    def make(examine: Callable[[Evidence], Finding]) -> NamedCheck:
        return NamedCheck(name, states, examine)

    return make


def enumerated(examined: Sequence[Launch], what: str, found: Iterable[Counterexample]) -> Finding:
    """The result of a check that enumerates launches.

    The outcome is `REFUTED` if there are counterexamples, `UNKNOWN` if no launch was examined, else
    `HOLDS`.

    Args:
        examined: the launches that were examined.
        what: what was examined in each launch, as a phrase for the verdict, such as `messages`.
        found: the counterexamples.
    """
    if counterexamples := tuple(islice(found, SHOWN)):
        return Finding(Outcome.REFUTED, "enumeration", "", counterexamples)
    if not examined:
        return Finding(Outcome.UNKNOWN, "enumeration", "no launch of the graph is small enough")
    count = len(examined)
    detail = f"{what} of {count} {'launch' if count == 1 else 'launches'}"
    return Finding(Outcome.HOLDS, "enumeration", detail, launches=tuple(examined))
