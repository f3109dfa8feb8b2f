"""Sparse polynomials with integer coefficients, whose variables are symbols and integer functions.

Proofs and the simplifier use these polynomials, because they are much faster than ``sympy.expand``.
A polynomial is a dictionary from monomials to coefficients, which must not be changed after it is
built.
"""

from functools import lru_cache
from hashlib import sha256
from operator import attrgetter
from threading import Lock
from typing import TypeAlias, TypeVar, cast
from weakref import WeakValueDictionary

from sympy import Expr, Integer, Symbol
from sympy.core.add import Add
from sympy.core.basic import Basic
from sympy.core.mul import Mul
from sympy.core.power import Pow

from coordgraph.integers.functions import IntegerFunction

NodeT = TypeVar("NodeT", bound=Basic)


class Atom:
    """A variable of polynomials: a symbol, or another expression that is not expanded.

    Equal expressions share one `Atom`, so atoms are hashed and compared by identity. Proofs spend
    most of their time on hashing and comparing, and SymPy's comparison takes ten times as long.

    Args:
        expr: the expression that the atom stands for.
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
"""A product of atoms in a canonical order, in which powers are repeated atoms; ``()`` is the number
1."""
Polynomial: TypeAlias = dict[Monomial, int]
"""A sum of monomials: a dictionary from each monomial to its nonzero integer coefficient."""

_ATOMS: WeakValueDictionary[Expr, Atom] = WeakValueDictionary()
_NEW_ATOM = Lock()
by_key = attrgetter("key")
"""The function that returns an atom's sort key, whose order is the same in every process."""


def atom_of(expr: Expr) -> Atom:
    """The atom of an expression; while the atom is referenced, equal expressions give this atom."""
    found = _ATOMS.get(expr)
    if found is None:
        with _NEW_ATOM:  # the lock keeps threads from creating two atoms of one expression
            found = _ATOMS.setdefault(expr, Atom(expr))
    return found


MAX_TERMS = 400
"""The largest number of terms of a polynomial; a larger product is kept as one atom."""
MAX_EXPONENT = 8
"""The largest exponent of a power that `to_polynomial` expands; a larger power is kept as one
atom."""
MAX_KEY = 160
"""The largest number of characters of an atom's sort key; a longer key is replaced by its hash."""


@lru_cache(maxsize=1 << 16)
def order_key(expr: Basic) -> str:
    """The sort key of an expression: a text that is the same in every process.

    Long texts are replaced by their hash, because the text of an expression with shared parts can
    be exponentially long.
    """
    if isinstance(expr, Symbol):
        return expr.name
    if isinstance(expr, Integer):
        return f"{int(expr):x}"
    parts = [order_key(arg) for arg in expr.args]
    if isinstance(expr, (Add, Mul)):  # SymPy's order of terms and factors varies between processes
        parts.sort()
    key = f"{type(expr).__name__}({','.join(parts)})"
    return key if len(key) < MAX_KEY else sha256(key.encode()).hexdigest()


def constant(value: int) -> Polynomial:
    """The constant polynomial with the value ``value``."""
    return {(): value} if value else {}


def atom(expr: Expr) -> Polynomial:
    """The polynomial with one term: ``expr`` as an atom, not expanded."""
    return {(atom_of(expr),): 1}


def add(p: Polynomial, q: Polynomial, scale: int = 1) -> Polynomial:
    """The polynomial ``p + scale·q``."""
    result = dict(p)
    for monomial, coefficient in q.items():
        _accumulate(result, monomial, scale * coefficient)
    return result


def _accumulate(p: Polynomial, monomial: Monomial, coefficient: int) -> None:
    """Add a term to a polynomial in place; only allowed while the polynomial is being built."""
    total = p.get(monomial, 0) + coefficient
    if total:
        p[monomial] = total
    else:
        p.pop(monomial, None)


def negate(p: Polynomial) -> Polynomial:
    """The polynomial ``-p``."""
    return {monomial: -coefficient for monomial, coefficient in p.items()}


def join(a: Monomial, b: Monomial) -> Monomial:
    """The product of two monomials."""
    if not a or not b:
        return a or b
    return tuple(sorted(a + b, key=by_key))


def multiply(p: Polynomial, q: Polynomial) -> Polynomial:
    """The polynomial ``p·q``."""
    result: Polynomial = {}
    for a, x in p.items():
        for b, y in q.items():
            monomial = join(a, b)
            result[monomial] = result.get(monomial, 0) + x * y
    return {monomial: c for monomial, c in result.items() if c}


def power(p: Polynomial, exponent: int) -> Polynomial:
    """The polynomial ``p`` raised to a small positive integer power."""
    if exponent == 1:
        return p
    result = constant(1)
    for _ in range(exponent):
        result = multiply(result, p)
    return result


@lru_cache(maxsize=1 << 14)
def to_polynomial(expr: Expr) -> Polynomial:
    """Expand an expression into a polynomial.

    A product or power whose expansion has more than `MAX_TERMS` terms becomes a single atom.
    """
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
    """The polynomial with one term: an integer function as an atom, with expanded arguments."""
    # Expand arguments, so that arguments of the same value in different forms give the same atom.
    args: tuple[Basic, ...] = expr.args
    expanded = tuple(
        to_expression(to_polynomial(arg)) if isinstance(arg, Expr) else arg for arg in args
    )
    if expanded == args:
        return atom(expr)
    try:
        rebuilt = expr.func(*cast(tuple[Expr, ...], expanded))
    # A divisor expands to 0: the expression is in a branch of a select that is never evaluated.
    except ZeroDivisionError:
        return atom(expr)
    return atom(rebuilt) if isinstance(rebuilt, IntegerFunction) else to_polynomial(rebuilt)


def to_expression(p: Polynomial) -> Expr:
    """The SymPy expression of a polynomial: a sum of products."""
    return Add(*(Mul(Integer(c), *(a.expr for a in monomial)) for monomial, c in p.items()))


@lru_cache(maxsize=1 << 14)
def symbols_of(expr: Basic) -> frozenset[Symbol]:
    """The free symbols of an expression.

    The result is cached; SymPy's `free_symbols` takes exponential time if subtrees are shared.
    """
    if isinstance(expr, Symbol):
        return frozenset((expr,))
    return frozenset[Symbol]().union(*(symbols_of(arg) for arg in expr.args))


def nodes_of(expr: Basic, *types: type[NodeT]) -> set[NodeT]:
    """The distinct nodes of an expression, itself included, that are instances of `types`.

    SymPy's `atoms` takes exponential time if subtrees are shared.
    """
    pending, seen, found = [expr], {expr}, set[NodeT]()
    while pending:
        node = pending.pop()
        if isinstance(node, types):
            found.add(node)
        for arg in node.args:
            if arg not in seen:
                seen.add(arg)
                pending.append(arg)
    return found


def atoms_of(p: Polynomial) -> list[Atom]:
    """The distinct atoms (variables) of a polynomial, in a canonical order."""
    return sorted({a for monomial in p for a in monomial}, key=by_key)


def coefficient_of(p: Polynomial, target: Atom) -> tuple[Polynomial, Polynomial] | None:
    """Split ``p = c·target + rest`` into ``(c, rest)``; None if p is not linear in target."""
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
    """Replace the atom ``target`` in ``p`` by the polynomial ``value``."""
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
    """The quotient ``monomial / part``, or None if ``part`` does not divide ``monomial``."""
    remaining = list(monomial)
    for a in part:
        if a not in remaining:
            return None
        remaining.remove(a)
    return tuple(remaining)


def shared(a: Monomial, b: Monomial) -> Monomial:
    """The greatest common divisor of two monomials."""
    left = list(b)
    found: list[Atom] = []
    for x in a:
        if x in left:
            left.remove(x)
            found.append(x)
    return tuple(found)


def divide(p: Polynomial, divisor: Polynomial) -> tuple[Polynomial, Polynomial]:
    """Divide polynomials with remainder: returns ``(q, r)`` with ``p = q·divisor + r``.

    Monomials that the divisor's leading monomial divides are eliminated, the largest first.
    """
    lead = max(divisor, key=lambda m: (len(m), [a.key for a in m]))
    quotient: Polynomial = {}
    remaining, done = p, cast(Polynomial, {})
    for _ in range(MAX_TERMS):
        if not remaining:
            break
        monomial = max(remaining, key=lambda m: (len(m), [a.key for a in m]))
        c = remaining[monomial]
        rest = without(monomial, lead)
        # Round the quotient of the coefficients toward 0, so that the remainder has the sign of c,
        # the dividend's coefficient.
        ratio = abs(c) // abs(divisor[lead]) * (1 if (c > 0) == (divisor[lead] > 0) else -1)
        if rest is None or not ratio:
            done = add(done, {monomial: c})
            remaining = {m: x for m, x in remaining.items() if m != monomial}
            continue
        step: Polynomial = {rest: ratio}
        quotient = add(quotient, step)
        remaining = add(remaining, multiply(step, divisor), -1)
        if remaining.get(monomial):  # c is no multiple of the divisor's leading coefficient
            done = add(done, {monomial: remaining[monomial]})
            remaining = {m: x for m, x in remaining.items() if m != monomial}
    return quotient, add(done, remaining)
