"""`KernelGraph`: the immutable description of one kernel that passes rewrite and targets compile.

A `KernelGraph` holds the coordinate graph (where data is), the control graph (what is done in which
order), the launch-time parameters, and the tensors.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from sympy import Expr
from sympy.core.basic import Basic

from coordgraph.control.graph import ControlGraph
from coordgraph.control.operations import Kernel, Operation
from coordgraph.control.scope import Scoped
from coordgraph.coordinates.dimensions import Dimension, Workgroup
from coordgraph.coordinates.graph import CoordinateEditor, CoordinateGraph
from coordgraph.derivation.record import Derivation
from coordgraph.difference.record import Difference
from coordgraph.errors import VerifyError
from coordgraph.gemm import GemmProblem
from coordgraph.hooks import Hook
from coordgraph.parameters import LARGEST_INDEX, Parameters
from coordgraph.products import dangling_tiles
from coordgraph.provenance.record import History, Provenance, Snapshot
from coordgraph.tables import Table
from coordgraph.tensors import Tensor, tensors_in_order
from coordgraph.tilings import Tilings

if TYPE_CHECKING:
    from coordgraph.show.html_report import HtmlReport
    from coordgraph.verification.verdicts import Report

__all__ = [
    "CHECK",
    "DIFF",
    "EXPLAIN",
    "JSON",
    "PROVENANCE",
    "PSEUDOCODE",
    "REPORT",
    "TEXT",
    "VERIFY",
    "KernelEditor",
    "KernelGraph",
]

NO_HISTORY = History()
"""The history of a graph that no pass has made."""
VerifyLevel = Literal["structure", "default", "all"]
"""How thoroughly `KernelGraph.verify` checks a graph; its argument `level` explains the values."""


@dataclass(frozen=True)
class KernelGraph:
    """One kernel: its problem, coordinate graph, control graph, parameters and tensors.

    Every index that the kernel computes is a path through `coordinates`. The record is immutable;
    a pass builds a changed copy with `edit()`.

    Args:
        gemm: the matrix product that the kernel computes.
        coordinates: the dimensions and the coordinate transforms between them.
        control: the operations and loops of the kernel, a tree.
        parameters: the integers that are known at launch, and tables of integers.
        tensors: the kernel's arguments and workspaces in device memory, sorted by
            `tensors_in_order`, with the problem's own tensors first.
        level: how far the graph is on its way to code: `problem`, `scheduled` or `lowered`.
        log: the text form of each pass that was applied, in order.
        history: the graphs from which passes made this one; equality does not depend on it.
    """

    gemm: GemmProblem
    coordinates: CoordinateGraph = field(default_factory=CoordinateGraph)
    control: ControlGraph = field(default_factory=ControlGraph)
    parameters: Parameters = field(default_factory=Parameters)
    tensors: tuple[Tensor, ...] = ()
    level: str = "problem"
    log: tuple[str, ...] = ()
    history: History = field(default=NO_HISTORY, compare=False, repr=False)

    def __post_init__(self) -> None:
        # Code binds arguments by position, so equal graphs must have tensors in the same order.
        tables = (t.name for t in self.parameters.tables)
        names = ("A", "B", *self.gemm.operands, "D", *self.gemm.outputs, *tables)
        object.__setattr__(self, "tensors", tensors_in_order(self.tensors, names))

    @property
    def bindings(self) -> dict[tuple[int, str], tuple[str, ...]]:
        """The ids of the dimensions that operations name, by (operation id, role).

        An operation's id is its position in preorder; a role is a field's name, such as `tile`.
        """
        return self.control.bindings

    @property
    def dangling(self) -> tuple[Dimension, ...]:
        """The tile-number dimensions that no schedule has tied to workgroups or loops yet.

        Schedules connect these dimensions to workgroups. A pass before the schedule may add edges
        to new dimensions, for example to reorder tiles; these are then the result instead. The
        dimension that numbers the products of a batch or of groups comes first, so that a schedule
        computes all tiles of one product before those of the next.
        """
        return dangling_tiles(self)

    @property
    def workgroup(self) -> Workgroup:
        """The dimension that numbers the launched workgroups; its size is the grid.

        Raises:
            VerifyError: no schedule has been applied, so the kernel has no grid.
        """
        name = self.control.root.workgroup
        found = self.coordinates[name] if name else None
        if not isinstance(found, Workgroup):
            raise VerifyError(
                "this graph has no schedule, which assigns its work to workgroups; apply one, as "
                "in DataParallel()(graph) or StreamK(workgroups=132)(graph)"
            )
        return found

    @cached_property
    def tilings(self) -> Tilings:
        """For each accumulator, the shape and the dimensions of the macro tiles summed in it."""
        return Tilings.of(self.control, self.coordinates)

    def tensor(self, name: str) -> Tensor:
        """The tensor with the name `name`.

        Raises:
            VerifyError: the kernel has no tensor with that name.
        """
        for tensor in self.tensors:
            if tensor.name == name:
                return tensor
        names = ", ".join(t.name for t in self.tensors)
        raise VerifyError(f"there is no tensor '{name}'; the kernel has {names or 'none'}")

    @cached_property
    def expressions(self) -> frozenset[Basic]:
        """Every SymPy expression and condition in the records and operations of the kernel.

        Records are parameters, assumptions, tables, tensors, dimensions and edges.
        """
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

    @cached_property
    def snapshot(self) -> Snapshot:
        """The graph's parameters, tensors, dimensions, edges, operations and log, as one record."""
        return Snapshot(self.parameters, self.tensors, self.coordinates, self.control, self.log)

    @cached_property
    def provenance(self) -> Provenance:
        """Which pass made each record of the graph, and from which records of the pass's input.

        Every pass stores its input graph and its result in `history`; the first access to
        `provenance` compares them to find the records that each pass added or changed.
        """
        return PROVENANCE(self)

    def made_by(self, step: str, before: KernelGraph) -> KernelGraph:
        """A copy whose history says that a pass made it; `Pass` calls this after every rewrite.

        Args:
            step: the pass as text, which names the pass and its arguments.
            before: the graph that the pass was given.
        """
        history = before.history.then(step, before.snapshot, self.snapshot)
        return replace(self, history=history)

    def scope(self) -> Scoped:
        """The scope at the start of the kernel's body: the symbols that have values there.

        These symbols stand for launch parameters and for the indices that the hardware provides,
        such as the numbers of the workgroup and the thread.
        """
        scope = Scoped(self.coordinates, self.parameters.ranges())
        bound = [self.control.root.workgroup] if self.control.root.workgroup else []
        machine = (d.id for d in self.coordinates if d.hardware and not isinstance(d, Workgroup))
        return scope.hardware([*bound, *machine])

    def edit(self, done: str = "") -> KernelEditor:
        """An editor that builds a changed copy: `with graph.edit("my-pass") as e: …; e.graph`.

        Args:
            done: the line that is appended to the log of the new graph; '' appends none.
        """
        return KernelEditor(self, done)

    def verify(self, level: VerifyLevel = "structure") -> KernelGraph:
        """Check the graph and return it.

        Args:
            level: `structure` runs only the checks of `coordgraph.checks` for the graph's level.
                `default` and `all` also prove the properties that `check` lists, as thoroughly as
                `check` does with this level.

        Raises:
            VerifyError: a check fails; `problems` lists every failure.
        """
        if level == "structure":
            VERIFY(self)
        else:
            self.check(level=level).raise_if_refuted()
        return self

    def explain(
        self, wanted: str, at: Mapping[Any, Any] | None = None, *, forward: bool = False
    ) -> Derivation:
        """Derive the index along a dimension edge by edge: `print(graph.explain("A.0"))`.

        Each step is an edge of the path with its own formula and its guards. With numbers in `at`,
        each step also has the index as a number. For a tensor or an allocation in shared memory,
        the result is an address, with the offset and the strides in elements and bytes.

        Args:
            wanted: the id of the dimension, such as `A.0` for a row of A, or `A` for its memory.
            at: the point: values of coordinates, of launch parameters, and entries of tables, by
                name. None as a value keeps a coordinate or parameter a symbol. Without `at`, all
                coordinates at which the path starts are symbols.
            forward: compute workgroup, loop or thread indices from tensor indices, not in reverse.

        Raises:
            EvaluationError: values that the index depends on are missing in `at`, or an index is
                outside its dimension; the message has the names and the ranges.
            AmbiguousPath: several paths lead to the dimension, and `at` does not choose one.
            VerifyError: a name is unknown or a value has a wrong type.
        """
        return EXPLAIN(self, wanted, at, forward=forward)

    def diff(self, other: KernelGraph) -> Difference:
        """Compare two graphs by structure: `print(before.diff(after))`.

        Parameters, tables and tensors are compared by name, edges by their operands, operations by
        their order. Dimensions are compared by name, but a renamed dimension counts as equal. The
        order in which dimensions and edges are declared, and the logs, are not compared.

        Args:
            other: the graph after the change.

        Raises:
            VerifyError: `other` is not a `KernelGraph`.
        """
        if not isinstance(other, KernelGraph):
            raise VerifyError(
                f"other = {other!r} is not a KernelGraph; give the graph after the change"
            )
        return DIFF(self, other)

    def check(
        self,
        sizes: Mapping[str, int | Sequence[int]] | None = None,
        level: Literal["default", "all"] = "default",
        checks: Sequence[str] | None = None,
    ) -> Report:
        """Prove or refute that the graph computes its product, without running it.

        The report has a verdict for each named check: `sizes`, `cover`, `fix-up`, `progress` and
        `bounds` of a scheduled graph, `memory order` and `vectors` of one lowered for a GPU.

        Args:
            sizes: the launch arguments to examine, by name; None chooses small launches, such as
                those just below and above a multiple of the tile.
            level: `default` examines a few launches, in less than a second; `all` examines more.
            checks: names of the checks to run; None runs all named above. `batch-invariance`, which
                refutes graphs whose order of additions depends on m, runs only if it is named.

        Raises:
            VerifyError: the graph has no schedule, fails the checks of its structure, or a check's
                name is unknown.
        """
        return CHECK(self, sizes, level, checks)

    def report(
        self, path: str | Path | None = None, machine: Any = "NVIDIA H200", **options: Any
    ) -> HtmlReport:
        """Make a page about one launch of a scheduled graph: `graph.report("out.html", m=…)`.

        The page is one HTML file that needs no network: how busy the GPU is and why it is not
        busier, which workgroup computes which tile when and where, what each pass changed, how
        every address is computed, and what is proved. A Jupyter notebook displays the result.

        Args:
            path: the file to write; None writes no file.
            machine: the GPU on which the launch is simulated, a `Machine` or its name.
            options: launch arguments such as `m`; `tables` (entries by name), `kernel` (such as its
                cluster shape), `title` (text) and `measured` (the timeline of a real launch).

        Raises:
            VerifyError: the graph is not scheduled, or an option is malformed.
            LaunchError: a launch argument is missing or out of bounds, or the machine is unknown.
        """
        return REPORT(self, path, machine=machine, **options)

    def mermaid(self, **options: Any) -> str:
        """The coordinate graph as a Mermaid diagram, with options of `CoordinateGraph.mermaid`."""
        return self.coordinates.mermaid(**options)

    def pseudocode(self) -> str:
        """The kernel's loops and operations as C-like text, with every index as an expression."""
        return PSEUDOCODE(self)

    def text(self, *, provenance: bool = False) -> str:
        """The canonical text form of the kernel graph; `coordgraph.parse` reads it back.

        Args:
            provenance: whether to also write which pass made each record.
        """
        return TEXT(self, provenance=provenance)

    def json(self, *, provenance: bool = False) -> dict[str, Any]:
        """The kernel graph as plain data for `json.dumps`; `coordgraph.from_json` reads it back.

        Args:
            provenance: whether to also write which pass made each record.
        """
        return JSON(self, provenance=provenance)

    def __str__(self) -> str:
        return self.text()

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        coordinates, control = self.coordinates.mermaid(), self.control.mermaid()
        markdown = f"```mermaid\n{coordinates}\n```\n\n```mermaid\n{control}\n```"
        return {"text/plain": self.pseudocode(), "text/markdown": markdown}


DIFF = Hook[[KernelGraph, KernelGraph], Difference](
    "KernelGraph.diff", "coordgraph.difference.compare"
)
"""`KernelGraph.diff` calls this hook, which `coordgraph.difference.compare` implements."""
EXPLAIN = Hook[..., Derivation]("KernelGraph.explain", "coordgraph.derivation.derive")
"""`KernelGraph.explain` calls this hook, which `coordgraph.derivation.derive` implements."""
PROVENANCE = Hook[[KernelGraph], Provenance](
    "KernelGraph.provenance", "coordgraph.provenance.trace"
)
"""`KernelGraph.provenance` calls this hook, which `coordgraph.provenance.trace` implements."""
VERIFY = Hook[[KernelGraph], None]("KernelGraph.verify", "coordgraph.checks")
"""`KernelGraph.verify` calls this hook, which `coordgraph.checks` implements."""
CHECK = Hook[..., "Report"]("KernelGraph.check", "coordgraph.verification.checking")
"""`KernelGraph.check` calls this hook, which `coordgraph.verification.checking` implements."""
REPORT = Hook[..., "HtmlReport"]("KernelGraph.report", "passes.report.gather")
"""`KernelGraph.report` calls this hook, which `passes.report.gather` implements."""
PSEUDOCODE = Hook[[KernelGraph], str]("KernelGraph.pseudocode", "coordgraph.show.pseudocode")
"""`KernelGraph.pseudocode` calls this hook, which `coordgraph.show.pseudocode` implements."""
TEXT = Hook[..., str]("KernelGraph.text", "coordgraph.text.printer")
"""`KernelGraph.text` calls this hook, which `coordgraph.text.printer` implements."""
JSON = Hook[..., dict[str, Any]]("KernelGraph.json", "coordgraph.text.plain")
"""`KernelGraph.json` calls this hook, which `coordgraph.text.plain` implements."""


def _basics(value: object) -> Iterator[Basic]:
    """The SymPy expressions in a field's value: the value itself, or members of nested tuples."""
    if isinstance(value, Basic):
        yield value
    elif isinstance(value, tuple | list):
        for part in value:
            yield from _basics(part)


class KernelEditor:
    """Collects changes to a kernel graph; `graph` holds the result after the `with` block.

    Args:
        graph: the graph that is changed.
        done: the line that is appended to the log of the new graph; '' appends none.
    """

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
        """Name an expression that the host computes at launch, and return its symbol.

        A value that simplifies to a constant or to one symbol is returned as it is, without a new
        parameter, so that a kernel for fixed sizes has constants in its indices.

        Args:
            name: the name of the new parameter.
            value: the parameter's value, in terms of earlier parameters.
            minimum: a lower bound of the value, which every launch checks.
            note: what the parameter means, for diagrams and errors.

        Raises:
            VerifyError: another parameter has this name, with another value.
        """
        self.parameters, symbol = self.parameters.define(name, value, minimum, note)
        return symbol

    def assume(self, expr: Expr, maximum: int = LARGEST_INDEX) -> None:
        """Declare that `expr`, an expression in launch parameters, is at most `maximum`.

        Every launch checks the declared limit.
        """
        self.parameters = self.parameters.assume(expr, maximum)

    def table(self, table: Table) -> None:
        """Declare a table of integers in device memory that index expressions may read."""
        self.parameters = self.parameters.tabled(table)

    def kernel(self, *body: Operation, workgroup: str = "") -> None:
        """Replace the control graph.

        Args:
            body: the operations of the kernel.
            workgroup: the id of the dimension that numbers workgroups; '' before a schedule.
        """
        self.control = ControlGraph(Kernel(body, workgroup))

    def snapshot(self) -> CoordinateGraph:
        """The coordinate graph with the edits made so far, for example to compute indices in it."""
        return self.coordinates.finish()
