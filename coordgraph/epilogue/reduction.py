"""Reductions over a row of a macro tile, by which an output of an epilogue may be computed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from coordgraph.epilogue.operation import FLOATS, NUMPY_KINDS, Algebra, Array

__all__ = ["IDENTITIES", "REDUCTIONS", "RUNNING", "Running", "combined", "reduced"]

Combine = Callable[[Algebra, Any, Any], Any]
State = tuple[Any, ...]
"""State of a running reduction: (result,); for logsumexp (maximum, sum of exponentials)."""


def _logaddexp(on: Algebra, a: Any, b: Any) -> Any:
    """`log(exp(a) + exp(b))`, computed without overflow; -inf if a and b are both -inf."""
    high, low = on("maximum", a, b), on("minimum", a, b)
    # If a and b are the same infinity, `low - high` would be NaN: use 0 for equal values instead.
    equal = on("compare", high, low, relation="==")
    apart = on("where", equal, 0.0, on("sub", low, high))
    return on("add", high, on("log", on("add", on("exp", apart), 1.0)))


REDUCTIONS: dict[str, Combine] = {
    "sum": lambda on, a, b: on("add", a, b),
    "max": lambda on, a, b: on("maximum", a, b),
    "logsumexp": _logaddexp,
}
"""For each reduction, by name: a function that combines the result so far with an element."""


def _rescaled(on: Algebra, a: State, b: State) -> State:
    """Merge two states of `logsumexp`, each of which is (maximum, sum of `exp(x - maximum)`).

    The sum that belongs to the smaller maximum is rescaled, so that one `exp` merges two states.
    """
    (high_a, sum_a), (high_b, sum_b) = a, b
    apart = on("sub", high_b, high_a)
    scale = on("exp", on("neg", on("abs", apart)))
    # If both maxima are the same infinity, `apart` is NaN: use the scale of equal values instead.
    scale = on("where", on("compare", high_a, high_b, relation="=="), 1.0, scale)
    larger = on("add", on("mul", sum_a, scale), sum_b)
    smaller = on("add", sum_a, on("mul", sum_b, scale))
    rising = on("compare", apart, 0.0, relation=">")
    return on("maximum", high_a, high_b), on("where", rising, larger, smaller)


@dataclass(frozen=True)
class Running:
    """A reduction as a running state, for machines that reduce parts of a row at the same time.

    The state of a part of the row is merged with the state of another part, in any order. Merging
    a with b gives the same bits as merging b with a.

    Args:
        identity: the state of an empty set of elements.
        absorb: a function that adds several elements to the set of a state, and returns the state
            of the larger set.
        merge: a function that merges two states.
        finish: a function from the state of the whole row to the result.
    """

    identity: tuple[float, ...]
    absorb: Callable[[Algebra, State, Sequence[Any]], State]
    merge: Callable[[Algebra, State, State], State]
    finish: Callable[[Algebra, State], Any]


def _one_by_one(combine: Combine) -> Callable[[Algebra, State, Sequence[Any]], State]:
    """A function `absorb` that combines a state with one element after another.

    Args:
        combine: combines the result so far, which is the whole state, with an element.
    """

    def absorb(on: Algebra, state: State, values: Sequence[Any]) -> State:
        (total,) = state
        for value in values:
            total = combine(on, total, value)
        return (total,)

    return absorb


def _rescaled_once(on: Algebra, state: State, values: Sequence[Any]) -> State:
    """Add several elements to a state of `logsumexp`: (maximum, sum of `exp(x - maximum)`).

    The sum is rescaled once, to the maximum of all elements. All exponentials depend on that
    maximum, but not on each other, so a GPU can overlap them.
    """
    before, total = state
    high = before
    for value in values:
        high = on("maximum", high, value)
    # `x - high` is NaN if both are the same infinity. If `high` is infinite, subtract 0 instead:
    # exp(x) of that infinity is 0 or infinite, which is the right sum.
    infinite = on("compare", on("abs", high), float("inf"), relation="==")
    shift = on("where", infinite, 0.0, high)
    total = on("mul", total, on("exp", on("sub", before, shift)))
    for value in values:
        total = on("add", total, on("exp", on("sub", value, shift)))
    return high, total


RUNNING: dict[str, Running] = {
    "sum": Running(
        (0.0,),
        _one_by_one(REDUCTIONS["sum"]),
        lambda on, a, b: (on("add", *a, *b),),
        lambda on, state: state[0],
    ),
    "max": Running(
        (float("-inf"),),
        _one_by_one(REDUCTIONS["max"]),
        lambda on, a, b: (on("maximum", *a, *b),),
        lambda on, state: state[0],
    ),
    "logsumexp": Running(
        (float("-inf"), 0.0),
        _rescaled_once,
        _rescaled,
        lambda on, state: on("add", state[0], on("log", state[1])),
    ),
}
"""For each reduction, by name: how to reduce parts of a row and merge the results (`Running`)."""
IDENTITIES = {name: running.identity[0] for name, running in RUNNING.items()}
"""For each reduction, its result for an empty set of elements."""


def combined(name: str, on: Algebra, before: Any, value: Any) -> Any:
    """Reduce one more element: combine it with the result of the elements before it.

    Args:
        name: the name of the reduction.
        on: applies an operation, given by name, to values.
        before: the result so far; before the first element, the reduction's entry of `IDENTITIES`.
        value: the element.
    """
    return REDUCTIONS[name](on, before, value)


def reduced(name: str, values: Array, mask: Array) -> Array:
    """The reduction of each row of a matrix over those columns where `mask` is true, with NumPy.

    Columns are added one after another, in ascending order.

    Args:
        name: the name of the reduction.
        values: a matrix.
        mask: True for each element of `values` that is reduced, False for all others.

    Returns:
        A matrix with one column.
    """
    import numpy as np

    on = Algebra(next(kind for kind in FLOATS if values.dtype == NUMPY_KINDS[kind]))
    total = np.full((len(values), 1), IDENTITIES[name], values.dtype)
    for column in range(values.shape[1]):
        here = slice(column, column + 1)
        total = np.where(mask[:, here], combined(name, on, total, values[:, here]), total)
    return total
