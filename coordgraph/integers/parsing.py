"""The parser of index expressions: recursive descent, with Python's operator precedence."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias, cast

from sympy import Eq, Expr, Ge, Gt, Integer, Le, Lt, Ne, S
from sympy.core.add import Add
from sympy.core.basic import Basic
from sympy.core.mul import Mul
from sympy.logic.boolalg import And, Boolean, Not, Or

from coordgraph.integers.functions import BitXor, FloorDiv, FloorMod, Maximum, Minimum, Select
from coordgraph.integers.tables import Load, Search
from coordgraph.integers.text import MAX_DIGITS, NAME, RESERVED

MAX_DEPTH = 50
"""The largest nesting depth of parentheses, calls, `not` and unary minus in a text, so that the
recursive parser does not exhaust Python's stack."""
MAX_HEIGHT = 120
"""The largest height (nodes from the root to a leaf) of the tree of a parsed expression, so that
recursive walks over it do not exhaust Python's stack."""

_TOKEN = re.compile(
    rf"\s*(?:(?P<number>[0-9]+)|(?P<name>{NAME.pattern})"
    r"|(?P<sign>//|<=|>=|==|!=|[-+*%^<>(),]))"
)
_COMPARISONS = {"<": Lt, "<=": Le, "==": Eq, "!=": Ne, ">": Gt, ">=": Ge}
_CALLS = {
    "min": (Minimum, 2),
    "max": (Maximum, 2),
    "select": (Select, 3),
    "load": (Load, 2),
    "search": (Search, 3),
}

_Node: TypeAlias = tuple[Basic, int]
"""A parsed expression or condition, and the height of its tree."""


class ExpressionSyntaxError(ValueError):
    """A text is not a valid index expression.

    Args:
        message: what is wrong with the text.
        column: the position of the error, counted from 0; the printed message counts columns from
            1.
    """

    def __init__(self, message: str, column: int) -> None:
        super().__init__(f"{message} (column {column + 1})")
        self.message = message
        self.column = column


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str
    text: str
    column: int


def _tokens(text: str) -> list[_Token]:
    found: list[_Token] = []
    position, end = 0, len(text.rstrip())
    while position < end:
        match = _TOKEN.match(text, position)
        if match is None:
            column = position + len(text[position:]) - len(text[position:].lstrip())
            raise ExpressionSyntaxError(
                f"unexpected character {text[column]!r}, which no index expression has; remove it",
                column,
            )
        kind = str(match.lastgroup)
        found.append(_Token(kind, match.group(kind), match.start(kind)))
        position = match.end()
    found.append(_Token("end", "", end))
    return found


class _Parser:
    """A recursive-descent parser of index expressions: one method per level of operator precedence.

    Each of these methods returns the expression and the height of its tree.

    Args:
        text: the text to parse.
        symbols: a function that returns the expression for a name, or raises KeyError for an
            unknown name.
    """

    def __init__(self, text: str, symbols: Callable[[str], Expr]) -> None:
        self.tokens = _tokens(text)
        self.position = 0
        self.symbols = symbols
        self.depth = 0

    @property
    def token(self) -> _Token:
        return self.tokens[self.position]

    def take(self, *texts: str) -> _Token | None:
        token = self.token
        if token.kind != "end" and token.text in texts:
            self.position += 1
            return token
        return None

    def expect(self, text: str) -> None:
        if not self.take(text):
            raise self.error(f"expected {text!r}")

    def error(self, message: str, token: _Token | None = None) -> ExpressionSyntaxError:
        token = token or self.token
        found = f"{token.text!r}" if token.text else "the end"
        return ExpressionSyntaxError(f"{message}, found {found}", token.column)

    def enter(self, column: int) -> None:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise ExpressionSyntaxError(
                f"parentheses or calls are nested more than {MAX_DEPTH} levels deep; use fewer",
                column,
            )

    def build(self, token: _Token, maker: Callable[..., object], *nodes: _Node) -> _Node:
        """Apply ``maker`` to the expressions ``nodes``.

        Raises:
            ExpressionSyntaxError: ``maker`` raises an error; it is reported at the column of
                ``token``.
        """
        height = 1 + max(h for _, h in nodes)
        if height > MAX_HEIGHT:
            raise ExpressionSyntaxError(
                f"the tree of the expression is higher than {MAX_HEIGHT} levels; shorten the "
                "expression",
                token.column,
            )
        try:
            return cast(Basic, maker(*(value for value, _ in nodes))), height
        except (ZeroDivisionError, TypeError) as error:
            raise ExpressionSyntaxError(str(error), token.column) from error

    def integer(self, node: _Node, token: _Token) -> _Node:
        if not isinstance(node[0], Expr):
            raise ExpressionSyntaxError("an integer is needed, not a condition", token.column)
        return node

    def condition(self, node: _Node, token: _Token) -> _Node:
        # For SymPy, symbols are both expressions and Booleans; in index expressions symbols are
        # integers.
        if not isinstance(node[0], Boolean) or isinstance(node[0], Expr):
            raise ExpressionSyntaxError("a condition is needed, not an integer", token.column)
        return node

    def disjunction(self) -> _Node:
        return self.connective("or", Or, self.conjunction)

    def conjunction(self) -> _Node:
        return self.connective("and", And, self.negation)

    def connective(
        self, word: str, maker: Callable[..., object], operand: Callable[[], _Node]
    ) -> _Node:
        start = self.token
        nodes = [operand()]
        while token := self.take(word):
            nodes[-1] = self.condition(nodes[-1], start)
            start = self.token
            nodes.append(self.condition(operand(), token))
        return nodes[0] if len(nodes) == 1 else self.build(start, maker, *nodes)

    def negation(self) -> _Node:
        if not (token := self.take("not")):
            return self.comparison()
        self.enter(token.column)
        operand = self.condition(self.negation(), token)
        self.depth -= 1
        return self.build(token, Not, operand)

    def comparison(self) -> _Node:
        start = self.token
        left = self.exclusive_or()
        if not (token := self.take(*_COMPARISONS)):
            return left
        right = self.integer(self.exclusive_or(), token)
        if self.token.text in _COMPARISONS:
            raise self.error("comparisons cannot be chained; join them with 'and'")
        return self.build(token, _COMPARISONS[token.text], self.integer(left, start), right)

    def exclusive_or(self) -> _Node:
        start = self.token
        left = self.sum()
        while token := self.take("^"):
            right = self.integer(self.sum(), token)
            left = self.build(token, BitXor, self.integer(left, start), right)
        return left

    def sum(self) -> _Node:
        start = self.token
        terms = [self.product()]
        while token := self.take("+", "-"):
            terms[0] = self.integer(terms[0], start)
            term = self.integer(self.product(), token)
            terms.append((-cast(Expr, term[0]), term[1]) if token.text == "-" else term)
        return terms[0] if len(terms) == 1 else self.build(start, Add, *terms)

    def product(self) -> _Node:
        # Build one Mul of all factors: SymPy expands a product of a number and a sum, so building
        # 2*(y + 1)*x factor by factor would change the expression.
        start = self.token
        factors = [self.unary()]
        while token := self.take("*", "//", "%"):
            factors[0] = self.integer(factors[0], start)
            factor = self.integer(self.unary(), token)
            if token.text == "*":
                factors.append(factor)
                continue
            left = self.multiplied(factors, start)
            maker = FloorDiv if token.text == "//" else FloorMod
            factors = [self.build(token, maker, left, factor)]
        return self.multiplied(factors, start)

    def multiplied(self, factors: list[_Node], start: _Token) -> _Node:
        return factors[0] if len(factors) == 1 else self.build(start, Mul, *factors)

    def unary(self) -> _Node:
        if not (token := self.take("-")):
            return self.atom()
        self.enter(token.column)
        value, height = self.integer(self.unary(), token)
        self.depth -= 1
        return -cast(Expr, value), height

    def atom(self) -> _Node:
        token = self.token
        if token.kind == "end" or (token.kind == "sign" and token.text != "("):
            raise self.error("expected a value, such as a number or a name")
        self.position += 1
        if token.kind == "number":
            if len(token.text) > MAX_DIGITS:
                raise ExpressionSyntaxError(
                    f"the number has {len(token.text)} digits, but may have at most "
                    f"{MAX_DIGITS}; use a smaller number",
                    token.column,
                )
            return Integer(int(token.text)), 1
        if token.kind == "name":
            return self.named(token)
        self.enter(token.column)
        node = self.disjunction()
        self.expect(")")
        self.depth -= 1
        return node

    def named(self, token: _Token) -> _Node:
        if token.text in ("true", "false"):
            return (S.true if token.text == "true" else S.false), 1
        if token.text in _CALLS:
            return self.call(token)
        if token.text in RESERVED:
            raise self.error("expected a value, such as a number or a name", token)
        try:
            return self.symbols(token.text), 1
        except KeyError as error:
            message = f"unknown name {token.text!r}; use the name of a known symbol"
            raise ExpressionSyntaxError(message, token.column) from error

    def call(self, token: _Token) -> _Node:
        maker, count = _CALLS[token.text]
        self.enter(token.column)
        self.expect("(")
        arguments: list[_Node] = []
        for position in range(count):
            if position:
                self.expect(",")
            start = self.token
            argument = self.disjunction()
            wanted = self.condition if maker is Select and position == 0 else self.integer
            arguments.append(wanted(argument, start))
        self.expect(")")
        self.depth -= 1
        return self.build(token, maker, *arguments)


def parse_expression(text: str, symbols: Callable[[str], Expr]) -> Expr:
    """Parse an index expression or a condition; the inverse of `to_text`.

    Args:
        text: the text of the expression or condition.
        symbols: a function that returns the expression for a name, or raises KeyError for an
            unknown name.

    Raises:
        ExpressionSyntaxError: the text is not a valid index expression.
    """
    parser = _Parser(text, symbols)
    try:
        node, _ = parser.disjunction()
    except RecursionError as error:  # the caller has already used most of Python's stack
        raise ExpressionSyntaxError(
            "the expression is nested too deeply for Python's stack; use fewer parentheses",
            parser.token.column,
        ) from error
    if parser.token.kind != "end":
        raise parser.error("expected an operator or the end of the expression")
    return cast(Expr, node)
