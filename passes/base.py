"""`Pass`, the base class of passes: rewrites of a kernel graph that are checked before and after.

A pass is a frozen dataclass. The fields of a pass are its options, in Python, in pipeline text and
on the command line. To write one, in any module: subclass `Pass`, give the class a `name`, return
from `why_not` the reason why the pass cannot rewrite a graph, and return the new graph from
`apply`. The command-line option `--import MODULE` makes the passes of that module available to
commands.
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
from coordgraph.kept_results import kept_results
from coordgraph.library_graphs import is_made_by_library, made_by_library
from coordgraph.validation import a_type
from passes.options import option, option_types, wrong_option
from passes.work_check import work_problems

__all__ = ["PASSES", "Pass", "Verify", "option", "option_types"]

Verify = Literal["structure", "outside", "work"]
"""How thoroughly the result of a pass is checked. `structure` runs only the check `well-formed` and
the named checks that the pass establishes. `work` also traces the workgroups of a scheduled graph
on small problems, in the interpreter (`passes.work_check`). `outside` is `work` for passes that
another package than `passes` defines, and `structure` for all others."""
LIBRARY = __name__.partition(".")[0]
"""The name of this package, `passes`. With `verify="outside"`, passes of other packages are checked
more thoroughly than those of this package."""


PASSES: dict[str, type[Pass]] = {}
"""All pass classes of imported modules, by the name of the pass. A class statement that defines a
subclass of `Pass` with a `name` adds it."""
_NAME = re.compile(r"[A-Za-z0-9_.+-]+")
"""Pattern of allowed pass names: names that the text of a pipeline can hold."""
RESERVED = (
    "lower-to-host",
    "lower-to-tensor-cores",
    "lower-to-hopper",
    "mark-activities",
    "record-timeline",
)
"""Names of the passes in `passes.lowering` and `passes.timeline`, which `import passes` does not
import. A pass of another package must not have one of these names."""


def _register(kind: type[Pass]) -> None:
    """Add a pass class to `PASSES`.

    Defining a pass again in the same module replaces the first definition, so that a notebook cell
    can run twice.

    Raises:
        PassError: the name is no string, or has characters that pipeline text cannot hold; or
            a pass of another module has the same name.
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
            f"{kind.__module__}.{kind.__qualname__} has the name '{kind.name}', which "
            f"{other.__module__}.{other.__qualname__} has already; give it another name"
        )
    if kind.name in RESERVED and not _of_library(kind):
        raise PassError(
            f"{kind.__module__}.{kind.__qualname__} has the name '{kind.name}', which a pass in "
            "passes.lowering or passes.timeline has already; give it another name"
        )
    PASSES[kind.name] = kind


def _of_library(kind: type[Pass]) -> bool:
    """Whether a module of the package `passes` defines the pass class."""
    return kind.__module__.partition(".")[0] == LIBRARY


def _wrong_name(kind: type[Pass]) -> str | None:
    """The error message for a pass class without a `name`; None if the class has a name."""
    if kind.name:
        return None
    return f'the pass {kind.__qualname__} has no name; write name = "…" in its class'


@dataclass(frozen=True)
class Pass(ABC):
    """Base class of passes: calling a pass rewrites a kernel graph, or raises PassError.

    A pass that cannot rewrite a graph raises an error with the reason. A pass returns the graph
    unchanged only if there is nothing to change.

    Raises:
        PassError: an option has a type or a value that its field does not allow, or the class has
            no name.
    """

    name: ClassVar[str] = ""
    """Name of the pass in the text of a pipeline, such as `stream-k`."""
    requires: ClassVar[tuple[str, ...]] = ("problem",)
    """Named checks that the graph must pass before the rewrite."""
    establishes: ClassVar[tuple[str, ...]] = ()
    """Named checks that the graph passes after the rewrite. A pass that lists `scheduled` also
    promises that the workgroups run every iteration exactly once, run one epilogue and one store
    for every output tile, and send one signal for every wait."""

    def __init_subclass__(cls) -> None:
        if cls.__dict__.get("name"):
            _register(cls)

    def __post_init__(self) -> None:
        if wrong := _wrong_name(type(self)):
            raise PassError(wrong)
        if wrong := wrong_option(self):
            raise PassError(f"{self.name} refuses: {wrong}")

    def why_not(self, graph: KernelGraph) -> str | None:
        """Return why this pass cannot rewrite the graph, or None if it can.

        A subclass overrides this method. When it is called, the graph has passed the checks in
        `requires`, and every option has an allowed type and value. To find out whether a pass would
        be refused, call `refusal`, which runs those checks as well.
        """
        return None

    @abstractmethod
    def apply(self, graph: KernelGraph) -> KernelGraph:
        """Return the rewritten graph. Calling a pass runs `apply` if `refusal` returns None."""

    @property
    def neighbours(self) -> bool:
        """Whether consecutive workgroups work on neighbouring tiles at the same time.

        The cost model of `passes.choosing` assumes neighbouring tiles when it counts hits in the L2
        cache, so `codegen.matmul` chooses no schedule whose `neighbours` is False.
        """
        return True

    @classmethod
    def variants(cls, tile: tuple[int, int, int]) -> tuple[Pass, ...]:
        """The schedules of this class that `codegen.matmul` may choose with a given macro tile.

        The base class lists none. The option `workgroups` of a listed schedule is None: the plan
        that contains the schedule sets the number of workgroups. A schedule whose result differs
        from run to run (`reduction=atomic`) must not be listed.

        Args:
            tile: extents of the macro tile along m, n and k, in elements.
        """
        return ()

    def suits(self, tiles: Any, depth: Any, workgroups: Any) -> Any:
        """Whether the cost model should estimate the time of this schedule for a problem.

        Args:
            tiles: number of output tiles of the problem, or a NumPy array of such numbers.
            depth: number of k tiles of an output tile, or an array.
            workgroups: number of workgroups that are resident at the same time, or an array.

        Returns:
            A bool, or an array of bools if arguments are arrays.
        """
        return True

    def scaled(self, tile: tuple[int, int, int], to: tuple[int, int, int]) -> Pass:
        """The schedule for macro tiles `to` that corresponds to this schedule for tiles `tile`.

        Only a schedule with options in units of elements of a tile overrides this method; the base
        class returns the schedule itself.

        Args:
            tile, to: extents of a macro tile along m, n and k, in elements.

        Raises:
            PassError: no schedule for macro tiles `to` corresponds to this one.
        """
        return self

    def refusal(self, graph: KernelGraph) -> str | None:
        """Return the error message with which a call of the pass would refuse the graph, or None.

        The reasons for refusal are wrong values of options, failed checks of `requires`, and the
        result of `why_not`. The graph is not rewritten.

        Raises:
            PassError: a check or `why_not` raises an error.
        """
        # `Pass.__post_init__` checks name and options too, but a subclass may override that method.
        if wrong := _wrong_name(type(self)):
            return wrong
        if wrong := wrong_option(self):
            return f"{self.name} refuses: {wrong}"
        if not isinstance(graph, KernelGraph):
            return f"{self} cannot start: it needs a KernelGraph, not {a_type(graph)}"
        with self._named("the check of what it requires"):
            problems = run_checks(graph, self.requires)
        if problems:
            return f"{self} cannot start: " + "; ".join(problems)
        with self._named("why_not"):
            reason = self.kept_why_not(graph)
        if reason is not None and not isinstance(reason, str):
            raise PassError(
                f"{self} failed: its method why_not returned {reason!r}; return None, or a str "
                "with the reason why the pass does not apply"
            )
        return f"{self} refuses: {reason}" if reason else None

    def kept_why_not(self, graph: KernelGraph) -> str | None:
        """The result of `why_not`, which passes of this library compute once per graph object."""
        if not _of_library(type(self)):
            return self.why_not(graph)  # not cached: passes of other packages may be mutable
        kept = kept_results(graph)
        if self not in kept:
            kept[self] = self.why_not(graph)
        return kept[self]

    def __call__(self, graph: KernelGraph, verify: Verify = "work") -> KernelGraph:
        """Apply the pass.

        Args:
            graph: the graph to rewrite.
            verify: how thoroughly to check the result: `structure` runs named checks, `work` also
                traces workgroups of a schedule on small problems; see `Verify`.

        Raises:
            PassError: the pass refuses the graph (see `refusal`), the rewrite fails, or its result
                fails a check that the pass `establishes`.
        """
        if verify not in get_args(Verify):
            known = ", ".join(get_args(Verify))
            raise PassError(f"verify={verify!r} is unknown; use one of {known}")
        if reason := self.refusal(graph):
            raise PassError(reason)
        with self._named("apply"):
            result = self.apply(graph)
        if not isinstance(result, KernelGraph):
            raise PassError(
                f"{self} failed: apply returned {type(result).__name__}, not a KernelGraph; "
                "return the rewritten graph"
            )
        if result is not graph:
            result = result.made_by(str(self), graph)
        with self._named("the check of its result"):
            problems = run_checks(result, ("well-formed", *self.establishes))
            if not problems and self._follows_work(verify):
                problems = [*work_problems(result)]
        if problems:
            found = "; ".join(problems)
            raise PassError(f"{self} left a broken graph: {found}; correct its method `apply`")
        if _of_library(type(self)) and is_made_by_library(graph):
            made_by_library(result)
        return result

    def _follows_work(self, verify: Verify) -> bool:
        """Whether `verify` requires tracing the workgroups of the result in the interpreter.

        Only results of schedules (passes that establish `scheduled`) are checked in this way.
        """
        wanted = verify == "work" or (verify == "outside" and not _of_library(type(self)))
        return wanted and "scheduled" in self.establishes

    @contextmanager
    def _named(self, where: str) -> Generator[None]:
        """Turn an error raised in this context into a PassError that names the pass and the step.

        A PassError whose message begins with the text of the pass is raised again unchanged.

        Args:
            where: what runs in this context, as a phrase for the error message.
        """
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
        """The values of the options that differ from their defaults, by the option's name."""
        return {f.name: v for f in fields(self) if (v := getattr(self, f.name)) != f.default}

    def __str__(self) -> str:
        """Text such as `stream-k{workgroups=132}`, which parses back to an equal pass."""
        inside = ",".join(f"{name}={_value(value)}" for name, value in self.options.items())
        return f"{self.name}{{{inside}}}" if inside else self.name


def _value(value: object) -> str:
    """The value of an option as it is written in pipeline text: `none`, `true`, `132`."""
    if isinstance(value, float):
        # Convert to `float` first: the repr of a numpy float, np.float64(0.5), is no pipeline text.
        return repr(float(value))
    return str(value).lower() if value is None or isinstance(value, bool) else str(value)
