"""Random expressions over a few small symbols, and all valuations of the symbols."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from hypothesis import strategies as st
from sympy import And, Eq, Expr, Ge, Gt, Integer, Le, Lt, Ne, Not, Or, Symbol
from sympy.core.basic import Basic

from coordgraph.integers import (
    Ranges,
    bit_xor,
    evaluate,
    floor_div,
    floor_mod,
    index_symbol,
    maximum,
    minimum,
    select,
    size_symbol,
)

A, B = size_symbol("A"), size_symbol("B")
X, Y, S = index_symbol("i"), index_symbol("j"), Symbol("s", integer=True)
NAMES: dict[str, Symbol] = {x.name: x for x in (A, B, X, Y, S)}

Valuation = dict[Symbol, int]


def value_or_none(expr: Basic, values: Valuation) -> int | None:
    """The value of an expression, or None if it divides by zero."""
    try:
        return evaluate(expr, values)
    except ZeroDivisionError:
        return None


@dataclass(frozen=True)
class Space:
    """Ranges of symbols, and all assignments of values inside these ranges to the symbols."""

    ranges: Ranges
    sizes: tuple[int, int]
    signed: tuple[int, int]
    i_size: Expr
    j_uppers: tuple[Expr, ...]

    def valuations(self) -> Iterator[Valuation]:
        for a, b in product(*(range(1, top + 1) for top in self.sizes)):
            for s in range(self.signed[0], self.signed[1] + 1):
                values = {A: a, B: b, S: s}
                for i in range(evaluate(self.i_size, values)):
                    inner = {**values, X: i}
                    for j in range(min(evaluate(u, inner) for u in self.j_uppers) + 1):
                        yield {**inner, Y: j}


SIZES = (A, B, A * B, A + B, Integer(4), Integer(3), 2 * A, A + 1)
UPPERS = (
    A - 1,
    B - 1,
    A * B - X,
    X,
    Integer(5),
    A - floor_mod(X, A) - 1,
    4 - floor_mod(X, 4) - 1,
    minimum(B - floor_mod(X, B), A - X) - 1,
)


@st.composite
def spaces(draw: st.DrawFn) -> Space:
    sizes = draw(st.tuples(st.integers(1, 4), st.integers(1, 3)))
    low = draw(st.integers(-3, 2))
    signed = (low, low + draw(st.integers(0, 3)))
    i_size = draw(st.sampled_from(SIZES))
    uppers = tuple(draw(st.lists(st.sampled_from(UPPERS), min_size=1, max_size=2, unique=True)))
    ranges = Ranges()
    if draw(st.booleans()):
        ranges = ranges.with_fact(A, sizes[0]).with_fact(A * B, sizes[0] * sizes[1])
    ranges = ranges.with_bounds(S, signed[0], (signed[1],)).with_index(X, i_size)
    return Space(ranges.with_bounds(Y, 0, uppers), sizes, signed, i_size, uppers)


def conditions(children: st.SearchStrategy[Expr]) -> st.SearchStrategy[Basic]:
    relations = st.builds(
        lambda make, a, b: make(a, b), st.sampled_from((Lt, Le, Gt, Ge, Eq, Ne)), children, children
    )
    return st.one_of(
        relations,
        st.builds(And, relations, relations),
        st.builds(Or, relations, relations),
        st.builds(lambda a, b: Not(And(a, b)), relations, relations),
    )


def _extended(children: st.SearchStrategy[Expr]) -> st.SearchStrategy[Expr]:
    divisors = st.one_of(
        st.sampled_from((A, B, A * B, A + 1, 4 * A, *map(Integer, (2, 3, 4, 8)))),
        children.filter(lambda e: e != 0),
    )
    return st.one_of(
        st.builds(lambda a, b: a + b, children, children),
        st.builds(lambda a, b: a - b, children, children),
        st.builds(lambda a, b: a * b, children, children),
        st.builds(lambda a, c: a * c, children, st.sampled_from((A, B, 2, 4, 8, 12, -1))),
        st.builds(floor_div, children, divisors),
        st.builds(floor_mod, children, divisors),
        st.builds(floor_div, children, divisors),
        st.builds(floor_mod, children, divisors),
        st.builds(bit_xor, children, children),
        st.builds(minimum, children, children),
        st.builds(maximum, children, children),
        st.builds(select, conditions(children), children, children),
    )


leaves = st.one_of(st.sampled_from((X, Y, X, Y, A, B, S)), st.integers(-9, 17).map(Integer))
expressions = st.recursive(leaves, _extended, max_leaves=7)
