"""Evaluate index expressions exactly: directly, or through a compiled Python function."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from types import CodeType
from typing import Any

from sympy import Integer, Symbol
from sympy.core.add import Add
from sympy.core.basic import Basic
from sympy.core.mul import Mul
from sympy.core.power import Pow
from sympy.core.relational import Relational
from sympy.logic.boolalg import And, BooleanAtom, Not, Or

from coordgraph.errors import DivisionByZero
from coordgraph.integers.functions import BitXor, FloorDiv, FloorMod, Maximum, Minimum, Select
from coordgraph.integers.tables import Load, Search, read_table, search_table
from coordgraph.integers.text import UNARY, Printer, comparison_sign

_COMPARE: dict[str, Callable[[int, int], bool]] = {
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
    "==": lambda a, b: a == b,
    "!=": lambda a, b: a != b,
}


def _divisor(a: int, b: int, sign: str) -> int:
    if b == 0:
        raise DivisionByZero(
            f"an index expression divides by 0: {a} {sign} 0; change the values, or make the "
            "divisor at least 1"
        )
    return b


_BINARY: dict[type[Basic], Callable[[int, int], int]] = {
    FloorDiv: lambda a, b: a // _divisor(a, b, "//"),
    FloorMod: lambda a, b: a % _divisor(a, b, "%"),
    BitXor: lambda a, b: a ^ b,
    Minimum: min,
    Maximum: max,
}
MAX_INLINE = 400
"""The largest number of expression nodes in one compiled statement, because Python's parser limits
how deeply an expression is nested."""


def evaluate(expr: Basic | int, values: Mapping[Any, Any]) -> int:
    """The exact value of an expression as int, or of a condition as bool.

    Only the chosen branch of a `Select` is evaluated.

    Args:
        expr: the expression or condition.
        values: the value of each symbol, by symbol or by symbol name: an int, or a sequence of ints
            for the symbol of a table.

    Raises:
        KeyError: a symbol has no value.
        NoEntry: a table is read outside its bounds.
        DivisionByZero: a divisor is 0.
    """
    return expr if isinstance(expr, int) else Evaluation(values).value(expr)


class Evaluation:
    """Evaluates index expressions exactly, given the values of their symbols; see `evaluate`."""

    def __init__(self, values: Mapping[Any, Any]) -> None:
        self.values = values
        self.known: dict[Basic, int] = {}

    def value(self, expr: Basic) -> int:
        """The value of an expression; the value of each subexpression is computed once."""
        if expr not in self.known:
            self.known[expr] = self.compute(expr)
        return self.known[expr]

    def compute(self, expr: Basic) -> int:
        """The value of an expression, from the values of its arguments."""
        match expr:
            case Integer():
                return int(expr)
            case Symbol():
                return int(self.given(expr))
            case Add():
                return sum(self.value(arg) for arg in expr.args)
            case Mul():
                product = 1
                for arg in expr.args:
                    product *= self.value(arg)
                return product
            case Pow() if isinstance(expr.args[1], Integer) and int(expr.args[1]) > 0:
                return self.value(expr.args[0]) ** int(expr.args[1])
            case Select():
                condition, a, b = expr.args
                return self.value(a if self.value(condition) else b)
            case Load():
                table, index = expr.args
                return read_table(self.given(table), self.value(index))
            case Search():
                table, count, x = expr.args
                return search_table(self.given(table), self.value(count), self.value(x))
            case _ if type(expr) in _BINARY:
                a, b = expr.args
                return _BINARY[type(expr)](self.value(a), self.value(b))
            case _:
                return self.condition(expr)

    def given(self, symbol: Basic) -> Any:
        """A symbol's given value: an int, or a table's entries; KeyError if no value is given."""
        assert isinstance(symbol, Symbol)
        for key in (symbol, symbol.name):
            if key in self.values:
                return self.values[key]
        raise KeyError(f"the symbol '{symbol.name}' has no value; add it to the given values")

    def condition(self, expr: Basic) -> bool:
        """Whether a condition holds."""
        match expr:
            case BooleanAtom():
                return bool(expr)
            case Relational():
                a, b = expr.args
                return _COMPARE[comparison_sign(expr)](self.value(a), self.value(b))
            case And():
                # Evaluate all arguments of And and Or, even after one that decides: SymPy's order
                # varies, so errors in later arguments would be raised only in some runs.
                return all([self.value(arg) for arg in expr.args])
            case Or():
                return any([self.value(arg) for arg in expr.args])
            case Not():
                return not self.value(expr.args[0])
            case _:
                raise TypeError(
                    f"{type(expr).__name__} is not allowed in index expressions: {expr}; use +, -, "
                    "* and the functions of coordgraph.integers"
                )


class _PythonPrinter(Printer):
    """Prints index expressions as Python source.

    Args:
        names: the Python names of symbols, and of subexpressions that are already computed.
    """

    def __init__(self, names: dict[Basic, str]) -> None:
        super().__init__()
        self.names = names

    def symbol(self, symbol: Symbol) -> str:
        raise ValueError(
            f"the symbol {symbol.name!r} is not among the arguments of the function; add it to the "
            "arguments"
        )

    def integer(self, value: int) -> str:
        return str(value) if abs(value) < 10**100 else hex(value)

    def truth(self, value: bool) -> str:
        return str(value)

    def select(self, condition: Basic, a: Basic, b: Basic) -> str:
        return f"({self.at(a)} if {self.at(condition)} else {self.at(b)})"

    def bound(self, expr: Basic) -> tuple[str, int]:
        name = self.names.get(expr)
        return super().bound(expr) if name is None else (name, UNARY + 1)


def compile_function(
    expressions: Iterable[Basic | int], arguments: Sequence[Symbol]
) -> Callable[..., tuple[int, ...]]:
    """Compile expressions into one Python function that returns a tuple of their values.

    The function raises DivisionByZero if a divisor is 0. Common subexpressions are computed once. A
    subexpression that occurs only in a branch of a select is computed only if the branch is chosen,
    so a select can guard a division by 0.

    Args:
        expressions: the expressions and conditions.
        arguments: the symbols that are the function's positional arguments. The argument for the
            symbol of a table is a sequence of ints.

    Raises:
        ValueError: an argument is repeated, or an expression contains a symbol that is not in
            `arguments`.
    """
    roots = [Integer(e) if isinstance(e, int) else e for e in expressions]
    names: dict[Basic, str] = {symbol: f"a{i}" for i, symbol in enumerate(arguments)}
    if len(names) != len(arguments):
        raise ValueError(f"the arguments {tuple(arguments)} contain a symbol twice; give it once")
    printer = _PythonPrinter(names)
    lines = [f"def compiled({', '.join(names.values())}):", " try:"]
    sizes: dict[Basic, int] = {}
    for node, shared in _schedule(roots):
        if node in names:
            continue
        size = 1 + sum(sizes.get(arg, 1) for arg in node.args)
        if shared or size > MAX_INLINE:
            text = printer.at(node)
            names[node] = f"t{len(lines)}"
            lines.append(f"  {names[node]} = {text}")
            size = 1
        sizes[node] = size
    results = "".join(f"{printer.at(root)}, " for root in roots)
    lines += [f"  return ({results})", " except ZeroDivisionError: raise divided_by_zero()"]
    scope: dict[str, Any] = {
        "load": read_table,
        "search": search_table,
        "divided_by_zero": _divided_by_zero,
    }
    exec(_code("\n".join(lines)), scope)
    return scope["compiled"]


@lru_cache(maxsize=1 << 11)
def _code(source: str) -> CodeType:
    """Compile Python source; results are cached, as many index expressions give equal sources."""
    return compile(source, "<index expressions>", "exec")


def _divided_by_zero() -> DivisionByZero:
    return DivisionByZero(
        "an index expression divides by 0; change the values, or make the divisor at least 1"
    )


def _schedule(roots: Sequence[Basic]) -> list[tuple[Basic, bool]]:
    """The nodes of `roots` that every evaluation computes, each with whether it is used repeatedly.

    A node comes after its arguments. Nodes that occur only in branches of a `Select` are left out,
    because they may not be computed.
    """
    order: dict[Basic, None] = {}
    for root in roots:
        _visit(root, order)
    uses: Counter[Basic] = Counter(roots)
    pending, counted = list(roots), set(roots)
    while pending:
        for arg in pending.pop().args:
            uses[arg] += 1
            if arg not in counted:
                counted.add(arg)
                pending.append(arg)
    return [(node, uses[node] > 1) for node in order if node.args]


def _visit(node: Basic, order: dict[Basic, None]) -> None:
    """Add a node to `order`, after the nodes of its arguments that every evaluation computes."""
    if node in order:
        return
    # Of a Select, only the condition is always computed. Arguments of "and" and "or" are not always
    # computed, because Python stops at the first argument that decides the result.
    certain = node.args[:1] if isinstance(node, Select) else node.args
    if isinstance(node, (And, Or)):
        certain = ()
    for arg in certain:
        _visit(arg, order)
    order[node] = None
