"""Pieces of lowered control that every machine shares."""

from __future__ import annotations

from dataclasses import replace

from sympy import Integer

from coordgraph.control.lowered import (
    AccumulateFragment,
    Barrier,
    ClearFlag,
    FillElements,
    RaiseFlag,
    ReduceFragment,
    ScaleFragment,
    SignalFlag,
    StoreFragment,
    WaitFlag,
    ZeroFragment,
)
from coordgraph.control.operations import (
    Body,
    CollectPartial,
    For,
    If,
    MultiplyAccumulate,
    Operation,
    SetCoordinate,
)
from coordgraph.coordinates.graph import CoordinateEditor
from coordgraph.integers import equal, index_symbol
from coordgraph.tilings import ACCUMULATOR

__all__ = ["NOTHING", "Accumulator", "at", "leader", "multiplied", "unrolled"]


NOTHING = "nothing is multiplied in this graph"
"""Why it cannot be lowered."""


def unrolled(c: CoordinateEditor, dims: tuple[str, ...], *body: Operation) -> Operation:
    """A nest of written-out loops over dimensions of fixed size."""
    for dim in reversed(dims):
        body = (For(dim, Integer(0), Integer(c[dim].fixed_size), body=body, unroll=True),)
    return body[0]


def at(dims: dict[str, int], *body: Operation) -> Operation:
    """The body at fixed indices of some dimensions (the first element of a vector)."""
    for dim, value in reversed(dims.items()):
        body = (SetCoordinate(dim, Integer(value), body),)
    return body[0]


def multiplied(loop: For) -> MultiplyAccumulate:
    """What a loop over k tiles multiplies."""
    (found,) = (op for op in loop.body if isinstance(op, MultiplyAccumulate))
    return found


def leader(*body: Operation) -> Operation:
    """What one workitem does for all."""
    return If(equal(index_symbol("workitem"), 0), body)


class Accumulator:
    """Control that moves an accumulator: `registers` tell vectors apart, `vector` runs along one.

    Args:
        c: the coordinates being built.
        registers: written-out dimensions, one vector of registers for every index.
        vector: the dimension along a vector, and how many elements it has.
        fragment: the accumulator's name.
        barrier: among the workitems that hold the accumulator.
    """

    def __init__(
        self,
        c: CoordinateEditor,
        registers: tuple[str, ...],
        vector: str,
        fragment: str = ACCUMULATOR,
        barrier: Barrier = Barrier(),  # noqa: B008 - frozen
    ) -> None:
        self.c = c
        self.registers = registers
        self.vector = vector
        self.fragment = fragment
        self.width = c[vector].fixed_size
        self.barrier = barrier

    def _each(self, op: Operation, width: int) -> Operation:
        """`op` on every vector, in pieces of `width` elements."""
        if width == self.width:
            return unrolled(self.c, self.registers, at({self.vector: 0}, op))
        single = replace(op, registers=(*self.registers, self.vector), width=1)  # type: ignore[call-arg]
        return unrolled(self.c, (*self.registers, self.vector), single)

    def zero(self) -> Body:
        """Clear it."""
        zero = ZeroFragment(self.fragment, self.registers, self.width)
        return (self._each(zero, self.width),)

    def scale(self, scale: str) -> Operation:
        """Multiply by a scalar argument."""
        op = ScaleFragment(self.fragment, self.registers, scale, self.width)
        return self._each(op, self.width)

    def add(self, source: str, width: int, scale: str = "") -> Operation:
        """Add a tensor's elements, `scale` times."""
        op = AccumulateFragment(self.fragment, source, self.registers, self.width, scale)
        return self._each(op, width)

    def store(self, destination: str, width: int) -> Operation:
        """Write to a tensor."""
        op = StoreFragment(self.fragment, destination, self.registers, self.width)
        return self._each(op, width)

    def epilogue(self, tensor: str, width: int) -> Body:
        """`acc = alpha·acc + beta·C`."""
        read = If(equal(index_symbol("read_c"), 1), (self.add(tensor, width, "beta"),))
        return (self.scale("alpha"), read)

    def send(self, turn: str = "") -> Body:
        """Store, then let one workitem publish; a barrier orders all stores before its release."""
        signal = SignalFlag("flags", turn)
        return (self.store("partials", self.width), self.barrier, leader(signal))

    def receive(self, turn: str = "") -> Body:
        """One workitem acquires for all; the flag is lowered once everybody has read."""
        return (
            leader(WaitFlag("flags", turn)),
            self.barrier,
            self.add("partials", self.width),
            self.barrier,
            leader(ClearFlag("flags")),
        )

    def add_to(self, form: str) -> Body:
        """Add to what others add to, then let one workitem count this workgroup, as when sent."""
        op = ReduceFragment(self.fragment, "partials", self.registers, self.width, form)
        return (self._each(op, self.width), self.barrier, leader(RaiseFlag("flags")))

    def collect(self, op: CollectPartial) -> Body:
        """One workitem acquires for all; every one clears what it has read, for the next launch.

        Nobody adds to the slot again in this one: the flag may be lowered at once.
        """
        wait = (WaitFlag("flags", senders=op.senders), ClearFlag("flags"))
        clear = FillElements("partials", self.width)
        cleared = unrolled(self.c, self.registers, at({self.vector: 0}, clear))
        return (leader(*wait), self.barrier, self.add("partials", self.width), cleared)
