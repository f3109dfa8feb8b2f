"""The kernel graph: coordinates, control, bindings and parameters of one kernel, immutable."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any

from sympy import Expr
from sympy.core.basic import Basic

from coordgraph.control.graph import ControlGraph
from coordgraph.control.operations import Kernel, Operation
from coordgraph.control.scope import Scoped
from coordgraph.coordinates.dimensions import Dimension, Workgroup
from coordgraph.coordinates.graph import CoordinateEditor, CoordinateGraph
from coordgraph.errors import VerifyError
from coordgraph.gemm import GemmProblem
from coordgraph.hooks import Hook
from coordgraph.parameters import LARGEST_INDEX, Parameters
from coordgraph.products import dangling_tiles
from coordgraph.tables import Table
from coordgraph.tensors import Tensor
from coordgraph.tilings import Tilings

__all__ = ["JSON", "PSEUDOCODE", "TEXT", "VERIFY", "KernelEditor", "KernelGraph"]


@dataclass(frozen=True)
class KernelGraph:
    """What a kernel is: every index of it is a path through `coordinates`.

    Passes make new graphs with `edit()`; `log` remembers which.
    """

    gemm: GemmProblem
    coordinates: CoordinateGraph = field(default_factory=CoordinateGraph)
    control: ControlGraph = field(default_factory=ControlGraph)
    parameters: Parameters = field(default_factory=Parameters)
    tensors: tuple[Tensor, ...] = ()
    level: str = "problem"
    log: tuple[str, ...] = ()

    @property
    def bindings(self) -> dict[tuple[int, str], tuple[str, ...]]:
        """(operation id, role) to the coordinates bound there."""
        return self.control.bindings

    @property
    def dangling(self) -> tuple[Dimension, ...]:
        """The tile numbers that no schedule has tied yet: the contract between passes.

        The one that counts products is the first, so that tiles of one product are neighbours.
        """
        return dangling_tiles(self)

    @property
    def workgroup(self) -> Workgroup:
        """The grid; its size is the number of workgroups to launch."""
        name = self.control.root.workgroup
        found = self.coordinates[name] if name else None
        if not isinstance(found, Workgroup):
            raise VerifyError(
                "no schedule has tied this graph to workgroups: apply one, as in "
                "DataParallel()(graph) or StreamK(workgroups=132)(graph)"
            )
        return found

    @cached_property
    def tilings(self) -> Tilings:
        """The macro tiles of each accumulator: there may be several shapes in one kernel."""
        return Tilings.of(self.control, self.coordinates)

    def tensor(self, name: str) -> Tensor:
        """A tensor by name."""
        for tensor in self.tensors:
            if tensor.name == name:
                return tensor
        names = ", ".join(t.name for t in self.tensors)
        raise VerifyError(f"there is no tensor '{name}'; there are {names}")

    @cached_property
    def expressions(self) -> frozenset[Basic]:
        """Every expression and condition that is written anywhere in the graph."""
        records: tuple[Any, ...] = (
            *self.parameters.items,
            *self.parameters.assumptions,
            *self.parameters.tables,
            *self.tensors,
            *self.coordinates,
            *self.coordinates.edges,
        )
        values = [getattr(record, f.name) for record in records for f in fields(record)]
        values += [value for op in self.control.operations for value in op.details.values()]
        return frozenset(_basics(values))

    def scope(self) -> Scoped:
        """The scope of the kernel's body: parameters, and what the machine binds."""
        scope = Scoped(self.coordinates, self.parameters.ranges())
        bound = [self.control.root.workgroup] if self.control.root.workgroup else []
        machine = (d.id for d in self.coordinates if d.hardware and not isinstance(d, Workgroup))
        return scope.hardware([*bound, *machine])

    def edit(self, done: str = "") -> KernelEditor:
        """Builds the next graph: `with graph.edit("my-pass") as e: …; e.graph`."""
        return KernelEditor(self, done)

    def verify(self) -> KernelGraph:
        """Run every check of this graph's level; VerifyError lists all that is wrong."""
        VERIFY(self)
        return self

    def mermaid(self, **options: Any) -> str:
        """The coordinate graph as mermaid text."""
        return self.coordinates.mermaid(**options)

    def pseudocode(self) -> str:
        """The loop nest as C-like text, indices written out."""
        return PSEUDOCODE(self)

    def text(self) -> str:
        """The canonical text form; `coordgraph.parse` reads it back."""
        return TEXT(self)

    def json(self) -> dict[str, Any]:
        """The same as plain data for `json.dumps`; `coordgraph.from_json` reads it back."""
        return JSON(self)

    def __str__(self) -> str:
        return self.text()

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        coordinates, control = self.coordinates.mermaid(), self.control.mermaid()
        markdown = f"```mermaid\n{coordinates}\n```\n\n```mermaid\n{control}\n```"
        return {"text/plain": self.pseudocode(), "text/markdown": markdown}


VERIFY = Hook[[KernelGraph], None]("KernelGraph.verify", "coordgraph.checks")
PSEUDOCODE = Hook[[KernelGraph], str]("KernelGraph.pseudocode", "coordgraph.show.pseudocode")
TEXT = Hook[[KernelGraph], str]("KernelGraph.text", "coordgraph.text.printer")
JSON = Hook[[KernelGraph], dict[str, Any]]("KernelGraph.json", "coordgraph.text.plain")


def _basics(value: object) -> Iterator[Basic]:
    """The expressions in a value of a field, which may hold several."""
    if isinstance(value, Basic):
        yield value
    elif isinstance(value, tuple | list):
        for part in value:
            yield from _basics(part)


class KernelEditor:
    """Collects changes to a kernel graph; `graph` holds the result after the `with` block."""

    def __init__(self, graph: KernelGraph, done: str) -> None:
        self._before = graph
        self._done = done
        self.parameters = graph.parameters
        self.coordinates: CoordinateEditor = graph.coordinates.edit()
        self.control = graph.control
        self.tensors = graph.tensors
        self.level = graph.level
        self.graph = graph

    def __enter__(self) -> KernelEditor:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.graph = replace(
                self._before,
                coordinates=self.coordinates.finish(),
                control=self.control,
                parameters=self.parameters,
                tensors=self.tensors,
                level=self.level,
                log=(*self._before.log, self._done) if self._done else self._before.log,
            )

    def parameter(self, name: str, value: Expr, *, minimum: int = 1, note: str = "") -> Expr:
        """Name a launch-time value; a constant comes back as a number, so graphs specialise."""
        self.parameters, symbol = self.parameters.define(name, value, minimum, note)
        return symbol

    def assume(self, expr: Expr, maximum: int = LARGEST_INDEX) -> None:
        """State that an expression in the parameters stays small; checked at launch."""
        self.parameters = self.parameters.assume(expr, maximum)

    def table(self, table: Table) -> None:
        """Declare a table that index expressions may read."""
        self.parameters = self.parameters.tabled(table)

    def kernel(self, *body: Operation, workgroup: str = "") -> None:
        """Replace the control graph."""
        self.control = ControlGraph(Kernel(body, workgroup))

    def snapshot(self) -> CoordinateGraph:
        """The coordinates as edited so far, to ask for indices."""
        return self.coordinates.finish()
