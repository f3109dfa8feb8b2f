"""Parse the text form of a kernel graph, statement by statement."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from coordgraph.collection import collection_paused
from coordgraph.control.operations import OPERATIONS, Operation
from coordgraph.coordinates.dimensions import DIMENSIONS
from coordgraph.coordinates.edges import EDGES
from coordgraph.foreign_graphs import faults_named
from coordgraph.frontend import Gemm
from coordgraph.kernel import KernelGraph
from coordgraph.provenance.record import Origin
from coordgraph.tables import RULES, SUMS, UNORDERED
from coordgraph.text.build import build
from coordgraph.text.lexer import Cursor, Place
from coordgraph.text.origins import NUMBERED
from coordgraph.text.raw import (
    MAX_NESTING,
    VERSION,
    RawAssumption,
    RawGraph,
    RawOperation,
    RawOrigin,
    RawParameter,
    RawRecord,
    RawTable,
    RawTensor,
    function_at,
    suggest,
)
from coordgraph.text.shapes import Kind, Shape, field_shapes
from coordgraph.validation import text as checked_text

__all__ = ["parse_graph"]

T = TypeVar("T")
ELSE = {"else": "orelse"}
"""Names of an operation's fields by keyword of the text form, where keyword and name differ.

The operations of the field follow the keyword in braces.
"""


def parse_graph(text: str) -> KernelGraph:
    """Read a graph from its text form.

    Statements after the first line may be in any order; `parse_graph(print_graph(g)) == g`.

    Raises:
        ParseError: the text is malformed, names something unknown, or breaks a rule of the graph;
            the message names the line and the column.
        VerifyError: the edges form a cycle, or `text` is not a string.
    """
    with collection_paused(), faults_named("reading the graph"):
        return build(_Reader(checked_text(text, "a graph")).graph())


class _Reader:
    def __init__(self, text: str) -> None:
        self.cursor = Cursor(text)
        self.raw = RawGraph(self.cursor.place())
        self.statements: dict[str, Callable[[Place], None]] = {
            "gemm": self._gemm,
            "level": self._level,
            "symbol": self._symbol,
            "param": self._parameter,
            "table": self._table,
            "assume": self._assumption,
            "tensor": self._tensor,
            "dim": self._dimension,
            "edge": self._edge,
            "control": self._control,
            "log": self._log,
            "origin": self._origin,
        }

    def graph(self) -> RawGraph:
        """Parse the whole text into unresolved records of a graph."""
        c = self.cursor
        c.skip_lines()
        if c.token.text != "coordgraph":
            raise c.expected(f"the first line, 'coordgraph {VERSION}'")
        c.advance()
        at = c.place()
        if (version := c.integer()) != VERSION:
            raise c.error(
                f"the text has version {version}, but only version {VERSION} can be read; "
                "write the graph again with this version of the library",
                at,
            )
        c.end_statement()
        c.skip_lines()
        while c.token.kind != "end":
            at, name = c.place(), c.name("a statement")
            statement = self.statements.get(name)
            if statement is None:
                known = suggest(name, self.statements)
                raise c.error(f"unknown statement '{name}'{known}", at)
            statement(at)
            c.end_statement()
            c.skip_lines()
        self.raw.end = c.place()
        return self.raw

    def _gemm(self, at: Place) -> None:
        if self.raw.gemm is not None:
            raise self.cursor.error("there is a 'gemm' line already; remove one of both lines", at)
        self.raw.gemm = RawRecord(Gemm, at)
        self._fields(self.raw.gemm)

    def _level(self, at: Place) -> None:
        if self.raw.level_at is not None:
            raise self.cursor.error("there is a 'level' line already; remove one of both lines", at)
        self.raw.level_at = self.cursor.place()
        self.raw.level = self.cursor.word("a level")

    def _symbol(self, at: Place) -> None:
        at = self.cursor.place()
        name = self.cursor.name("a name")
        if self.cursor.token.text not in ("positive", "nonnegative"):
            raise self.cursor.expected("'positive' or 'nonnegative'")
        self.raw.symbols.append((name, self.cursor.advance().text == "positive", at))

    def _parameter(self, at: Place) -> None:
        c, at = self.cursor, self.cursor.place()
        name = c.name("the name of a parameter")
        if c.token.text != "in":
            raise c.expected(f"'in', as in 'param {name} in 1..65535'")
        c.advance()
        minimum = c.integer()
        c.expect("..")
        maximum = c.integer()
        value = c.expression() if c.take("=") else None
        note = "" if c.at_line_end() else c.string()
        self.raw.parameters.append(RawParameter(name, at, minimum, maximum, value, note))

    def _table(self, at: Place) -> None:
        c, at = self.cursor, self.cursor.place()
        name = c.name("the name of a table")
        c.expect("[")
        length = c.expression()
        c.expect("]")
        c.expect("<=")
        most = c.expression(stop=RULES)
        step, rule = None, SUMS
        if c.token.text in RULES:
            rule = c.token.text
            c.advance()
            step = None if rule in UNORDERED else c.expression()
        note = "" if c.at_line_end() else c.string()
        self.raw.tables.append(RawTable(name, at, length, most, step, rule, note))

    def _assumption(self, at: Place) -> None:
        expr = self.cursor.expression(stop=("<=",))
        self.cursor.expect("<=")
        self.raw.assumptions.append(RawAssumption(expr, self.cursor.integer()))

    def _tensor(self, at: Place) -> None:
        c, at = self.cursor, self.cursor.place()
        name, dtype = c.word("the name of a tensor"), c.word("a dtype")
        c.expect("[")
        shape = [] if c.at("]") else self._listed(c.expression)
        c.expect("]")
        role_at = c.place()
        raw = RawTensor(name, at, dtype, shape, c.name("a role"), role_at)
        if c.token.text == "strides":
            c.advance()
            c.expect("[")
            raw.strides = self._listed(c.expression)
            c.expect("]")
        self.raw.tensors.append(raw)

    def _dimension(self, at: Place) -> None:
        c, at = self.cursor, self.cursor.place()
        name = c.word("the id of a dimension")
        c.expect(":")
        raw = RawRecord(self._class(DIMENSIONS, "kind of dimension"), at, {"id": name})
        self._fields(raw, ("id",))
        self.raw.dimensions.append(raw)

    def _edge(self, at: Place) -> None:
        raw = RawRecord(self._class(EDGES, "edge"), at)
        self._side(raw, "upstream")
        self.cursor.expect("->")
        self._side(raw, "downstream")
        self._fields(raw, ("upstream", "downstream"))
        self.raw.edges.append(raw)

    def _side(self, raw: RawRecord, side: str) -> None:
        c = self.cursor
        raw.places[side] = c.place()
        names = [c.word("the id of a dimension")]
        while c.take(","):
            names.append(c.word("the id of a dimension"))
        raw.values[side] = tuple(names)

    def _log(self, at: Place) -> None:
        self.raw.log.append(self.cursor.string())

    def _origin(self, at: Place) -> None:
        c, at = self.cursor, self.cursor.place()
        part = c.name("the part of the graph, such as dimension")
        key = c.integer() if part in NUMBERED else c.word("the name of the record")
        made = c.string("the pass that made the record, in quotes")
        lists: dict[str, tuple[str, ...]] = {"from": (), "changed": ()}
        for name in lists:
            if c.token.text == name:
                c.advance()
                lists[name] = tuple(self._listed(c.string))
        origin = Origin(made, lists["from"], lists["changed"])
        self.raw.origins.append(RawOrigin(part, key, at, origin))

    def _control(self, at: Place) -> None:
        if self.raw.root is not None:
            raise self.cursor.error(
                "there is a 'control' block already; remove one of both blocks", at
            )
        operations = self._body(0)
        if len(operations) != 1:
            raise self.cursor.error(
                f"this control block holds {len(operations)} operations; write exactly one, a "
                "Kernel, and the others inside it",
                at,
            )
        self.raw.root = operations[0]

    def _body(self, depth: int) -> list[RawOperation]:
        """Parse the operations of a body in braces; `depth` is the nesting level of the body."""
        c = self.cursor
        if depth > MAX_NESTING:
            raise c.error(f"operations nest more than {MAX_NESTING} levels deep; use fewer levels")
        c.expect("{")
        c.skip_lines()
        operations: list[RawOperation] = []
        while c.token.kind == "name":
            operations.append(self._operation(depth))
            if not c.at("}"):
                c.end_statement()
            c.skip_lines()
        if not c.at("}"):
            raise c.expected("an operation or '}'")
        c.advance()
        return operations

    def _operation(self, depth: int) -> RawOperation:
        c, at = self.cursor, self.cursor.place()
        cls: type[Operation] = self._class(OPERATIONS, "operation")
        raw = RawOperation(cls, at)
        self._fields(raw, cls.BODIES)
        if c.at("{"):
            if not cls.BODIES:
                raise c.error(f"the operation {cls.__name__} has no body; remove the braces")
            raw.bodies[cls.BODIES[0]] = self._body(depth + 1)
            self._further_bodies(raw, depth)
        return raw

    def _further_bodies(self, raw: RawOperation, depth: int) -> None:
        """Parse bodies of `raw` after its first body, such as `else { … }`.

        `depth` is the nesting level of the operation `raw`.
        """
        c = self.cursor
        while c.token.kind == "name":
            at, written = c.place(), c.advance().text
            name = ELSE.get(written, written)
            if name not in raw.cls.BODIES or name in raw.bodies:
                raise c.error(
                    f"the operation {raw.cls.__name__} has no further body '{written}'; remove "
                    "that body",
                    at,
                )
            raw.bodies[name] = self._body(depth + 1)

    def _class(self, registry: Mapping[str, type[T]], what: str) -> type[T]:
        at = self.cursor.place()
        name = self.cursor.name(f"a {what}" if what != "operation" else "an operation")
        if name not in registry:
            raise at.error(f"unknown {what} '{name}'{suggest(name, registry)}")
        return registry[name]

    def _fields(self, raw: RawRecord, without: tuple[str, ...] = ()) -> None:
        """Parse `name=value` pairs as fields of `raw`; a string after them is the note of `raw`."""
        c, binding = self.cursor, getattr(raw.cls, "ROLES", ())
        known = field_shapes(raw.cls, without)
        while c.token.kind == "name" and c.after.text == "=":
            name = c.token.text
            if name not in known:
                raise c.error(f"{raw.cls.__name__} has no field '{name}'{suggest(name, known)}")
            if name in raw.values:
                raise c.error(f"the field '{name}' is given twice; leave out one value")
            c.advance(2)
            if name in binding:
                raw.places[name] = c.place()
            raw.values[name] = self._value(known[name])
        if c.token.kind == "string" and "note" in known and "note" not in raw.values:
            raw.values["note"] = c.string()

    def _value(self, shape: Shape) -> Any:
        c = self.cursor
        if shape.optional and c.token.text == "none":
            c.advance()
            return None
        match shape.kind:
            case Kind.INTEGER:
                return c.integer()
            case Kind.STRING:
                return c.word("a word or a string")
            case Kind.TRUTH:
                if c.token.text not in ("true", "false"):
                    raise c.expected("true or false")
                return c.advance().text == "true"
            case Kind.EXPRESSION | Kind.CONDITION:
                return c.expression(condition=shape.kind is Kind.CONDITION)
            case Kind.FUNCTION:
                place = c.place()
                return function_at(c.string("an epilogue's function in quotes"), place)
            case Kind.TUPLE:
                return self._tuple(shape)

    def _tuple(self, shape: Shape) -> tuple[Any, ...]:
        c, values = self.cursor, list[Any]()

        def part() -> None:
            expected = shape.part(len(values))
            if expected is None:
                raise c.error(f"only {len(shape.items)} values are allowed here; remove the rest")
            values.append(self._value(expected))

        c.expect("(")
        if not c.at(")"):
            self._listed(part)
        if not shape.open and len(values) < len(shape.items):
            raise c.error(f"{len(shape.items)} values are needed here, not {len(values)}")
        c.expect(")")
        return tuple(values)

    def _listed(self, read: Callable[[], T]) -> list[T]:
        """Parse one or more items that are separated by commas; `read` parses one item."""
        items = [read()]
        while self.cursor.take(","):
            items.append(read())
        return items
