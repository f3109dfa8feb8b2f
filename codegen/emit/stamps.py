"""Emits the code that writes timeline records (`Stamp` operations), for all targets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from llvmlite import ir
from sympy import Expr

from codegen.emit.walker import Walker
from coordgraph.control.resolve import Node
from coordgraph.control.timeline import Stamp, code_of

__all__ = ["Clocks", "stamp_words", "store_words"]

I32, I64 = ir.IntType(32), ir.IntType(64)
HALF = 4
"""Number of 32-bit words in one 16-byte store: half of a record."""
PADDING = -1
"""The tile number that a timeline record has if the tile is padding (outside D)."""


class Clocks(Protocol):
    """Interface: emits reads of the clocks and the number of the SM (of the thread on a CPU)."""

    def clock(self) -> ir.Value:
        """Emit a read of the clock of the SM (of the operating system on a CPU), 64 bits."""
        ...

    def global_time(self) -> ir.Value:
        """Emit a read of the time in nanoseconds, equal on all SMs and CPU threads, 64 bits."""
        ...

    def processor(self) -> ir.Value:
        """Emit a read of the number of the SM (of the thread on a CPU), 32 bits."""
        ...


def stamp_words(walker: Walker, node: Node, op: Stamp, clocks: Clocks) -> list[ir.Value]:
    """Emit the words of a timeline record, in the format of `coordgraph.control.timeline`."""
    b = walker.builder
    words = _halves(b, clocks.clock())
    words.append(ir.Constant(I32, code_of(op.activity, op.role, op.form)))
    words.append(_word(walker, node.scope.resolve(op.stalled), node))
    numbers: list[ir.Value] = []
    match op.form:
        case "whole":
            count = _word(walker, node.scope.resolve(op.count), node)
            numbers = [*_halves(b, clocks.global_time()), clocks.processor(), count]
        case "tile":
            numbers = _tile(walker, node, op)
        case "range":
            count = _word(walker, node.scope.resolve(op.count), node)
            numbers = [_place(walker, node, op.first, 1), count]
        case _:
            pass
    return words + numbers + [ir.Constant(I32, 0)] * (HALF - len(numbers))


def _halves(b: ir.IRBuilder, value: ir.Value) -> list[ir.Value]:
    """The two 32-bit halves of a 64-bit value, the low one first."""
    return [b.trunc(value, I32), b.trunc(b.lshr(value, ir.Constant(I64, 32)), I32)]


def _word(walker: Walker, expr: Expr, node: Node) -> ir.Value:
    """Emit the value of an index expression, as a 32-bit integer."""
    return walker.expressions.widen(walker.number(expr, node), 32, expr, node.scope.ranges)


def _tile(walker: Walker, node: Node, op: Stamp) -> list[ir.Value]:
    """Emit the position of a timeline record's tile: product (0 if only one), m and n.

    The unit of m and n is the largest tile that divides all tile shapes of the kernel.
    """
    *product, m, n = op.tile
    numbers = [_place(walker, node, dim, 1) for dim in product] or [ir.Constant(I32, 0)]
    return [
        *numbers,
        *(_place(walker, node, d, s) for d, s in zip((m, n), op.span, strict=True)),
    ]


def _place(walker: Walker, node: Node, dim: str, times: int) -> ir.Value:
    """Emit the index along `dim` multiplied by `times`, or -1 if the index is padding."""
    found = node.place(dim)
    value = _word(walker, found.values[0] * times, node)
    guard: Any = walker.condition(found.guard, node)
    if guard is True:
        return value
    padding = ir.Constant(I32, PADDING)
    return padding if guard is False else walker.builder.select(guard, value, padding)


def store_words(b: ir.IRBuilder, words: Sequence[ir.Value], address: ir.Value) -> None:
    """Emit the stores of a timeline record's words, 16 bytes each."""
    kind = ir.VectorType(I32, HALF)
    for half in range(0, len(words), HALF):
        vector: ir.Value = ir.Constant(kind, ir.Undefined)
        for place, word in enumerate(words[half : half + HALF]):
            vector = b.insert_element(vector, word, ir.Constant(I32, place))
        target = b.gep(address, [ir.Constant(I64, 4 * half)], source_etype=ir.IntType(8))
        b.store(vector, target, align=4 * HALF)
