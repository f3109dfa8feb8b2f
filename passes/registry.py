"""Lookup of passes by name: those of imported modules and those of installed distributions.

Defining a pass registers it in `PASSES`. A distribution may also offer passes whose modules are not
imported yet, with one entry point of the group `coordgraph.passes` for each pass::

    [project.entry-points."coordgraph.passes"]
    my-schedule = "my_package.schedules:MySchedule"

The name of the entry point is the name of the pass. `find_pass` imports the module of such a pass
when the text of a pipeline first names the pass.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from inspect import isabstract

from coordgraph import PassError
from passes.base import PASSES, Pass

__all__ = ["GROUP", "PASSES", "all_passes", "find_pass", "offered", "with_advice"]

GROUP = "coordgraph.passes"
"""Name of the entry-point group in which installed distributions list their passes."""


def find_pass(name: str) -> type[Pass] | None:
    """The pass class that is called `name`; None if there is none.

    If only an installed distribution offers a pass of that name, its module is imported first.

    Raises:
        PassError: the pass of a distribution cannot be loaded; the message names the distribution.
    """
    if name not in PASSES and name in offered():
        _load(name)
    return PASSES.get(name)


def all_passes() -> dict[str, type[Pass]]:
    """All pass classes by name, including those that installed distributions offer.

    Raises:
        PassError: the pass of a distribution cannot be loaded; the message names the distribution.
    """
    for name in offered():
        if name not in PASSES:
            _load(name)
    return dict(PASSES)


@cache
def offered() -> dict[str, tuple[EntryPoint, ...]]:
    """The entry points of installed distributions' passes, by name of the pass; none is loaded."""
    found: dict[str, tuple[EntryPoint, ...]] = {}
    for entry in entry_points(group=GROUP):
        found[entry.name] = (*found.get(entry.name, ()), entry)
    return found


def with_advice(hint: str) -> str:
    """`hint`, and a sentence about pass classes that no pipeline finds, as they define no `name`.

    The classes are those at the top level of imported modules, without abstract ones.
    """
    found = [kind for kind in _subclasses(Pass) if _is_nameless(kind)]
    if not found:
        return hint
    one = len(found) == 1
    names = ", ".join(f"{kind.__module__}.{kind.__qualname__}" for kind in found)
    words = "-".join(re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z0-9]+", found[0].__name__)).lower()
    return hint + ("" if hint.endswith("?") else ".") + (
        f" The pass class{'' if one else 'es'} {names} define{'s' if one else ''} no name; write a "
        f'line such as name = "{words or "my-pass"}" in {"the" if one else "each"} class'
    )


def _is_nameless(kind: type[Pass]) -> bool:
    """Whether a class at the top level of its module is a pass, but defines no name."""
    module = sys.modules.get(kind.__module__)
    top_level = getattr(module, kind.__qualname__, None) is kind
    return top_level and not isabstract(kind) and not kind.__dict__.get("name")


def _subclasses(kind: type[Pass]) -> Iterator[type[Pass]]:
    for each in kind.__subclasses__():
        yield each
        yield from _subclasses(each)


def _load(name: str) -> None:
    """Load the pass called `name` of an installed distribution, which registers it in `PASSES`.

    Raises:
        PassError: several distributions offer the name, or the entry point does not load, is no
            subclass of `Pass`, or has another name.
    """
    first, *others = offered()[name]
    if others:
        both = " and ".join(map(_distribution, (first, *others)))
        raise PassError(
            f"the pass '{name}' is offered by {both}; uninstall all but one of these distributions"
        )
    whose = f"the pass '{name}' of {_distribution(first)} ({GROUP}: {first.value})"
    try:
        kind = first.load()
    except Exception as error:
        raise PassError(
            f"{whose} cannot be loaded: {type(error).__name__}: {error}; correct the entry point "
            "or its module, or uninstall the distribution"
        ) from error
    if not (isinstance(kind, type) and issubclass(kind, Pass)):
        raise PassError(
            f"{whose} is no subclass of passes.Pass; derive it from this class, or correct the "
            "entry point"
        )
    if kind.name != name:
        raise PassError(
            f"{whose} has the name '{kind.name}'; give the entry point and the pass the same name"
        )


def _distribution(entry: EntryPoint) -> str:
    """Text for error messages: the name and version of the distribution of an entry point."""
    found = entry.dist
    return f"the distribution '{found.name} {found.version}'" if found else "a distribution"
