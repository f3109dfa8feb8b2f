"""Passes by name: those that are imported, and those that other distributions offer.

Defining a pass registers it in `PASSES`. A distribution may offer passes without being imported, by
an entry point of the group `coordgraph.passes` for each::

    [project.entry-points."coordgraph.passes"]
    my-schedule = "my_package.schedules:MySchedule"

The name of the entry point is the name of the pass. `find_pass` loads it when a pipeline's text
first names it.
"""

from __future__ import annotations

from functools import cache
from importlib.metadata import EntryPoint, entry_points

from coordgraph import PassError
from passes.base import PASSES, Pass

__all__ = ["GROUP", "PASSES", "all_passes", "find_pass", "offered"]

GROUP = "coordgraph.passes"
"""The entry-point group in which distributions offer passes."""


def find_pass(name: str) -> type[Pass] | None:
    """The pass of a name: one that is imported, or one that an installed distribution offers.

    Raises:
        PassError: the distribution's pass cannot be loaded; it names the distribution.
    """
    if name not in PASSES and name in offered():
        _load(name)
    return PASSES.get(name)


def all_passes() -> dict[str, type[Pass]]:
    """All passes by name; loads those that installed distributions offer.

    Raises:
        PassError: one of those cannot be loaded; it names the distribution.
    """
    for name in offered():
        if name not in PASSES:
            _load(name)
    return dict(PASSES)


@cache
def offered() -> dict[str, tuple[EntryPoint, ...]]:
    """The entry points of installed distributions by the pass's name; reading them loads none."""
    found: dict[str, tuple[EntryPoint, ...]] = {}
    for entry in entry_points(group=GROUP):
        found[entry.name] = (*found.get(entry.name, ()), entry)
    return found


def _load(name: str) -> None:
    first, *others = offered()[name]
    if others:
        both = " and ".join(map(_distribution, (first, *others)))
        raise PassError(f"the pass '{name}' is offered by {both}; uninstall all but one of them")
    whose = f"the pass '{name}' of {_distribution(first)} ({GROUP}: {first.value})"
    try:
        kind = first.load()
    except Exception as error:
        raise PassError(f"{whose} cannot be loaded: {type(error).__name__}: {error}") from error
    if not (isinstance(kind, type) and issubclass(kind, Pass)):
        raise PassError(f"{whose} is no subclass of passes.Pass")
    if kind.name != name:
        raise PassError(f"{whose} has the name '{kind.name}'; entry point and pass must agree")


def _distribution(entry: EntryPoint) -> str:
    found = entry.dist
    return f"the distribution '{found.name} {found.version}'" if found else "a distribution"
