"""Values of index expressions in all threads of a workgroup, as NumPy arrays."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from sympy import Symbol, sympify

from coordgraph.control.asynchronous import Advance, Counter
from coordgraph.control.declared_effects import effects
from coordgraph.control.effects import (
    WARP,
    Access,
    Asynchronous,
    Converge,
    Effect,
    Registers,
)
from coordgraph.control.operations import Assign, For
from coordgraph.control.resolve import Node
from coordgraph.integers import index_symbol

__all__ = [
    "WARP",
    "Array",
    "TooLarge",
    "Value",
    "accesses_of",
    "accesses_only",
    "affordable",
    "elected_of",
    "is_grid",
    "resolved",
    "shape_of",
    "thread_symbols",
    "threads_of",
    "uniform",
]

Array = npt.NDArray[Any]
Value = Any
"""Type: an integer that is the value for every thread, or an array with a value per thread."""
MOST_ELEMENTS = 1 << 24
"""Largest number of elements of one array in the simulation of a launch: 128 MiB of 64-bit
integers. A launch that needs a larger array raises `TooLarge` and is not examined."""


class TooLarge(Exception):
    """Raised when a launch cannot be simulated within the budget of time or memory.

    The launch is then not examined.
    """


def affordable(count: int, what: str) -> None:
    """Raise `TooLarge` if an array of `count` elements, which `what` names, is over the budget."""
    if count > MOST_ELEMENTS:
        raise TooLarge(
            f"{what} are {count}, over the budget of {MOST_ELEMENTS}; choose smaller sizes"
        )


def accesses_of(effect: Effect) -> tuple[Access, ...]:
    """The memory accesses of an effect; () if it has none.

    An effect that is an access is its own access; an asynchronous operation has several accesses.
    """
    if isinstance(effect, Access):
        return (effect,)
    if isinstance(effect, Asynchronous):
        return tuple(x for x in effect.accesses if isinstance(x, Access))
    return ()


def accesses_only(node: Node) -> bool:
    """Whether all operations in a loop only access memory; then its iterations are one step."""
    for inner in node.walk():
        op = inner.op
        if isinstance(op, Advance | Counter | Assign):
            return False
        if isinstance(op, For) and not op.unroll:
            return False
        if not op.BODIES and any(
            not isinstance(x, Access | Registers | Asynchronous | Converge) for x in effects(op)
        ):
            return False
    return True


def is_grid(value: Value) -> bool:
    """Whether a value is an array that has an axis for an unrolled loop."""
    return isinstance(value, np.ndarray) and value.ndim > 1


def shape_of(env: Mapping[Symbol, Value], mask: Array) -> tuple[int, ...]:
    """Array shape of an operation's values: an axis for each unrolled loop, then the threads."""
    grids = [np.shape(value) for value in env.values() if is_grid(value)]
    return np.broadcast_shapes(mask.shape, *grids)


def resolved(node: Node, value: Any) -> Any:
    """Replace index symbols in `value` by the expressions that they equal at `node`."""
    return node.scope.resolve(sympify(value))


def uniform(values: Array, mask: Array) -> Value:
    """One number if all threads of `mask` have the same value; else `values` itself."""
    if values.ndim > 1:
        return values
    chosen = values[threads_of(mask)]
    if not chosen.size:
        return values
    first = chosen[0]
    if (chosen == first).all():
        return bool(first) if values.dtype == np.bool_ else int(first)
    return values


def threads_of(mask: Array) -> Array:
    """For each thread, whether `mask` includes it in any iteration of the unrolled loops."""
    return np.asarray(mask.reshape(-1, mask.shape[-1]).any(axis=0))


def elected_of(mask: Array) -> Array:
    """A mask that selects, in each warp, the first thread that `mask` selects."""
    warps = mask.reshape(-1, WARP)
    first = np.zeros_like(warps)
    first[np.arange(len(warps)), warps.argmax(axis=1)] = True
    return (first & warps).reshape(-1)


def thread_symbols(workitem: str, warp: str, threads: int) -> dict[Symbol, Array]:
    """Values of the symbols that number threads and warps, for all threads of a workgroup."""
    every = np.arange(threads)
    return {index_symbol(workitem): every, index_symbol(warp): every // WARP}
