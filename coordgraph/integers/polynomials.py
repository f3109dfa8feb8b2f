"""Sparse polynomials with integer coefficients, over symbols and opaque function nodes.

They are what proofs and the simplifier compute with: much quicker than ``sympy.expand``.
A polynomial is a dictionary from monomials to coefficients and is never changed once built.
"""

from collections import Counter
from functools import lru_cache
from hashlib import sha256
from operator import attrgetter
from threading import Lock
from typing import TypeAlias, cast
from weakref import WeakValueDictionary

from sympy import Expr, Integer, Symbol
from sympy.core.add import Add
from sympy.core.basic import Basic
from sympy.core.mul import Mul
from sympy.core.power import Pow

from coordgraph.integers.functions import IntegerFunction


class Atom:
    """A symbol or an opaque function node, one object for all equal expressions.

    It is hashed and compared by what it is: proofs do hardly anything else, and to ask sympy's
    expressions takes ten times as long.
    """

    __slots__ = ("__weakref__", "expr", "key", "symbols")

    def __init__(self, expr: Expr) -> None:
        self.expr = expr
        self.key = order_key(expr)
        self.symbols = symbols_of(expr)

    def __reduce__(self) -> tuple[object, tuple[Expr]]:
        return atom_of, (self.expr,)

    def __repr__(self) -> str:
        return str(self.expr)


Monomial: TypeAlias = tuple[Atom, ...]
"""Atoms with repetition, in a canonical order; ``()`` is the constant."""
Polynomial: TypeAlias = dict[Monomial, int]

_ATOMS: WeakValueDictionary[Expr, Atom] = WeakValueDictionary()
_NEW_ATOM = Lock()
by_key = attrgetter("key")
"""Orders atoms the same way in every process."""


def atom_of(expr: Expr) -> Atom:
    """Return the atom of an expression, the same one as long as anybody has it."""
    found = _ATOMS.get(expr)
    if found is None:
        with _NEW_ATOM:  # two threads must not make two
            found = _ATOMS.setdefault(expr, Atom(expr))
    return found


MAX_TERMS = 400
MAX_EXPONENT = 8
MAX_KEY = 160


@lru_cache(maxsize=1 << 16)
def order_key(expr: Basic) -> str:
    """Return a text that orders expressions the same way in every process.

    Long ones are hashed, because the text of a tree with shared parts can be exponentially long.
    """
    if isinstance(expr, Symbol):
        return expr.name
    if isinstance(expr, Integer):
        return f"{int(expr):x}"
    parts = [order_key(arg) for arg in expr.args]
    if isinstance(expr, (Add, Mul)):  # sympy's own order is not ours to rely on
        parts.sort()
    key = f"{type(expr).__name__}({','.join(parts)})"
    return key if len(key) < MAX_KEY else sha256(key.encode()).hexdigest()


def constant(value: int) -> Polynomial:
    """Return a constant polynomial."""
    return {(): value} if value else {}


def atom(expr: Expr) -> Polynomial:
    """Return the polynomial that is one atom."""
    return {(atom_of(expr),): 1}


def add(p: Polynomial, q: Polynomial, scale: int = 1) -> Polynomial:
    """Return ``p + scale·q``."""
    result = dict(p)
    for monomial, coefficient in q.items():
        _accumulate(result, monomial, scale * coefficient)
    return result


def _accumulate(p: Polynomial, monomial: Monomial, coefficient: int) -> None:
    """Add a term to a polynomial that nobody else has yet."""
    total = p.get(monomial, 0) + coefficient
    if total:
        p[monomial] = total
    else:
        p.pop(monomial, None)


def negate(p: Polynomial) -> Polynomial:
    """Return ``-p``."""
    return {monomial: -coefficient for monomial, coefficient in p.items()}


def join(a: Monomial, b: Monomial) -> Monomial:
    """Return the product of two monomials."""
    if not a or not b:
        return a or b
    return tuple(sorted(a + b, key=by_key))


def multiply(p: Polynomial, q: Polynomial) -> Polynomial:
    """Return ``p·q``."""
    result: Polynomial = {}
    for a, x in p.items():
        for b, y in q.items():
            monomial = join(a, b)
            result[monomial] = result.get(monomial, 0) + x * y
    return {monomial: c for monomial, c in result.items() if c}


def power(p: Polynomial, exponent: int) -> Polynomial:
    """Return ``p`` to a small power."""
    if exponent == 1:
        return p
    result = constant(1)
    for _ in range(exponent):
        result = multiply(result, p)
    return result


@lru_cache(maxsize=1 << 14)
def to_polynomial(expr: Expr) -> Polynomial:
    """Expand an expression; what would grow too large stays one opaque atom."""
    if isinstance(expr, Integer):
        return constant(int(expr))
    if isinstance(expr, Add):
        result: Polynomial = {}
        for term in expr.args:
            result = add(result, to_polynomial(term))
        return result
    if isinstance(expr, Mul):
        result = constant(1)
        for factor in expr.args:
            other = to_polynomial(factor)
            if len(result) * len(other) > MAX_TERMS:
                return atom(expr)
            result = multiply(result, other)
        return result
    if isinstance(expr, Pow):
        base, exponent = expr.args
        inner = to_polynomial(base)
        if isinstance(exponent, Integer) and 0 < int(exponent) <= MAX_EXPONENT:
            if len(inner) ** int(exponent) <= MAX_TERMS:
                return power(inner, int(exponent))
        return atom(expr)
    if isinstance(expr, IntegerFunction):
        return _opaque(expr)
    return atom(expr)


def _opaque(expr: Expr) -> Polynomial:
    # Equal arguments written differently must give the same atom.
    args: tuple[Basic, ...] = expr.args
    expanded = tuple(
        to_expression(to_polynomial(arg)) if isinstance(arg, Expr) else arg for arg in args
    )
    if expanded == args:
        return atom(expr)
    try:
        rebuilt = expr.func(*cast(tuple[Expr, ...], expanded))
    except ZeroDivisionError:  # a divisor that expands to 0, in a branch never taken
        return atom(expr)
    return atom(rebuilt) if isinstance(rebuilt, IntegerFunction) else to_polynomial(rebuilt)


def to_expression(p: Polynomial) -> Expr:
    """Return the expanded expression of a polynomial."""
    return Add(*(Mul(Integer(c), *(a.expr for a in monomial)) for monomial, c in p.items()))


@lru_cache(maxsize=1 << 14)
def symbols_of(expr: Basic) -> frozenset[Symbol]:
    """Return the free symbols; sympy's own walk is exponential where subtrees are shared."""
    if isinstance(expr, Symbol):
        return frozenset((expr,))
    return frozenset[Symbol]().union(*(symbols_of(arg) for arg in expr.args))


def atoms_of(p: Polynomial) -> list[Atom]:
    """Return the distinct atoms in a canonical order."""
    return sorted({a for monomial in p for a in monomial}, key=by_key)


def coefficient_of(p: Polynomial, target: Atom) -> tuple[Polynomial, Polynomial] | None:
    """Split ``p = c·target + rest``; None where ``p`` is not linear in the target."""
    coefficient: Polynomial = {}
    rest: Polynomial = {}
    for monomial, c in p.items():
        count = monomial.count(target)
        if count > 1:
            return None
        if count:
            position = monomial.index(target)
            coefficient[monomial[:position] + monomial[position + 1 :]] = c
        else:
            rest[monomial] = c
    return coefficient, rest


def substitute(p: Polynomial, target: Atom, value: Polynomial) -> Polynomial:
    """Replace an atom by a polynomial."""
    result: Polynomial = {}
    for monomial, c in p.items():
        count = monomial.count(target)
        if count:
            others = tuple([a for a in monomial if a is not target])
            for other, x in power(value, count).items():
                _accumulate(result, join(others, other), c * x)
        else:
            _accumulate(result, monomial, c)
    return result


def without(monomial: Monomial, part: Monomial) -> Monomial | None:
    """Return ``monomial / part``, or None where it does not divide."""
    remaining = list(monomial)
    for a in part:
        if a not in remaining:
            return None
        remaining.remove(a)
    return tuple(remaining)


def shared(a: Monomial, b: Monomial) -> Monomial:
    """Return the greatest common part of two monomials."""
    return tuple(sorted((Counter(a) & Counter(b)).elements(), key=by_key))


def divide(p: Polynomial, divisor: Polynomial) -> tuple[Polynomial, Polynomial]:
    """Return ``(q, r)`` with ``p = q·divisor + r``, peeling what the divisor's lead divides."""
    lead = max(divisor, key=lambda m: (len(m), [a.key for a in m]))
    quotient: Polynomial = {}
    remaining, done = p, cast(Polynomial, {})
    for _ in range(MAX_TERMS):
        if not remaining:
            break
        monomial = max(remaining, key=lambda m: (len(m), [a.key for a in m]))
        c = remaining[monomial]
        rest = without(monomial, lead)
        # Truncation keeps the remainder's sign and makes it small.
        ratio = abs(c) // abs(divisor[lead]) * (1 if (c > 0) == (divisor[lead] > 0) else -1)
        if rest is None or not ratio:
            done = add(done, {monomial: c})
            remaining = {m: x for m, x in remaining.items() if m != monomial}
            continue
        step: Polynomial = {rest: ratio}
        quotient = add(quotient, step)
        remaining = add(remaining, multiply(step, divisor), -1)
        if remaining.get(monomial):  # what truncation left of this monomial
            done = add(done, {monomial: remaining[monomial]})
            remaining = {m: x for m, x in remaining.items() if m != monomial}
    return quotient, add(done, remaining)
