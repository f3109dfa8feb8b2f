"""Print kernel graphs in the text form; equal graphs have equal texts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, cast

from sympy import sympify
from sympy.core.basic import Basic

from coordgraph.control.operations import Operation
from coordgraph.coordinates.dimensions import Dimension
from coordgraph.coordinates.edges import Edge
from coordgraph.epilogue import function_text
from coordgraph.errors import VerifyError
from coordgraph.integers import to_text
from coordgraph.integers.text import MAX_DIGITS
from coordgraph.kernel import TEXT, KernelGraph
from coordgraph.parameters import Assumption, Parameter
from coordgraph.provenance.record import PROBLEM, Origin, Part
from coordgraph.tables import SUMS, Table
from coordgraph.tensors import Tensor
from coordgraph.text.lexer import quote, word
from coordgraph.text.raw import MAX_NESTING, VERSION
from coordgraph.text.shapes import Kind, Shape, record_fields
from coordgraph.text.symbols import free_symbols

__all__ = ["Expressions", "RecordPrinter", "origins", "print_graph"]


@TEXT.implement
def print_graph(graph: KernelGraph, *, provenance: bool = False) -> str:
    """The text form of a graph, which `parse_graph` reads back.

    Args:
        graph: the graph.
        provenance: whether to also print the origin of each part that passes made or changed.

    Raises:
        VerifyError: the text form cannot express part of the graph, such as an operation nested
            too deep, or an expression or field of an unknown type.
    """
    lines = [*RecordPrinter().lines(graph)]
    if provenance:
        lines += origin_lines(graph)
    return "\n".join(lines) + "\n"


def origins(graph: KernelGraph) -> Iterator[tuple[Part, str | int, Origin]]:
    """For each part of a graph that a pass made or changed: its kind, its key and its origin.

    The origin names the passes that made and changed the part. The key of an edge is its position
    among the edges, that of an operation its id, and that of any other part its name. Parts that
    existed before the first pass and did not change are left out.
    """
    positions = {edge: i for i, edge in enumerate(graph.coordinates.edges)}
    for part, key in graph.provenance:
        origin = graph.provenance[part, key]
        if origin != Origin(PROBLEM):
            yield part, positions[key] if isinstance(key, Edge) else key, origin


def origin_lines(graph: KernelGraph) -> Iterator[str]:
    """The `origin` lines of the text form: which passes made and changed each part of the graph."""
    for part, key, origin in origins(graph):
        name = word(key) if isinstance(key, str) else str(key)
        line = f"origin {part.value} {name} {quote(origin.made)}"
        if origin.sources:
            line += f" from {', '.join(map(quote, origin.sources))}"
        if origin.changed:
            line += f" changed {', '.join(map(quote, origin.changed))}"
        yield line


class Expressions:
    """Prints expressions and caches their texts, so that equal expressions are printed once."""

    def __init__(self) -> None:
        self._texts: dict[Basic, str] = {}

    def __call__(self, value: Any) -> str:
        """The text of an integer expression or condition.

        Raises:
            VerifyError: the expression uses a function that the text form does not have.
        """
        expr = cast("Basic", sympify(value))
        text = self._texts.get(expr)
        if text is None:
            try:
                text = to_text(expr)
            except (TypeError, ValueError) as error:
                raise VerifyError(f"{expr} has no text form: {error}") from error
            self._texts[expr] = text
        return text


class RecordPrinter:
    """Prints dimensions, edges, operations and so on, each as one line of the text form."""

    def __init__(self) -> None:
        self._expression = Expressions()

    def lines(self, graph: KernelGraph) -> Iterator[str]:
        """All lines of the text form of a graph."""
        yield f"coordgraph {VERSION}"
        yield "gemm" + self._fields(graph.gemm)
        yield f"level {word(graph.level)}"
        for symbol in free_symbols(graph):
            yield f"symbol {symbol.name} {'positive' if symbol.is_positive else 'nonnegative'}"
        yield from map(self.parameter, graph.parameters.items)
        yield from map(self.table, graph.parameters.tables)
        yield from map(self.assumption, graph.parameters.assumptions)
        yield from map(self.tensor, graph.tensors)
        yield from map(self.dimension, graph.coordinates)
        yield from map(self.edge, graph.coordinates.edges)
        yield "control {"
        yield from self._operation(graph.control.root, 1)
        yield "}"
        for entry in graph.log:
            yield f"log {quote(entry)}"

    def parameter(self, p: Parameter) -> str:
        """The line of the text form that declares a launch parameter."""
        value = "" if p.value is None else f" = {self._expression(p.value)}"
        note = f" {quote(p.note)}" if p.note else ""
        return f"param {p.name} in {p.minimum}..{p.maximum}{value}{note}"

    def table(self, known: Table) -> str:
        """The line of the text form that declares a table of integers."""
        step = "" if known.rule == SUMS and known.step is None else f" {known.rule}"
        step += "" if known.step is None else f" {self._expression(known.step)}"
        note = f" {quote(known.note)}" if known.note else ""
        length, most = self._expression(known.length), self._expression(known.maximum)
        return f"table {known.name} [{length}] <= {most}{step}{note}"

    def assumption(self, a: Assumption) -> str:
        """The line of the text form that declares an assumption about launch parameters."""
        return f"assume {self._expression(a.expr)} <= {a.maximum}"

    def tensor(self, t: Tensor) -> str:
        """The line of the text form that declares a tensor."""
        shape = ", ".join(map(self._expression, t.shape))
        strides = ", ".join(map(self._expression, t.strides or ()))
        last = f" strides [{strides}]" if strides else ""
        return f"tensor {word(t.name)} {word(t.dtype)} [{shape}] {t.role.value}{last}"

    def dimension(self, d: Dimension) -> str:
        """The line of the text form that declares a dimension."""
        note = f" {quote(d.note)}" if d.note else ""
        return f"dim {word(d.id)}: {d.kind}{self._fields(d, ('id', 'note'))}{note}"

    def edge(self, e: Edge) -> str:
        """The line of the text form that declares an edge."""
        sides = f"{_words(e.upstream)} -> {_words(e.downstream)}"
        return f"edge {e.kind} {sides}{self._fields(e, ('upstream', 'downstream'))}"

    def operation(self, op: Operation) -> str:
        """The line of the text form for an operation, without the operations in its bodies."""
        return op.kind + self._fields(op, op.BODIES)

    def _operation(self, op: Operation, depth: int) -> Iterator[str]:
        if depth > MAX_NESTING + 1:
            raise VerifyError(
                f"operations nest more than {MAX_NESTING} levels deep; use fewer levels"
            )
        indent = "  " * depth
        line = indent + self.operation(op)
        bodies: dict[str, tuple[Operation, ...]] = {n: getattr(op, n) for n in op.BODIES}
        for position, (name, body) in enumerate(bodies.items()):
            # Omit an empty body, unless it is the first body and a later body is not empty.
            if not body and (position or not any(bodies.values())):
                continue
            title = "" if position == 0 else f" {'else' if name == 'orelse' else name}"
            yield f"{line}{title} {{"
            for child in body:
                yield from self._operation(child, depth + 1)
            line = indent + "}"
        yield line

    def _fields(self, record: Any, without: tuple[str, ...] = ()) -> str:
        """The text ` name=value` of all fields with other values than their defaults.

        Fields in `without` are left out.
        """
        text = ""
        for spec in record_fields(type(record), without=without):
            value = getattr(record, spec.name)
            if not spec.is_default(value):
                text += f" {spec.name}={self._value(spec.shape, value)}"
        return text

    def _value(self, shape: Shape, given: object) -> str:
        if given is None and shape.optional:
            return "none"
        value = cast("Any", given)
        match shape.kind:
            case Kind.INTEGER:
                return _integer(value)
            case Kind.STRING:
                return quote(value) if shape.optional and value == "none" else word(value)
            case Kind.TRUTH:
                return "true" if value else "false"
            case Kind.EXPRESSION | Kind.CONDITION:
                text = self._expression(value)
                return f"({text})" if shape.optional and text == "none" else text
            case Kind.FUNCTION:
                return quote(function_text(value))
            case Kind.TUPLE:
                parts = ((shape.part(i), v) for i, v in enumerate(value))
                return f"({', '.join(self._value(s, v) for s, v in parts if s is not None)})"


def _integer(value: Any) -> str:
    number = int(value)
    if abs(number) >= 10**MAX_DIGITS:
        raise VerifyError(
            f"an integer of the graph has more than {MAX_DIGITS} digits, which the text form does "
            "not allow; use a smaller integer"
        )
    return str(number)


def _words(names: Iterable[str]) -> str:
    return ", ".join(map(word, names))
