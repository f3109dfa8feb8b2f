"""Model of what TMA boxes load into a stage, element by element, and of the zeros that threads
store.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
from sympy import And, Symbol, sympify

from coordgraph.control.asynchronous import CopyBox
from coordgraph.control.lowered import FillElements
from coordgraph.control.resolve import Node
from coordgraph.integers import compile_function, index_symbol, symbols_of
from tests.codegen.nvptx.hopper_contents import Contents, of_box
from tests.codegen.nvptx.isa import Array

if TYPE_CHECKING:
    from tests.codegen.nvptx.hopper_control import ControlFlow
    from tests.codegen.nvptx.hopper_role import Role

__all__ = ["WARPGROUP", "bring", "compiled", "fill"]

WARPGROUP = 128


@cache
def compiled(expr: Any) -> tuple[Callable[..., tuple[Any, ...]], tuple[Symbol, ...]]:
    """Compile an expression; return (the compiled function, the symbols of its arguments).

    The function returns a tuple of one element: the expression's value. Compiled functions are
    cached, since most expressions are evaluated often.
    """
    symbols = tuple(symbols_of(sympify(expr)))
    return compile_function([expr], symbols), symbols


def bring(role: Role, node: Node, op: CopyBox, contents: Contents, stage: tuple[str, int]) -> None:
    """Simulate a TMA load of a box: store each element's index along k as its value."""
    axis = f"{op.tensor}.{1 - 'AB'.index(op.tensor)}"
    extent = role.depth(axis)
    size = _room(role, op.destination)
    first, k = role.place(node, op.destination), role.place(node, axis)
    along = op.source[0] in (axis, f"{op.tensor}.depth")
    places, numbers = of_box(first, op.box, k, extent, along=along)
    contents.copy(stage, size, role.step, places - stage[1] * size, numbers)


def fill(role: ControlFlow, node: Node) -> None:
    """Simulate a branch with a `FillElements`: each thread that enters the branch stores zeros."""
    (inner,) = (*node.body, *node.orelse)
    assert isinstance(inner.op, FillElements)
    home, found = inner.op.destination, inner.place(inner.op.destination)
    there = _everybody(role, node.condition) == bool(node.body)
    cleared = there & _everybody(role, found.guard)
    places = _everybody(role, found.values[0])[cleared]
    if not places.size:
        return
    width, room = inner.op.width, _room(role, home)
    assert not (places % width).any(), "zeros are stored to an unaligned address"
    (number,) = set((places // room).tolist())
    if (home, role.step) not in role.own.outside:
        brought = role.own.contents.steps.get((home, number))
        assert brought == role.step, "zeros are stored to a stage before TMA has loaded it"
    at = (places % room)[:, None] + np.arange(width)
    role.state.filled.stored.append(((home, number), at.ravel()))


def _room(role: ControlFlow, dim: str) -> int:
    """The number of elements that one pipeline stage has in the shared memory `dim`."""
    coordinates = role.machine.graph.coordinates
    return coordinates[dim].fixed_size // coordinates["stage"].fixed_size


def _everybody(role: ControlFlow, expr: Any) -> Array:
    """An array with the value of an expression or condition for each thread of a warpgroup."""
    if isinstance(expr, And):
        return np.all([_everybody(role, part) for part in expr.args], axis=0)
    function, symbols = compiled(expr)
    workitem = np.arange(WARPGROUP) + WARPGROUP * role.warpgroup
    own = {index_symbol("workitem"): workitem, index_symbol("warp.number"): workitem // 32}
    known: dict[Symbol, Any] = {**role.env, **own}
    return np.broadcast_to(function(*(known[symbol] for symbol in symbols))[0], WARPGROUP)
