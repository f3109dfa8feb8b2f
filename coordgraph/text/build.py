"""Build a kernel graph from unresolved records: resolve names and check the graph's rules.

The message of every error names the position in the input that caused the error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, ParamSpec, TypeVar, cast

from sympy import Expr, Symbol
from sympy.core.basic import Basic

from coordgraph.checks import LEVELS
from coordgraph.control.graph import ControlGraph
from coordgraph.control.operations import Assign, Kernel, Operation
from coordgraph.coordinates.graph import CoordinateEditor, CoordinateGraph
from coordgraph.errors import CoordGraphError, VerifyError
from coordgraph.integers import ExpressionSyntaxError, index_symbol, parse_expression, size_symbol
from coordgraph.kernel import KernelGraph
from coordgraph.parameters import Assumption, Parameter, Parameters
from coordgraph.tables import Table, place_of
from coordgraph.tensors import DTYPES, Role, Tensor
from coordgraph.text.origins import with_origins
from coordgraph.text.raw import (
    RawExpression,
    RawGraph,
    RawOperation,
    RawRecord,
    RawTable,
    Where,
    suggest,
)
from coordgraph.text.shapes import required_fields

__all__ = ["build"]

P = ParamSpec("P")
T = TypeVar("T")


def build(raw: RawGraph) -> KernelGraph:
    """Build the kernel graph that the unresolved records of `raw` describe.

    Raises:
        ParseError: a text has an unknown name or an invalid value, or breaks a size rule.
        VerifyError: plain data has an unknown name or an invalid value, or breaks a size rule; or
            the edges form a cycle.
    """
    builder = _Builder(raw)
    if raw.gemm is None:
        raise raw.end.error("the problem is missing; add a line such as 'gemm dtype=bf16'")
    if raw.level_at is not None and raw.level not in LEVELS:
        raise raw.level_at.error(f"unknown level '{raw.level}'{suggest(raw.level, LEVELS)}")
    graph = KernelGraph(
        builder.record(raw.gemm),
        builder.coordinates(raw.dimensions, raw.edges),
        builder.control(raw.root),
        builder.parameters(raw),
        builder.tensors(raw),
        raw.level,
        tuple(raw.log),
    )
    return with_origins(graph, raw.origins) if raw.origins else graph


class _Builder:
    """Makes the parts of a kernel graph from records; holds the symbols that names stand for."""

    def __init__(self, raw: RawGraph) -> None:
        self._expressions: dict[str, Basic] = {}
        self._unknown = ""
        self._ids = {str(record.values.get("id")) for record in raw.dimensions}
        self._symbols: dict[str, Symbol] = {}
        parameters: set[str] = set()
        for p in raw.parameters:
            if p.name in parameters:
                raise p.at.error(f"there is a parameter '{p.name}' already; choose another name")
            parameters.add(p.name)
            self._symbols[p.name] = size_symbol(p.name) if p.minimum >= 1 else index_symbol(p.name)
        for table in raw.tables:
            if table.name in self._symbols:
                raise table.at.error(
                    f"there is a parameter or a table '{table.name}' already; choose another name"
                )
            for symbol in (index_symbol(table.name), place_of(table.name)):
                self._symbols[symbol.name] = symbol
        if raw.root is not None:
            self._declare_assigned(raw.root)
        for name, positive, at in raw.symbols:
            if name in self._symbols or name in self._ids:
                raise at.error(
                    f"'{name}' is defined elsewhere in the graph; remove its 'symbol' line"
                )
            self._symbols[name] = size_symbol(name) if positive else index_symbol(name)

    def _declare_assigned(self, root: RawOperation) -> None:
        stack = [root]
        while stack:
            op = stack.pop()
            if issubclass(op.cls, Assign):
                name = str(op.values.get("name"))
                self._symbols.setdefault(name, index_symbol(name))
            stack += [child for body in op.bodies.values() for child in body]

    def expression(self, raw: RawExpression) -> Any:
        """Parse the text of `raw` as an expression, or as a condition if `raw.condition` is set."""
        value = self._expressions.get(raw.text)
        if value is None:
            self._unknown = ""
            try:
                value = cast("Basic", parse_expression(raw.text, self._symbol))
            except ExpressionSyntaxError as error:
                message = error.message
                if self._unknown:
                    message = f"unknown name '{self._unknown}'"
                    message += suggest(self._unknown, {**self._symbols, **dict.fromkeys(self._ids)})
                raise raw.at.error(message, error.column) from error
            self._expressions[raw.text] = value
        # Do not test for Boolean: a SymPy Symbol is both an Expr and a Boolean, but stands for an
        # integer in a graph.
        if isinstance(value, Expr) == raw.condition:
            kinds = ("an integer expression", "a condition")
            wanted, found = reversed(kinds) if raw.condition else kinds
            raise raw.at.error(f"{wanted} is needed here, not {found}")
        return value

    def _symbol(self, name: str) -> Expr:
        symbol = self._symbols.get(name)
        if symbol is None:
            if name not in self._ids:
                self._unknown = name
                raise KeyError(f"unknown symbol '{name}'")
            symbol = self._symbols[name] = index_symbol(name)
        return symbol

    def value(self, raw: Any) -> Any:
        """A field's value: `raw`, with every `RawExpression` in it replaced by its parsed form."""
        if isinstance(raw, RawExpression):
            return self.expression(raw)
        if isinstance(raw, tuple):
            return tuple(map(self.value, cast("tuple[Any, ...]", raw)))
        return raw

    def record(self, raw: RawRecord, **bodies: Any) -> Any:
        """Construct the object that `raw` describes; errors name its position in the input."""
        values = {name: self.value(value) for name, value in raw.values.items()}
        for name in required_fields(raw.cls, without=tuple(bodies)):
            if name not in values:
                raise raw.at.error(
                    f"{raw.cls.__name__} has no value for '{name}', which it needs; give one"
                )
        return _placed(raw.at, raw.cls, **values, **bodies)

    def coordinates(
        self, dimensions: Iterable[RawRecord], edges: Iterable[RawRecord]
    ) -> CoordinateGraph:
        """Make the coordinate graph; all dimensions are added before the first edge."""
        editor: CoordinateEditor = CoordinateGraph().edit()
        for raw in dimensions:
            dimension = self.record(raw)
            _placed(raw.at, editor.add, dimension)
        for raw in edges:
            for side in ("upstream", "downstream"):
                for position, name in enumerate(raw.values[side]):
                    # `2 * position` is the position of the name in the text: each earlier name and
                    # the comma after it are two tokens.
                    if name not in self._ids:
                        at = raw.places.get(side, raw.at).after(2 * position)
                        raise self._unknown_dimension(name, at)
            edge = self.record(raw)
            _placed(raw.at, editor.connect, edge)
        return editor.finish()

    def _unknown_dimension(self, name: str, at: Where) -> CoordGraphError:
        return at.error(f"there is no dimension '{name}'{suggest(name, self._ids)}")

    def control(self, root: RawOperation | None) -> ControlGraph:
        """Make the control graph; if the input has no operations, the graph's kernel is empty."""
        if root is None:
            return ControlGraph()
        if not issubclass(root.cls, Kernel):
            raise root.at.error(
                f"the outermost operation is {root.cls.__name__}, but must be a Kernel; put the "
                "operations into a Kernel"
            )
        return ControlGraph(cast("Kernel", self._operation(root)))

    def _operation(self, raw: RawOperation) -> Operation:
        bodies = {
            name: tuple(map(self._operation, raw.bodies.get(name, ()))) for name in raw.cls.BODIES
        }
        for role in raw.cls.ROLES:
            names = raw.values.get(role, ())
            for name in (names,) if isinstance(names, str) else names:
                if name and name not in self._ids:
                    raise self._unknown_dimension(name, raw.places.get(role, raw.at))
        return self.record(raw, **bodies)

    def parameters(self, raw: RawGraph) -> Parameters:
        """Make the parameters; a parameter's value may only contain parameters defined earlier."""
        items: list[Parameter] = []
        above: set[str] = set()
        names = {p.name for p in raw.parameters}
        for p in raw.parameters:
            value = None if p.value is None else self.expression(p.value)
            if value is not None and p.value is not None:
                for symbol in sorted(value.free_symbols, key=str):
                    if symbol.name in names and symbol.name not in above:
                        raise p.value.at.error(
                            f"the parameter '{p.name}' uses '{symbol.name}', which is defined "
                            f"below it; define '{symbol.name}' above '{p.name}'"
                        )
            above.add(p.name)
            items.append(_placed(p.at, Parameter, p.name, p.minimum, p.maximum, value, p.note))
        assumptions = (Assumption(self.expression(a.expr), a.maximum) for a in raw.assumptions)
        return Parameters(tuple(items), tuple(assumptions), tuple(map(self._table, raw.tables)))

    def _table(self, raw: RawTable) -> Table:
        length, maximum = self.expression(raw.length), self.expression(raw.maximum)
        step = None if raw.step is None else self.expression(raw.step)
        return _placed(raw.at, Table, raw.name, length, maximum, step, raw.note, raw.rule)

    def tensors(self, raw: RawGraph) -> tuple[Tensor, ...]:
        """Make the tensors; checks for duplicate names, unknown element types and unknown roles."""
        made: dict[str, Tensor] = {}
        roles = {role.value: role for role in Role}
        for t in raw.tensors:
            if t.name in made:
                raise t.at.error(f"there is a tensor '{t.name}' already; choose another name")
            if t.dtype not in DTYPES:
                raise t.at.error(f"unknown dtype '{t.dtype}'{suggest(t.dtype, DTYPES)}")
            if t.role not in roles:
                raise t.role_at.error(f"unknown role '{t.role}'{suggest(t.role, roles)}")
            shape = tuple(map(self.expression, t.shape))
            strides = None if t.strides is None else tuple(map(self.expression, t.strides))
            if strides is not None and len(strides) != len(shape):
                raise t.at.error(
                    f"the tensor '{t.name}' has {len(strides)} strides; it needs {len(shape)}, one "
                    "per axis"
                )
            made[t.name] = Tensor(t.name, t.dtype, shape, roles[t.role], strides)
        return tuple(made.values())


def _placed(at: Where, make: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
    """Call `make(*args, **kwargs)`; the messages of errors in the call get the position `at`."""
    try:
        return make(*args, **kwargs)
    except (VerifyError, ValueError, TypeError, ArithmeticError) as error:
        raise at.error(str(error)) from error
