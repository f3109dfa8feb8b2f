"""The pass protocol: graph to graph, with a contract on both sides.

A pass is a frozen dataclass; its fields are its options, in Python, in pipeline text and on the
command line (`--import MODULE` for a module of one's own). Write one anywhere: subclass `Pass`,
give it a `name`, say in `why_not` what it cannot do, and return a new graph from `apply`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, fields
from functools import cache
from types import NoneType, UnionType
from typing import Any, ClassVar, Literal, Union, get_args, get_origin, get_type_hints

from coordgraph import CoordGraphError, KernelGraph, PassError
from coordgraph.checks import run_checks

__all__ = ["PASSES", "Pass", "option_types"]

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
        """Why this pass would refuse the graph, or None.

        A pass says here what is its own to say: its options are of their types, and the graph
        passes the checks that it `requires`. To ask, use `refusal`, which looks at those too.
        """
        return None

    @abstractmethod
    def apply(self, graph: KernelGraph) -> KernelGraph:
        """The rewritten graph; called once the contract holds."""

    def refusal(self, graph: KernelGraph) -> str | None:
        """With what words a call would refuse the graph before it rewrites anything, or None.

        It looks at the types of the options, at what the pass `requires`, and asks `why_not`.
        """
        for option, types in option_types(type(self)).items():
            value = getattr(self, option)
            if types and not any(_fits(value, kind) for kind in types):
                wanted = " or ".join(_WORDS[kind] for kind in types)
                return f"{self.name} refuses: {option} = {value!r} should be {wanted}"
        if problems := run_checks(graph, self.requires):
            return f"{self} cannot start: " + "; ".join(problems)
        reason = self.why_not(graph)
        return f"{self} refuses: {reason}" if reason else None

    def __call__(self, graph: KernelGraph) -> KernelGraph:
        """Apply the pass.

        Raises:
            PassError: it refuses the graph, as `refusal` says beforehand; or the rewrite fails, or
                leaves a graph without what the pass `establishes`.
        """
        if reason := self.refusal(graph):
            raise PassError(reason)
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


_WORDS: dict[type, str] = {
    bool: "True or False",
    int: "a whole number",
    float: "a number",
    str: "a string",
    NoneType: "None",
}
_EXACT = 2**53
"""Whole numbers up to here are floats too, without rounding."""


@cache
def option_types(kind: type[Pass]) -> dict[str, tuple[type, ...]]:
    """Which of bool, int, float, str and None each option takes; () for any other type."""
    try:
        hints = get_type_hints(kind)
    except (NameError, TypeError):  # a type that only a type checker or a function sees
        hints = {}
    return {f.name: _plain_types(hints.get(f.name)) for f in fields(kind)}


def _plain_types(hint: Any) -> tuple[type, ...]:
    if get_origin(hint) in (Union, UnionType):
        alternatives = get_args(hint)
    elif get_origin(hint) is Literal:
        alternatives = tuple(type(value) for value in get_args(hint))
    else:
        alternatives = (hint,)
    known = all(isinstance(each, type) and each in _WORDS for each in alternatives)
    return tuple(dict.fromkeys(alternatives)) if known else ()


def _fits(value: object, kind: type) -> bool:
    if isinstance(value, bool):  # an int to Python, not to a reader
        return kind is bool
    if kind is float and isinstance(value, int):
        return abs(value) <= _EXACT
    return isinstance(value, kind) and value == value  # NaN equals no pass that is read back


def _value(value: object) -> str:
    if isinstance(value, float):
        return repr(float(value))  # numpy's floats write their type as well
    return str(value).lower() if value is None or isinstance(value, bool) else str(value)
