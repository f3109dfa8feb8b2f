"""Integer functions for index expressions, such as floor division, as SymPy functions.

These functions replace ``sympy.floor``, which is slow, and ``sympy.Mod``, which rewrites nested
moduli wrongly. Methods ``eval`` fold constants and apply identities that hold for all values;
rewrites that need bounds of symbols are in :mod:`coordgraph.integers.simplify`.
"""

from functools import cache, lru_cache
from typing import Any, TypeAlias, cast

from sympy import Eq, Expr, Function, Ge, Integer, Lt, S, Symbol
from sympy.core.basic import Basic
from sympy.core.relational import Relational
from sympy.logic.boolalg import And, Boolean, BooleanAtom, Not, Or

from coordgraph.errors import DivisionByZero

IntegerLike: TypeAlias = Expr | int
"""An integer expression or a Python int."""


class IntegerFunction(Function):
    """Base class of the integer functions in index expressions.

    `is_commutative` is set, because SymPy does not infer that a `Select`, which has a Boolean
    argument, is a number whose products commute.
    """

    is_integer = True
    is_commutative = True


def _refuse_non_integers(*args: Basic) -> None:
    for arg in args:
        if not isinstance(arg, Expr) or (arg.is_Number and not isinstance(arg, Integer)):
            raise TypeError(
                f"an integer expression is needed, but {arg!r} is given; give an int or a SymPy "
                "integer expression"
            )


def _refuse_zero_divisor(name: str, divisor: Expr) -> None:
    if divisor is S.Zero:
        raise DivisionByZero(f"{name} by the literal 0 has no value; use another divisor")


class FloorDiv(IntegerFunction):
    """``FloorDiv(a, b)``: the quotient ``a // b``, rounded toward minus infinity as in Python."""

    @classmethod
    def eval(cls, a: Expr, b: Expr) -> Expr | None:  # pyright: ignore
        """Simplify ``3//2``, ``x//1``, ``0//d``, and ``x//x`` for a positive x; otherwise None."""
        _refuse_non_integers(a, b)
        _refuse_zero_divisor("division", b)
        if isinstance(a, Integer) and isinstance(b, Integer):
            return Integer(int(a) // int(b))
        if a is S.Zero or b is S.One:
            return a
        if a == b and a.is_positive:
            return S.One
        return None

    def _eval_is_nonnegative(self) -> bool | None:
        a, b = self.args
        return True if a.is_nonnegative and b.is_nonnegative else None


class FloorMod(IntegerFunction):
    """``FloorMod(a, b)``: the remainder ``a % b``, with the sign of ``b`` as in Python."""

    @classmethod
    def eval(cls, a: Expr, b: Expr) -> Expr | None:  # pyright: ignore
        """Simplify ``3%2``, ``x%1``, ``0%d``, and ``x%x`` for a positive x; otherwise None."""
        _refuse_non_integers(a, b)
        _refuse_zero_divisor("remainder", b)
        if isinstance(a, Integer) and isinstance(b, Integer):
            return Integer(int(a) % int(b))
        if a is S.Zero or b is S.One or (a == b and a.is_positive):
            return S.Zero
        return None

    def _eval_is_nonnegative(self) -> bool | None:
        return True if self.args[1].is_nonnegative else None


class BitXor(IntegerFunction):
    """``BitXor(a, b)``: the bitwise exclusive or; negative numbers are in two's complement."""

    @classmethod
    def eval(cls, a: Expr, b: Expr) -> Expr | None:  # pyright: ignore
        """Simplify constants, ``x^0`` and ``x^x``; other arguments are put in a canonical order."""
        _refuse_non_integers(a, b)
        if isinstance(a, Integer) and isinstance(b, Integer):
            return Integer(int(a) ^ int(b))
        if a == b:
            return S.Zero
        if a is S.Zero or b is S.Zero:
            return b if a is S.Zero else a
        return cast(Expr, cls(b, a)) if a.compare(b) > 0 else None

    def _eval_is_nonnegative(self) -> bool | None:
        a, b = self.args
        return True if a.is_nonnegative and b.is_nonnegative else None


class Minimum(IntegerFunction):
    """``Minimum(a, b)``: the smaller of two integers."""

    @classmethod
    def eval(cls, a: Expr, b: Expr) -> Expr | None:  # pyright: ignore
        """Simplify constants and ``min(x, x)``; other arguments are put in a canonical order."""
        _refuse_non_integers(a, b)
        if a == b:
            return a
        if isinstance(a, Integer) and isinstance(b, Integer):
            return a if int(a) < int(b) else b
        return cast(Expr, cls(b, a)) if a.compare(b) > 0 else None

    def _eval_is_nonnegative(self) -> bool | None:
        a, b = self.args
        return True if a.is_nonnegative and b.is_nonnegative else None

    def _eval_is_positive(self) -> bool | None:
        a, b = self.args
        return True if a.is_positive and b.is_positive else None


class Maximum(IntegerFunction):
    """``Maximum(a, b)``: the larger of two integers."""

    @classmethod
    def eval(cls, a: Expr, b: Expr) -> Expr | None:  # pyright: ignore
        """Simplify constants and ``max(x, x)``; other arguments are put in a canonical order."""
        _refuse_non_integers(a, b)
        if a == b:
            return a
        if isinstance(a, Integer) and isinstance(b, Integer):
            return a if int(a) > int(b) else b
        return cast(Expr, cls(b, a)) if a.compare(b) > 0 else None

    def _eval_is_nonnegative(self) -> bool | None:
        a, b = self.args
        return True if a.is_nonnegative or b.is_nonnegative else None

    def _eval_is_positive(self) -> bool | None:
        a, b = self.args
        return True if a.is_positive or b.is_positive else None


class Select(IntegerFunction):
    """``Select(condition, a, b)``: ``a`` if the condition holds, else ``b``."""

    @classmethod
    def eval(cls, condition: Basic, a: Expr, b: Expr) -> Expr | None:  # pyright: ignore
        """Simplify to one of the branches if the condition is decided or the branches are equal."""
        if not isinstance(condition, (Relational, And, Or, Not, BooleanAtom)):
            raise TypeError(
                f"a condition is needed, but {condition!r} is given; give a comparison, And, Or or "
                "Not"
            )
        _refuse_non_integers(a, b)
        if a == b or condition is S.true:
            return a
        return b if condition is S.false else None

    def _eval_is_nonnegative(self) -> bool | None:
        _, a, b = self.args
        return True if a.is_nonnegative and b.is_nonnegative else None

    def _eval_is_positive(self) -> bool | None:
        _, a, b = self.args
        return True if a.is_positive and b.is_positive else None


def floor_div(a: IntegerLike, b: IntegerLike) -> Expr:
    """The expression ``a // b``: a quotient rounded toward minus infinity."""
    return cast(Expr, FloorDiv(a, b))


def floor_mod(a: IntegerLike, b: IntegerLike) -> Expr:
    """The expression ``a % b``: a remainder with the sign of ``b``."""
    return cast(Expr, FloorMod(a, b))


def bit_xor(a: IntegerLike, b: IntegerLike) -> Expr:
    """The expression ``a ^ b``: bitwise exclusive or."""
    return cast(Expr, BitXor(a, b))


def minimum(a: IntegerLike, b: IntegerLike) -> Expr:
    """The expression ``min(a, b)``."""
    return cast(Expr, Minimum(a, b))


def maximum(a: IntegerLike, b: IntegerLike) -> Expr:
    """The expression ``max(a, b)``."""
    return cast(Expr, Maximum(a, b))


def select(condition: Boolean | bool, a: IntegerLike, b: IntegerLike) -> Expr:
    """The expression ``a if condition else b``."""
    return cast(Expr, Select(condition, a, b))


@lru_cache(maxsize=1 << 13)
def equal(a: IntegerLike, b: IntegerLike) -> Boolean:
    """The condition ``a == b``; results are cached, because SymPy tries to decide equalities."""
    return cast(Boolean, Eq(a, b))


def less(a: Expr, b: Expr) -> Boolean:
    """The condition ``a < b``; `true` or `false` if both are numbers.

    Other comparisons stay undecided, because SymPy's attempt to decide a comparison takes longer
    than a proof by `Ranges` and proves less.
    """
    return cast(Boolean, Lt(a, b, evaluate=isinstance(a, Integer) and isinstance(b, Integer)))


@lru_cache(maxsize=1 << 13)
def at_least(a: IntegerLike, b: IntegerLike) -> Boolean:
    """The condition ``a >= b``; results are cached, because SymPy tries to decide inequalities."""
    return cast(Boolean, Ge(a, b))


def operands(expr: Basic) -> tuple[Any, ...]:
    """The arguments of an expression node, typed as ``Any``.

    SymPy declares arguments as `Basic`; the class of the node determines the arguments' actual
    types.
    """
    return expr.args


def ceil_div(a: IntegerLike, b: IntegerLike) -> Expr:
    """The expression ``⌈a / b⌉`` for a positive ``b``, written as ``(a + b - 1) // b``."""
    return floor_div(a + b - 1, b)


@cache
def index_symbol(name: str) -> Symbol:
    """The symbol named ``name`` for an index: an integer that is at least 0."""
    return Symbol(name, integer=True, nonnegative=True)


@cache
def size_symbol(name: str) -> Symbol:
    """The symbol named ``name`` for a size: an integer that is at least 1."""
    return Symbol(name, integer=True, positive=True)
