"""Stages of an epilogue function: a launch skips those whose optional operand is not passed."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from coordgraph.epilogue.function import EpilogueFunction
from coordgraph.epilogue.values import Argument

__all__ = ["Stage", "stages_of"]


@dataclass(frozen=True)
class Stage:
    """A part of an epilogue function that computes a new `acc`, and that may be skipped.

    Args:
        function: the epilogue function that computes the stage's new `acc`.
        optional: the optional operand without which the stage is skipped; '' if it always runs.
    """

    function: EpilogueFunction
    optional: str = ""


@lru_cache(maxsize=256)
def stages_of(function: EpilogueFunction, accumulator: str, default: str) -> tuple[Stage, ...]:
    """Split a function into stages; a stage whose operand is not passed can be skipped.

    Each stage computes a new `acc` from the previous stage's `acc`; the first stage computes it
    from the function's sums. A sum `p + q` is split if q is 0 whenever an optional operand is
    0, and p does not depend on that operand: one stage computes p, and the next stage computes
    `acc + q`, and runs only if the caller passes the operand. The first stage computes all
    outputs besides D, so a sum is not split if one of these outputs depends on the operand.

    Args:
        function: the epilogue function.
        accumulator: the element type of the sums.
        default: the element type of D, and of operands with axes but without a declared type.
    """
    found: list[Stage] = []
    kinds = function.kinds(accumulator, default)
    stored = frozenset[str]().union(*(function.needs(o.value) for o in function.outputs))
    optional = {o.name for o in function.operands if o.optional} - stored
    result = function.result
    while split := _tail(function, result, optional):
        base, name = split
        kind = accumulator if base in function.sums else kinds.steps[int(base[1:])]
        if kind != accumulator:
            break
        found.insert(0, Stage(function.part(result, base), name))
        result = base
    if (result,) != function.sums or function.outputs or not found:
        found.insert(0, Stage(function.part(result, outputs=function.outputs)))
    return tuple(found)


def _tail(
    function: EpilogueFunction, result: Argument, optional: set[str]
) -> tuple[str, str] | None:
    """Find a summand of `result` that is 0 whenever an optional operand is 0.

    Returns:
        (p, name) if `result` is a sum `p + q` in which q is 0 whenever the optional operand `name`
        is 0; None otherwise. p depends on a sum of products and not on the operand; q depends on
        the operand and on no sum of products.
    """
    if not isinstance(result, str) or not result.startswith("%"):
        return None
    step = function.steps[int(result[1:])]
    if step.operation != "add":
        return None
    for p, q in (step.arguments, step.arguments[::-1]):
        some = function.needs(q) & optional
        alone = function.needs(q).isdisjoint(function.sums)
        if len(some) != 1 or not alone or not isinstance(p, str):
            continue
        (name,) = some
        made = not function.needs(p).isdisjoint(function.sums)
        if made and name not in function.needs(p) and function.vanishes(q, name):
            return p, name
    return None
