"""The simplifier of index expressions, which uses the known ranges of symbols.

Each rule is documented by a comment, often with an example, above the method that applies it. A
rule preserves the value of an expression for all values of symbols inside the ranges. A rule's
method returns None if the rule does not apply.
"""

from collections.abc import Callable, Iterator
from typing import TypeVar, cast

from sympy import Eq, Expr, Ge, Gt, Le, Lt, Ne, S, Symbol
from sympy.core.add import Add
from sympy.core.basic import Basic
from sympy.core.relational import Relational

from coordgraph.integers.factors import common_factor, peel, quotient_of, terms_of
from coordgraph.integers.functions import (
    FloorDiv,
    FloorMod,
    Maximum,
    Minimum,
    floor_div,
    floor_mod,
)
from coordgraph.integers.polynomials import nodes_of
from coordgraph.integers.ranges import Ranges

MAX_STEPS = 2000
"""The largest number of rewrites in one bottom-up walk of the simplifier over an expression; what
is not simplified by then stays as it is."""
MAX_ROUNDS = 8
"""The largest number of the simplifier's walks over one expression; walks end earlier if one
changes nothing."""

_Basic = TypeVar("_Basic", bound=Basic)
_Rule = Callable[["_Simplifier", Expr, Expr], Expr | None]


def simplify(expr: _Basic, ranges: Ranges) -> _Basic:
    """Simplify an expression or a condition; for values inside the ranges its value is unchanged.

    Simplifying the result again does not change it.

    Args:
        expr: the expression or condition.
        ranges: the known ranges of symbols, which also cache the simplified expressions.
    """
    ranges = ranges.about(expr)
    known = ranges.simplified
    if expr not in known:
        current: Basic = expr
        for _ in range(MAX_ROUNDS):
            before, current = current, _Simplifier(ranges).visit(current)
            if current == before:
                break
        known[expr] = current
        known[current] = current
    return cast(_Basic, known[expr])


class _Simplifier:
    """One bottom-up walk over an expression, with a limited number of rewrites so that it ends."""

    def __init__(self, ranges: Ranges) -> None:
        self.ranges = ranges
        self.known: dict[Basic, Basic] = {}
        self.steps = MAX_STEPS

    def visit(self, expr: Basic) -> Basic:
        if not expr.args:
            return expr
        if expr in self.ranges.simplified:
            return self.ranges.simplified[expr]
        if expr not in self.known:
            self.known[expr] = expr
            self.known[expr] = self.rewritten(expr)
        return self.known[expr]

    def expr(self, expr: Expr) -> Expr:
        return cast(Expr, self.visit(expr))

    def rewritten(self, expr: Basic) -> Basic:
        if isinstance(expr, Add) and (joined := self.recombined(expr)) is not None:
            return self.again(joined)
        args = [self.visit(arg) for arg in expr.args]
        if any(new is not old for new, old in zip(args, expr.args, strict=True)):
            try:
                rebuilt = expr.func(*cast(tuple[Expr, ...], tuple(args)))
            # A divisor became 0, so the expression is in a branch that is never evaluated.
            except ZeroDivisionError:
                return expr
            if rebuilt != expr:
                return self.again(rebuilt)
        result = self.rules(expr)
        return expr if result is None or result == expr else self.again(result)

    def again(self, expr: Basic) -> Basic:
        self.steps -= 1
        return self.visit(expr) if self.steps > 0 else expr

    def rules(self, expr: Basic) -> Basic | None:
        if isinstance(expr, (FloorDiv, FloorMod)):
            x, d = cast(tuple[Expr, Expr], expr.args)
            for rule in _DIVISION if isinstance(expr, FloorDiv) else _REMAINDER:
                result = rule(self, x, d)
                if result is not None:
                    return result
        elif isinstance(expr, (Minimum, Maximum)):
            return self.extreme(expr)
        elif isinstance(expr, Relational):
            return self.relation(expr)
        return None

    def positive(self, expr: Expr) -> bool:
        return self.ranges.prove_less(0, expr)

    def recombined(self, expr: Add) -> Expr | None:
        # Rewrite (x//d)*d + x%d -> x, also with a common factor: (x//d)*d*c + (x%d)*c -> x*c
        terms = list(expr.args)
        for term in terms:
            for remainder in (f for f in _factors(term) if isinstance(f, FloorMod)):
                x, d = cast(tuple[Expr, Expr], remainder.args)
                scale = quotient_of(term, remainder)
                if scale is None:
                    continue
                for quotient in {floor_div(x, d), self.expr(floor_div(x, d))}:
                    if not isinstance(quotient, FloorDiv):
                        continue
                    mate = scale * d * quotient
                    if mate in terms and mate != term:
                        return expr - term - mate + scale * x
        return None

    def peeled(self, x: Expr, d: Expr) -> tuple[Expr, Expr] | None:
        natural = self.ranges.prove_nonnegative
        parts = peel(x, d, natural)
        if parts is None or natural(parts[1]) or not natural(x):
            return parts
        # If x >= 0 is proved but r >= 0 is not, the split x = a*d + r would prevent unsigned
        # division: split off (a - 1)*d instead, as in (TK*y - 1)//TK -> (TK - 1)//TK + y - 1 for y
        # >= 1. Do not split if a = 1, as in (x + TK - 1)//TK.
        count, rest = parts[0] - 1, parts[1] + d
        return (count, rest) if count != 0 and natural(rest) else None

    # Rewrite (a*d + r)//d -> a + r//d
    def peel_quotient(self, x: Expr, d: Expr) -> Expr | None:
        parts = self.peeled(x, d)
        return None if parts is None else parts[0] + floor_div(parts[1], d)

    # Rewrite (a*d + r)%d -> r%d
    def peel_remainder(self, x: Expr, d: Expr) -> Expr | None:
        parts = self.peeled(x, d)
        return None if parts is None else floor_mod(parts[1], d)

    def inside(self, x: Expr, d: Expr) -> bool:
        return self.ranges.prove_less(x, d) and self.ranges.prove_nonnegative(x)

    # Rewrite x//d -> 0 when 0 <= x < d: lane//32 -> 0
    def small_quotient(self, x: Expr, d: Expr) -> Expr | None:
        return S.Zero if self.inside(x, d) else None

    # Rewrite x%d -> x when 0 <= x < d: lane%32 -> lane
    def small_remainder(self, x: Expr, d: Expr) -> Expr | None:
        return x if self.inside(x, d) else None

    # Rewrite (x//a)//b -> x//(a*b)
    def nested_quotient(self, x: Expr, d: Expr) -> Expr | None:
        if isinstance(x, FloorDiv) and self.positive(d):
            inner, a = cast(tuple[Expr, Expr], x.args)
            return floor_div(inner, a * d)
        return None

    # Rewrite (x%(a*b))//b -> (x//b)%a
    def quotient_of_remainder(self, x: Expr, d: Expr) -> Expr | None:
        if not isinstance(x, FloorMod):
            return None
        inner, modulus = cast(tuple[Expr, Expr], x.args)
        a = quotient_of(modulus, d)
        if a is None or not self.positive(a):
            return None
        return floor_mod(floor_div(inner, d), a)

    # Rewrite (x%(a*b) + y)%b -> (x + y)%b
    def nested_remainder(self, x: Expr, d: Expr) -> Expr | None:
        changed = False
        terms: list[Expr] = []
        for term in terms_of(x):
            for factor in _factors(term):
                if isinstance(factor, FloorMod):
                    inner, modulus = cast(tuple[Expr, Expr], factor.args)
                    scale = quotient_of(term, factor)
                    if scale is not None and quotient_of(scale * modulus, d) is not None:
                        term, changed = scale * inner, True
                        break
            terms.append(term)
        return floor_mod(Add(*terms), d) if changed else None

    def low_parts(self, x: Expr, d: Expr) -> Iterator[tuple[Expr, Expr, Expr, Expr]]:
        """Yield splits (g, h, y, low) of a dividend x and a divisor d by a common factor g.

        ``x = g*h + low``, ``d = g*y`` and ``0 <= low < g``.
        """
        seen: set[Expr] = set()
        for pivot in terms_of(x):
            g = common_factor(pivot, d)
            if g in seen or g in (1, -1) or (y := quotient_of(d, g)) is None:
                continue
            seen.add(g)
            quotients = [(term, quotient_of(term, g)) for term in terms_of(x)]
            high = Add(*(q for _, q in quotients if q is not None))
            low = Add(*(term for term, q in quotients if q is None))
            if low is S.Zero or (self.inside(low, g) and self.positive(y)):
                yield g, high, y, low

    # Rewrite (a*x + r)//(a*b) -> x//b when 0 <= r < a: (4*x + 2)//8 -> x//2
    def common_quotient(self, x: Expr, d: Expr) -> Expr | None:
        return next((floor_div(h, y) for _, h, y, _ in self.low_parts(x, d)), None)

    # Rewrite (a*x + r)%(a*b) -> a*(x%b) + r when 0 <= r < a: (4*x + 2)%8 -> 4*(x%2) + 2
    def common_remainder(self, x: Expr, d: Expr) -> Expr | None:
        parts = self.low_parts(x, d)
        return next((g * floor_mod(h, y) + low for g, h, y, low in parts), None)

    def carry_free(self, x: Expr, d: Expr) -> tuple[Expr, Expr] | None:
        """Split a dividend x into a + b without a carry: ``a%d + b < d`` for the divisor d.

        b is a symbol that is proved to be at least 0. Returns (a, b), or None if no split is found.
        """
        terms = terms_of(x)
        for b in terms if len(terms) > 1 else ():
            if not isinstance(b, Symbol) or b not in self.ranges.bounds:
                continue
            a = x - b
            for upper in self.ranges.bounds[b].uppers:
                for node in nodes_of(upper, FloorMod):
                    y, divisor = cast(tuple[Expr, Expr], node.args)
                    if divisor != d or self.expr(floor_mod(a - y, d)) != 0:
                        continue
                    # `node` is y%d, a part of an upper bound of b. Since a - y is a multiple of d,
                    # y%d equals a%d. So `top` equals a%d + b; there is no carry if `top` < d.
                    top = cast(Expr, node) + b
                    if self.ranges.prove_less(top, d) and self.ranges.prove_nonnegative(b):
                        return a, b
        return None

    # Rewrite (a + b)//d -> a//d when 0 <= b <= d - a%d - 1
    def carry_quotient(self, x: Expr, d: Expr) -> Expr | None:
        parts = self.carry_free(x, d)
        return None if parts is None else floor_div(parts[0], d)

    # Rewrite (a + b)%d -> a%d + b when 0 <= b <= d - a%d - 1
    def carry_remainder(self, x: Expr, d: Expr) -> Expr | None:
        parts = self.carry_free(x, d)
        return None if parts is None else floor_mod(parts[0], d) + parts[1]

    # Rewrite min(a, b) -> a and max(a, b) -> b when a <= b: min(lane, 31) -> lane
    def extreme(self, expr: Basic) -> Expr | None:
        a, b = cast(tuple[Expr, Expr], expr.args)
        if self.ranges.prove_nonnegative(b - a):
            return a if isinstance(expr, Minimum) else b
        if self.ranges.prove_nonnegative(a - b):
            return b if isinstance(expr, Minimum) else a
        return None

    # Rewrite a < b -> true when a < b is proved, false when b <= a is proved: lane < 32 -> true
    def relation(self, expr: Relational) -> Basic | None:
        a, b = cast(tuple[Expr, Expr], expr.args)
        if isinstance(expr, (Eq, Ne)):
            same = S.true if isinstance(expr, Eq) else S.false
            if self.ranges.prove_equal(a, b):
                return same
            apart = self.ranges.prove_less(a, b) or self.ranges.prove_less(b, a)
            return ~same if apart else None
        if isinstance(expr, (Gt, Ge)):
            a, b = b, a
        if isinstance(expr, (Lt, Gt)):
            holds, fails = self.ranges.prove_less(a, b), self.ranges.prove_nonnegative
            return S.true if holds else (S.false if fails(a - b) else None)
        if isinstance(expr, (Le, Ge)):
            holds, fails = self.ranges.prove_nonnegative(b - a), self.ranges.prove_less
            return S.true if holds else (S.false if fails(b, a) else None)
        return None


def _factors(term: Expr) -> tuple[Expr, ...]:
    return cast(tuple[Expr, ...], term.args) if term.is_Mul else (term,)


_DIVISION: tuple[_Rule, ...] = (
    _Simplifier.peel_quotient,
    _Simplifier.small_quotient,
    _Simplifier.nested_quotient,
    _Simplifier.quotient_of_remainder,
    _Simplifier.common_quotient,
    _Simplifier.carry_quotient,
)
_REMAINDER: tuple[_Rule, ...] = (
    _Simplifier.peel_remainder,
    _Simplifier.small_remainder,
    _Simplifier.nested_remainder,
    _Simplifier.common_remainder,
    _Simplifier.carry_remainder,
)
