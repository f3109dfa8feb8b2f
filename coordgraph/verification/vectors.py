"""The check `vectors`: an access to several elements at once covers consecutive elements.

The index of an access to several elements is that of the first one. Code generation moves the
elements that follow it in memory to or from the registers that follow the first register. One
instruction moves all these elements, so its address must be a multiple of their total size. The
check proves this by algebra, for all sizes: it computes the index with a symbol for the coordinate
that numbers the elements of a vector.

Rows of a caller's tensor begin at multiples of a vector's width only if the tensor's strides are
such multiples, and end at such multiples only if the extent of a row is such a multiple. A launch
chooses a kernel by the strides, extents and addresses of its tensors, so the check assumes that
strides and extents are multiples of the width.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from math import gcd, lcm, prod
from typing import cast

from sympy import Expr, Integer, Lt, Symbol
from sympy.logic.boolalg import And, Boolean

from coordgraph.control.lowered import (
    AccumulateFragment,
    ApplyFragment,
    CopyElements,
    FillElements,
    LoadFragment,
    ReduceFragment,
    StoreFragment,
)
from coordgraph.control.operations import Operation
from coordgraph.control.resolve import Node, resolve
from coordgraph.control.scope import Scoped
from coordgraph.coordinates.edges import Diagonal, Split
from coordgraph.elements import CHUNK_BYTES, dtype
from coordgraph.gemm import PART
from coordgraph.integers import Load, floor_mod, nodes_of, simplify, to_text
from coordgraph.integers.divisors import divisor_of
from coordgraph.kernel import KernelGraph
from coordgraph.tables import SUMS
from coordgraph.verification.verdicts import Counterexample, Outcome, Verdict

__all__ = ["NAME", "STATES", "vectors"]

NAME = "vectors"
STATES = (
    "Each access of a thread to several elements at once covers consecutive elements of memory, in "
    "the order of the thread's registers; the index of the first element is a multiple of the "
    "number of elements; all or none of the elements are padding."
)
METHOD = "symbolic"
SHOWN = 3
"""Largest number of counterexamples that the verdict lists."""


def vectors(graph: KernelGraph) -> Verdict:
    """Run the check `vectors` of a graph that is lowered for a GPU.

    The verdict's field `seconds` is not set.
    """
    accesses = [
        _Access(graph, node, memory, width, aligned)
        for root in resolve(graph.control.root.body, graph.scope())
        for node in root.walk()
        for memory, width, aligned in _accesses_of(graph, node.op)
        if width > 1
    ]
    problems = dict.fromkeys(problem for access in accesses for problem in access.problems())
    if problems:
        found = tuple(map(Counterexample, problems))[:SHOWN]
        return Verdict(NAME, Outcome.REFUTED, METHOD, "", found)
    return Verdict(NAME, Outcome.PROVED, METHOD, f"{len(accesses)} accesses")


def _accesses_of(graph: KernelGraph, op: Operation) -> Iterator[tuple[str, int, bool]]:
    """Yield (memory, width, aligned) for each access of an operation.

    `memory` is the id of the dimension of the memory, `width` the number of elements, and `aligned`
    says whether one instruction moves all of them.
    """
    match op:
        case CopyElements():
            yield op.source, op.width, True
            yield op.destination, op.width, True
        case FillElements():
            yield op.destination, op.width, True
        case AccumulateFragment():
            yield op.source, op.width, True
        case ReduceFragment():
            yield op.destination, op.width, op.form == "vector"
        case LoadFragment() if op.form != "broadcast":
            yield op.source, _row(graph, op.source, op.form, op.width), True
        case StoreFragment():
            yield op.destination, _row(graph, op.destination, op.form, op.width), True
        case ApplyFragment():
            widths = op.widths or (1,) * len(op.sources)
            for memory, width in zip(op.read_from.values(), widths, strict=True):
                yield memory, width, True
            for tensor in op.stores:
                yield tensor, op.width, True
        case _:
            return


def _row(graph: KernelGraph, memory: str, form: str, width: int) -> int:
    """Number of consecutive elements at the address that one thread gives to an instruction.

    `ldmatrix` and `stmatrix` (a `form` with `matrix` in its name) move rows of 16 bytes; any other
    instruction moves `width` elements.
    """
    if "matrix" not in form:
        return width
    dim = graph.coordinates[memory]
    element = getattr(dim, "element", "") or graph.tensor(getattr(dim, "tensor", "")).dtype
    return CHUNK_BYTES // dtype(element).bytes


@dataclass(frozen=True)
class _Access:
    """One access of a thread to several elements of memory.

    Args:
        graph: the lowered graph.
        node: the operation that makes the access.
        memory: the id of the dimension of the memory.
        width: the number of elements.
        aligned: whether one instruction moves all elements, so that the first must be aligned.
    """

    graph: KernelGraph
    node: Node
    memory: str
    width: int
    aligned: bool

    def problems(self) -> Iterator[str]:
        """Yield a message about the first property of a vector access that is not proved."""
        what, along = f"{self.node.op.kind} of {self.width} elements of '{self.memory}'", self.along
        if not along:
            yield (
                f"{what}: no coordinate of size {self.width} numbers the elements; set such a "
                "coordinate to 0 with SetCoordinate, or use width 1"
            )
            return
        symbol = self.graph.coordinates.symbol(along)
        scope = self.node.scope.hardware((along,))
        found = scope.reverse(self.memory)
        index = found.values[0]
        first = cast(Expr, index.xreplace({symbol: Integer(0)}))
        if step := self._wrong_step(symbol, scope, index - first):
            yield (
                f"{what}: the index grows by {step} along '{along}', not by 1; use width 1, or "
                "another order of the elements in memory"
            )
        elif self.aligned and not self._multiple(first, scope):
            yield (
                f"{what}: the first index {to_text(first)} is no multiple of {self.width}; use a "
                "smaller width"
            )
        elif guards := [
            to_text(part) for part in _parts(found.guard) if not self._whole(symbol, part, scope)
        ]:
            yield (
                f"{what}: some of the elements may be padding, others not: {guards[0]}; use a "
                "smaller width"
            )

    @property
    def along(self) -> str:
        """The coordinate that numbers the elements of the vector; '' if there is none.

        The result is the innermost coordinate that has as many indices as the vector has elements,
        that the operation fixes to 0 (the first element), and that does not number registers.
        """
        coordinates = self.graph.coordinates
        own = getattr(self.node.op, "registers", ())
        found = [
            dim
            for dim, value in self.node.scope.known.items()
            if value == 0 and dim not in own and coordinates.size(dim) == self.width
        ]
        return found[-1] if found else ""

    def _wrong_step(self, symbol: Symbol, scope: Scoped, difference: Expr) -> str:
        """How the index grows from one vector element to the next, as text; '' if always by 1.

        Args:
            symbol: the number of the element in the vector.
            scope: the indices and ranges of symbols that are known where the access happens.
            difference: the element's index minus that of the vector's first element.
        """
        grown = simplify(difference.expand(), scope.ranges)
        for i in range(1, self.width):
            step = simplify(grown.xreplace({symbol: Integer(i)}), scope.ranges)
            if step != i:
                return to_text(step) if i == 1 else f"{to_text(step)} in {i} steps"
            if grown == symbol:
                break
        return ""

    def _divisor(self, expr: Expr, scope: Scoped) -> int:
        """A number that divides `expr` in every launch; 0 if `expr` is 0."""
        expr = scope.expand(expr)
        known = {*self._multiples, *filter(self._starts_matrices, nodes_of(expr, Load))}
        return lcm(*(divisor_of(e, self.width, known) for e in (expr, expr.expand())))

    def _starts_matrices(self, read: Load) -> bool:
        """Whether all entries of the table that `read` reads are proved multiples of vector length.

        Prefix sums of multiples of that length are such entries. An example is the table of the
        offsets at which the matrices of a list of products begin.
        """
        tables = {table.symbol: table for table in self.graph.parameters.tables}
        table = tables.get(cast(Symbol, read.args[0]))
        if table is None or table.step is None or table.rule != SUMS:
            return False
        return divisor_of(table.step, self.width) % self.width == 0

    def _multiple(self, expr: Expr, scope: Scoped) -> bool:
        """Whether `expr` is proved to be a multiple of the vector's number of elements."""
        if self._divisor(expr, scope) % self.width == 0:
            return True
        rest = floor_mod(scope.expand(expr), Integer(self.width))
        return simplify(rest, scope.ranges) == 0

    def _whole(self, symbol: Symbol, guard: Boolean, scope: Scoped) -> bool:
        """Whether a guard is proved to hold for all elements of a vector if it does for the first.

        The guard compares an index along an axis with the axis's end. Let both the first index and
        the end be multiples of g. If the index of each element exceeds the first by less than g, no
        vector extends past the end.
        """
        if symbol not in guard.free_symbols or self._padded_rows:
            return True
        if not isinstance(guard, Lt):
            return False
        index, end = cast(Expr, guard.lhs), cast(Expr, guard.rhs)
        first, *others = (
            cast(Expr, index.xreplace({symbol: Integer(i)})) for i in range(self.width)
        )
        beyond = [simplify((other - first).expand(), scope.ranges) for other in others]
        unit = gcd(self._divisor(first, scope), self._divisor(end, scope))
        return all(isinstance(x, Integer) and (not unit or x < unit) for x in beyond)

    @property
    def _padded_rows(self) -> bool:
        """Whether the rows of the memory are padded to whole vectors, as in a list of products.

        Then a vector that extends past the end of a row moves elements of the row's padding.
        """
        below = self.graph.coordinates.edges_below(self.memory)
        return any(isinstance(edge, Diagonal) and not edge.step % self.width for edge in below)

    @cached_property
    def _multiples(self) -> tuple[Expr, ...]:
        """Expressions that are multiples of the vector's length in every launch of this kernel.

        Such expressions are the strides of the tensor, its extent along the contiguous axis, and
        the number of columns of a part of B.
        """
        coordinates = self.graph.coordinates
        found: list[Expr | None] = []
        for edge in coordinates.edges_below(self.memory):
            if not isinstance(edge, Split):
                continue
            for stride, axis in zip(edge.strides, edge.downstream, strict=True):
                found.append(stride if stride != 1 else coordinates.size(axis))
                for below in coordinates.edges_below(axis) if stride == 1 else ():
                    if PART in below.downstream:
                        inner = below.downstream[below.downstream.index(PART) + 1 :]
                        sizes = (coordinates.size(dim) or Integer(1) for dim in inner)
                        found.append(prod(sizes, start=Integer(1)))
        return tuple(e for e in found if e is not None and not isinstance(e, Integer))


def _parts(guard: Boolean) -> tuple[Boolean, ...]:
    """The conditions whose conjunction is `guard`."""
    return guard.args if isinstance(guard, And) else (guard,)  # type: ignore[return-value]
