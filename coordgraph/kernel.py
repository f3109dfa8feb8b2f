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
from coordgraph.coordinates.dimensions import Dimension, ForLoop, MacroTileNumber, Workgroup
from coordgraph.coordinates.edges import Permute, Ragged
from coordgraph.coordinates.graph import CoordinateEditor, CoordinateGraph
from coordgraph.errors import VerifyError
from coordgraph.gemm import Gemm
from coordgraph.parameters import LARGEST_INDEX, Parameters
from coordgraph.tables import Table
from coordgraph.tensors import Tensor
from coordgraph.tilings import Tilings

__all__ = ["KernelEditor", "KernelGraph"]


@dataclass(frozen=True)
class KernelGraph:
    """What a kernel is: every index of it is a path through `coordinates`.

    Passes make new graphs with `edit()`; `log` remembers which.
    """

    gemm: Gemm
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

        What tells products apart comes first, so that tiles of one product are neighbours.
        """
        found = self.coordinates.dangling(MacroTileNumber)
        return tuple(sorted(found, key=lambda d: d.id != self.product))

    @property
    def order(self) -> Permute | None:
        """The order in which products are taken, if it is another than theirs."""
        below = self.coordinates.edges_below(self.gemm.leading) if self.gemm.leading else ()
        return next((edge for edge in below if isinstance(edge, Permute)), None)

    @property
    def product(self) -> str:
        """The dimension that tells products apart: the problem's, or their place in an order."""
        return self.order.downstream[0] if self.order else self.gemm.leading

    @property
    def plane(self) -> tuple[Dimension, ...]:
        """Those of them that count the tiles of one product, which orders of visiting permute."""
        return tuple(d for d in self.dangling if d.id != self.product)

    def parted(self, tiles: str) -> Ragged | None:
        """How tiles of all products along an axis are parted among them, where that is data.

        `tiles` counts those of one product: a tile number, or the loop over k tiles. None where
        all products have as many.
        """
        if self.coordinates[tiles].size is not None:
            return None
        above = self.coordinates.edges_above(tiles)
        return next((edge for edge in above if isinstance(edge, Ragged)), None)

    @cached_property
    def parted_axes(self) -> tuple[Ragged | None, Ragged | None, Ragged | None]:
        """How tiles in m, n and k are parted among products, each where that is data."""
        edges = [e for e in self.coordinates.edges if isinstance(e, Ragged)]
        loops = (e for e in edges if isinstance(self.coordinates[e.downstream[-1]], ForLoop))
        m, n = (
            self.parted(name) if name in self.coordinates else None
            for name in ("A.tile.0", "B.tile.1")
        )
        return m, n, next(loops, None)

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

    @property
    def macro_tile(self) -> tuple[int, int, int]:
        """Elements of a macro tile in m, n and k."""
        names = ("A.index.0", "B.index.1", "A.index.1")
        m, n, k = (self.coordinates[name].fixed_size for name in names)
        return m, n, k

    @cached_property
    def tilings(self) -> Tilings:
        """The macro tiles of each accumulator: there may be several shapes in one kernel."""
        return Tilings.of(self)

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
        from coordgraph.checks import verify

        verify(self)
        return self

    def mermaid(self, **options: Any) -> str:
        """The coordinate graph as mermaid text."""
        return self.coordinates.mermaid(**options)

    def pseudocode(self) -> str:
        """The loop nest as C-like text, indices written out."""
        from coordgraph.show.pseudocode import pseudocode

        return pseudocode(self)

    def text(self) -> str:
        """The canonical text form; `coordgraph.parse` reads it back."""
        from coordgraph.text import print_graph

        return print_graph(self)

    def json(self) -> dict[str, Any]:
        """The same as plain data for `json.dumps`; `coordgraph.from_json` reads it back."""
        from coordgraph.text import to_json

        return to_json(self)

    def __str__(self) -> str:
        return self.text()

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        coordinates, control = self.coordinates.mermaid(), self.control.mermaid()
        markdown = f"```mermaid\n{coordinates}\n```\n\n```mermaid\n{control}\n```"
        return {"text/plain": self.pseudocode(), "text/markdown": markdown}


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
