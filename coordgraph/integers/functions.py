"""Integer functions with floor semantics, as sympy functions that evaluate only what is certain.

sympy's own ``floor`` is slow and its ``Mod`` rewrites nested moduli wrongly, so index expressions
use these instead. ``eval`` folds constants and a few identities that need no ranges; everything
that needs bounds is the business of :mod:`coordgraph.integers.simplify`.
"""

from functools import cache
from typing import Any, TypeAlias, cast

from sympy import Eq, Expr, Function, Integer, S, Symbol
from sympy.core.basic import Basic
from sympy.core.relational import Relational
from sympy.logic.boolalg import And, Boolean, BooleanAtom, Not, Or

IntegerLike: TypeAlias = Expr | int


class IntegerFunction(Function):
    """Base of all functions here: integer-valued, commutative even over conditions."""

    is_integer = True
    is_commutative = True


def _refuse_non_integers(*args: Basic) -> None:
    for arg in args:
        if not isinstance(arg, Expr) or (arg.is_Number and not isinstance(arg, Integer)):
            raise TypeError(f"integer expression expected, got {arg!r}")


def _refuse_zero_divisor(name: str, divisor: Expr) -> None:
    if divisor is S.Zero:
        raise ZeroDivisionError(f"{name} by the literal 0")


class FloorDiv(IntegerFunction):
    """``a // b`` rounded toward minus infinity, as in Python."""

    @classmethod
    def eval(cls, a: Expr, b: Expr) -> Expr | None:  # pyright: ignore
        """Fold ``3//2``, ``x//1``, ``0//d`` and ``x//x`` for a positive x."""
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
    """``a % b`` with the sign of ``b``, as in Python."""

    @classmethod
    def eval(cls, a: Expr, b: Expr) -> Expr | None:  # pyright: ignore
        """Fold ``3%2``, ``x%1``, ``0%d`` and ``x%x`` for a positive x."""
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
    """Bitwise exclusive or (two's complement where an argument is negative)."""

    @classmethod
    def eval(cls, a: Expr, b: Expr) -> Expr | None:  # pyright: ignore
        """Fold constants, ``x^0`` and ``x^x``; order the arguments."""
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
    """The smaller of two integers."""

    @classmethod
    def eval(cls, a: Expr, b: Expr) -> Expr | None:  # pyright: ignore
        """Fold constants and ``min(x, x)``; order the arguments."""
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
    """The larger of two integers."""

    @classmethod
    def eval(cls, a: Expr, b: Expr) -> Expr | None:  # pyright: ignore
        """Fold constants and ``max(x, x)``; order the arguments."""
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
    """``a`` where the condition holds, else ``b``."""

    @classmethod
    def eval(cls, condition: Basic, a: Expr, b: Expr) -> Expr | None:  # pyright: ignore
        """Fold a decided condition and equal branches."""
        if not isinstance(condition, (Relational, And, Or, Not, BooleanAtom)):
            raise TypeError(f"condition expected, got {condition!r}")
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
    """``a // b``, typed as an expression."""
    return cast(Expr, FloorDiv(a, b))


def floor_mod(a: IntegerLike, b: IntegerLike) -> Expr:
    """``a % b``, typed as an expression."""
    return cast(Expr, FloorMod(a, b))


def bit_xor(a: IntegerLike, b: IntegerLike) -> Expr:
    """``a ^ b``, typed as an expression."""
    return cast(Expr, BitXor(a, b))


def minimum(a: IntegerLike, b: IntegerLike) -> Expr:
    """``min(a, b)``, typed as an expression."""
    return cast(Expr, Minimum(a, b))


def maximum(a: IntegerLike, b: IntegerLike) -> Expr:
    """``max(a, b)``, typed as an expression."""
    return cast(Expr, Maximum(a, b))


def select(condition: Boolean | bool, a: IntegerLike, b: IntegerLike) -> Expr:
    """``a if condition else b``, typed as an expression."""
    return cast(Expr, Select(condition, a, b))


def equal(a: IntegerLike, b: IntegerLike) -> Boolean:
    """``a == b``, typed as a condition."""
    return cast(Boolean, Eq(a, b))


def operands(expr: Basic) -> tuple[Any, ...]:
    """``expr.args``, which sympy types as `Basic`: the node's class says what they really are."""
    return expr.args


def ceil_div(a: IntegerLike, b: IntegerLike) -> Expr:
    """``⌈a / b⌉`` for a positive ``b``, as ``(a + b - 1) // b``."""
    return floor_div(a + b - 1, b)


@cache
def index_symbol(name: str) -> Symbol:
    """A symbol that stands for an index: an integer ≥ 0."""
    return Symbol(name, integer=True, nonnegative=True)


@cache
def size_symbol(name: str) -> Symbol:
    """A symbol that stands for a size: an integer ≥ 1."""
    return Symbol(name, integer=True, positive=True)
