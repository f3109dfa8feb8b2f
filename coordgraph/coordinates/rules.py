"""Decide conditions on sizes and indices by proof: true, false, or undecided."""

from __future__ import annotations

from typing import cast

from sympy import Eq, Expr, Ge, Gt, Le, Lt, Ne
from sympy.core.relational import Relational
from sympy.logic.boolalg import And, Boolean, Not, Or, false, true

from coordgraph.integers import Ranges, operands, simplify

__all__ = ["decide", "proves", "simplify_condition"]


def decide(condition: Boolean, ranges: Ranges) -> bool | None:
    """True if the known ranges of symbols prove `condition`, False if they refute it, else None."""
    if condition in (true, false):
        return condition == true
    if isinstance(condition, Not):
        inner = decide(operands(condition)[0], ranges)
        return None if inner is None else not inner
    if isinstance(condition, And | Or):
        parts = [decide(part, ranges) for part in operands(condition)]
        decisive = isinstance(condition, Or)
        if decisive in parts:
            return decisive
        return None if None in parts else not decisive
    if not isinstance(condition, Relational):
        return None
    left, right = operands(condition)
    match condition:
        case Eq() | Ne():
            equal = _decide_equal(left, right, ranges)
            return equal if equal is None or isinstance(condition, Eq) else not equal
        case Lt():
            return _decide_less(left, right, ranges)
        case Gt():
            return _decide_less(right, left, ranges)
        case Ge():
            return _decide_at_most(right, left, ranges)
        case Le():
            return _decide_at_most(left, right, ranges)
        case _:
            return None


def proves(condition: Boolean, ranges: Ranges) -> bool:
    """Whether the known ranges of symbols prove `condition`.

    Unlike `decide`, the function does not try to refute the condition, which saves time.
    """
    if condition in (true, false):
        return condition == true
    if isinstance(condition, And | Or):
        each = (proves(part, ranges) for part in operands(condition))
        return all(each) if isinstance(condition, And) else any(each)
    if not isinstance(condition, Relational):
        return False
    left, right = operands(condition)
    match condition:
        case Eq():
            return ranges.prove_equal(left, right)
        case Lt():
            return ranges.prove_less(left, right)
        case Gt():
            return ranges.prove_less(right, left)
        case Ge():
            return ranges.prove_nonnegative(left - right)
        case Le():
            return ranges.prove_nonnegative(right - left)
        case _:
            return decide(condition, ranges) is True


def _decide_less(left: Expr, right: Expr, ranges: Ranges) -> bool | None:
    if ranges.prove_less(left, right):
        return True
    return False if ranges.prove_nonnegative(left - right) else None


def _decide_at_most(left: Expr, right: Expr, ranges: Ranges) -> bool | None:
    # Try to prove first: most conditions hold, and attempts that fail take the longest.
    if ranges.prove_nonnegative(right - left):
        return True
    return False if ranges.prove_less(right, left) else None


def _decide_equal(left: Expr, right: Expr, ranges: Ranges) -> bool | None:
    if ranges.prove_equal(left, right):
        return True
    apart = ranges.prove_less(left, right) or ranges.prove_less(right, left)
    return False if apart else None


def simplify_condition(condition: Boolean, ranges: Ranges) -> Boolean:
    """Simplify both sides of each comparison in a condition, under the known ranges of symbols.

    A comparison that the ranges prove or refute becomes `true` or `false`.
    """
    if isinstance(condition, And | Or | Not):
        return condition.func(*(simplify_condition(part, ranges) for part in operands(condition)))
    if isinstance(condition, Relational):
        before = operands(condition)
        sides = [simplify(side, ranges) for side in before]
        if any(new is not old for new, old in zip(sides, before, strict=True)):
            # evaluate=False: SymPy's own evaluation of a comparison takes longer than `decide`.
            condition = cast(Boolean, condition.func(*sides, evaluate=False))
    decided = decide(condition, ranges)
    if decided is None:
        return condition
    return true if decided else false
