"""The pass protocol: graph to graph, with a contract on both sides.

A pass is a frozen dataclass; its fields are its options, in Python, in pipeline text and on the
command line (`--import MODULE` for a module of one's own). Write one anywhere: subclass `Pass`,
give it a `name`, say in `why_not` what it cannot do, and return a new graph from `apply`.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Literal, get_args

from coordgraph import CoordGraphError, KernelGraph, PassError
from coordgraph.checks import run_checks
from passes.options import option, option_types, wrong_option
from passes.work_check import work_problems

__all__ = ["PASSES", "Pass", "Verify", "option", "option_types"]

Verify = Literal["structure", "outside", "work"]
"""How thoroughly the result of a pass is checked. `structure` runs the checks that the pass
establishes. `work` also traces the workgroups of a scheduled graph on small problems, in the
interpreter (`passes.work_check`); `outside` does so only for passes that are not this library's."""
LIBRARY = __name__.partition(".")[0]


PASSES: dict[str, type[Pass]] = {}
"""Every pass that is defined and imported, by name; defining a class with a name adds it."""
_NAME = re.compile(r"[A-Za-z0-9_.+-]+")
"""Allowed names of passes: pipeline text can hold no other characters."""
RESERVED = ("lower-to-host", "lower-to-tensor-cores", "lower-to-hopper")
"""The names of passes of this library that `import passes` does not define."""


def _register(kind: type[Pass]) -> None:
    """Add a pass class to `PASSES`.

    Defining the pass again in the same module replaces it, as in a notebook.

    Raises:
        PassError: the name is no string, it has characters that pipeline text cannot hold, or a
            pass of another module has it.
    """
    if not isinstance(kind.name, str):
        raise PassError(
            f"{kind.__qualname__} has the name {kind.name!r} of type {type(kind.name).__name__}; "
            'write a string, as in name = "my-schedule"'
        )
    if not _NAME.fullmatch(kind.name):
        raise PassError(
            f"{kind.__qualname__} has the name '{kind.name}', which the text of pipelines cannot "
            "hold; use letters, digits, '.', '_', '+' and '-'"
        )
    other = PASSES.get(kind.name)
    if other is not None and other.__module__ != kind.__module__:
        raise PassError(
            f"{kind.__module__}.{kind.__qualname__} has the name '{kind.name}' of "
            f"{other.__module__}.{other.__qualname__}; give it another name"
        )
    if kind.name in RESERVED and not _of_library(kind):
        raise PassError(
            f"{kind.__module__}.{kind.__qualname__} has the name '{kind.name}' of a pass in "
            "passes.lowering; give it another name"
        )
    PASSES[kind.name] = kind


def _of_library(kind: type[Pass]) -> bool:
    """Whether a pass is this library's own."""
    return kind.__module__.partition(".")[0] == LIBRARY


def _wrong_name(kind: type[Pass]) -> str | None:
    """A message about a class without a name, or None."""
    if kind.name:
        return None
    return f'the pass {kind.__qualname__} has no name; write name = "…" in its class'


@dataclass(frozen=True)
class Pass(ABC):
    """Rewrites a kernel graph, or raises PassError with the reason; it never skips silently.

    Raises:
        PassError: an option has a type or a value that its field does not allow, or the class has
            no name.
    """

    name: ClassVar[str] = ""
    """Name of the pass in pipeline text."""
    requires: ClassVar[tuple[str, ...]] = ("problem",)
    """Named checks that the graph must pass before the rewrite."""
    establishes: ClassVar[tuple[str, ...]] = ()
    """Named checks that the graph passes after the rewrite. `scheduled` also promises exact work:
    every iteration once, one epilogue and store for every output tile, a signal for every wait."""

    def __init_subclass__(cls) -> None:
        if cls.__dict__.get("name"):
            _register(cls)

    def __post_init__(self) -> None:
        if wrong := _wrong_name(type(self)):
            raise PassError(wrong)
        if wrong := wrong_option(self):
            raise PassError(f"{self.name} refuses: {wrong}")

    def why_not(self, graph: KernelGraph) -> str | None:
        """Why this pass would refuse the graph, or None.

        A subclass overrides this method for reasons of its own: when it is called, the graph passes
        the checks in `requires`, and every option has an allowed type and value. Callers use
        `refusal`, which checks those too.
        """
        return None

    @abstractmethod
    def apply(self, graph: KernelGraph) -> KernelGraph:
        """Return the rewritten graph; called only if `refusal` is None."""

    @property
    def neighbours(self) -> bool:
        """Whether consecutive workgroups work on neighbouring tiles at the same time.

        The cost model of `passes.choosing` assumes it for the L2 cache, so schedules for which this
        is False are not chosen.
        """
        return True

    @classmethod
    def variants(cls, tile: tuple[int, int, int]) -> tuple[Pass, ...]:
        """Schedules of this class that `codegen.matmul` may choose, for a macro tile.

        By default there are none. Variants leave the number of workgroups open, since a plan sets
        it. Schedules whose result differs from run to run (`reduction=atomic`) must not be listed.
        """
        return ()

    def suits(self, tiles: Any, depth: Any, workgroups: Any) -> Any:
        """Whether a schedule is worth considering; each argument is a number or a NumPy column.

        Args:
            tiles: output tiles of the problem.
            depth: k tiles of an output tile.
            workgroups: workgroups that are resident at a time.
        """
        return True

    def scaled(self, tile: tuple[int, int, int], to: tuple[int, int, int]) -> Pass:
        """The schedule for macro tiles `to` that corresponds to this one for macro tiles `tile`.

        Only a schedule with options in elements of a tile overrides this method.

        Raises:
            PassError: no schedule corresponds.
        """
        return self

    def refusal(self, graph: KernelGraph) -> str | None:
        """The message with which a call of the pass would refuse the graph, or None.

        It checks the options, the checks in `requires`, and `why_not`; nothing is rewritten.

        Raises:
            PassError: a check or `why_not` itself fails.
        """
        if wrong := _wrong_name(type(self)):  # a subclass may override __post_init__
            return wrong
        if wrong := wrong_option(self):
            return f"{self.name} refuses: {wrong}"
        if not isinstance(graph, KernelGraph):
            return f"{self} cannot start: it needs a KernelGraph, not a {type(graph).__name__}"
        with self._named("the check of what it requires"):
            problems = run_checks(graph, self.requires)
        if problems:
            return f"{self} cannot start: " + "; ".join(problems)
        with self._named("why_not"):
            reason = self.why_not(graph)
        if reason is not None and not isinstance(reason, str):
            raise PassError(f"{self} failed: why_not returned {reason!r}, not words or None")
        return f"{self} refuses: {reason}" if reason else None

    def __call__(self, graph: KernelGraph, verify: Verify = "work") -> KernelGraph:
        """Apply the pass.

        Args:
            graph: the graph to rewrite.
            verify: how thoroughly the result is checked; see `Verify`.

        Raises:
            PassError: the pass refuses the graph (see `refusal`), the rewrite fails, or its result
                fails a check that the pass `establishes`.
        """
        if verify not in get_args(Verify):
            known = ", ".join(get_args(Verify))
            raise PassError(f"verify={verify!r} is unknown; there are {known}")
        if reason := self.refusal(graph):
            raise PassError(reason)
        with self._named("apply"):
            result = self.apply(graph)
        if not isinstance(result, KernelGraph):
            raise PassError(
                f"{self} failed: apply returned {type(result).__name__}, not a KernelGraph; end "
                "it with `return e.graph`"
            )
        with self._named("the check of its result"):
            problems = run_checks(result, ("well-formed", *self.establishes))
            if not problems and self._follows_work(verify):
                problems = [*work_problems(result)]
        if problems:
            raise PassError(f"{self} left a broken graph: " + "; ".join(problems))
        return result

    def _follows_work(self, verify: Verify) -> bool:
        """Whether the result's work is checked on small problems, at a level of `Verify`."""
        wanted = verify == "work" or (verify == "outside" and not _of_library(type(self)))
        return wanted and "scheduled" in self.establishes

    @contextmanager
    def _named(self, where: str) -> Generator[None]:
        """Turn errors inside into a PassError that names the pass, unless they already do."""
        try:
            yield
        except PassError as error:
            if str(error).startswith(str(self)):
                raise
            raise PassError(f"{self} failed in {where}: {error}") from error
        except CoordGraphError as error:
            raise PassError(f"{self} failed in {where}: {error}") from error
        except Exception as error:
            what = f"{type(error).__name__}: {error}".removesuffix(": ")
            raise PassError(f"{self} failed in {where}: {what}") from error

    @property
    def options(self) -> dict[str, object]:
        """The options that differ from their defaults."""
        return {f.name: v for f in fields(self) if (v := getattr(self, f.name)) != f.default}

    def __str__(self) -> str:
        """The pipeline text: `stream-k{workgroups=132}`; parses back to an equal pass."""
        inside = ",".join(f"{name}={_value(value)}" for name, value in self.options.items())
        return f"{self.name}{{{inside}}}" if inside else self.name


def _value(value: object) -> str:
    if isinstance(value, float):
        return repr(float(value))  # numpy's floats write their type as well
    return str(value).lower() if value is None or isinstance(value, bool) else str(value)
