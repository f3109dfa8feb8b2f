"""Pieces of lowered control that every machine shares."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import replace
from typing import Any

from sympy import Integer

from coordgraph import KernelGraph
from coordgraph.control.lowered import (
    AccumulateFragment,
    ApplyFragment,
    Barrier,
    ClearFlag,
    FillElements,
    RaiseFlag,
    ReduceFragment,
    SignalFlag,
    StoreFragment,
    WaitFlag,
    ZeroFragment,
)
from coordgraph.control.operations import (
    Body,
    CollectPartial,
    Epilogue,
    For,
    If,
    MultiplyAccumulate,
    Operation,
    SetCoordinate,
)
from coordgraph.coordinates.edges import PassThrough
from coordgraph.coordinates.graph import CoordinateEditor
from coordgraph.epilogue.function import Stage
from coordgraph.gemm import GemmProblem, read_of, tensor_of
from coordgraph.integers import equal, index_symbol
from coordgraph.tilings import ACCUMULATOR, Tiling

__all__ = [
    "NOTHING",
    "Accumulator",
    "applied",
    "at",
    "leader",
    "multiplied",
    "no_epilogue",
    "read_if",
    "stages",
    "tie_operands",
    "unrolled",
]


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
    """The `MultiplyAccumulate` in the body of a loop over k tiles."""
    (found,) = (op for op in loop.body if isinstance(op, MultiplyAccumulate))
    return found


def leader(*body: Operation) -> Operation:
    """What one workitem does for all."""
    return If(equal(index_symbol("workitem"), 0), body)


GPU_TYPES = ("bf16", "f16", "f32", "i32")
"""What operands of an epilogue may hold on a GPU."""


def no_epilogue(graph: KernelGraph) -> str | None:
    """Why a GPU cannot compute the graph's epilogue, or None."""
    gemm = graph.gemm
    for tensor in gemm.operands:
        if (kind := graph.tensor(tensor).dtype) not in GPU_TYPES:
            return f"operands of the epilogue may hold {', '.join(GPU_TYPES)}, not {kind}: {tensor}"
    kinds = gemm.epilogue.kinds(gemm.accumulator, gemm.out_dtype or gemm.dtype)
    if "f64" in (*kinds.operands.values(), *kinds.steps):
        return f"the epilogue {gemm.epilogue.name} computes in f64, GPU kernels in f32"
    return None


def stages(gemm: GemmProblem, op: Epilogue, absent: Container[str] = ()) -> tuple[Stage, ...]:
    """The stages of an epilogue, without those of operands that are never given."""
    found = op.function.stages(gemm.accumulator, gemm.out_dtype or gemm.dtype)
    return tuple(s for s in found if not s.optional or tensor_of(s.optional) not in absent)


def read_if(stage: Stage, op: Operation) -> Operation:
    """A stage, where the operand that it is for is read."""
    if not stage.optional:
        return op
    return If(equal(index_symbol(read_of(tensor_of(stage.optional))), 1), (op,))


def applied(
    gemm: GemmProblem,
    stage: Stage,
    fragment: str,
    registers: tuple[str, ...],
    width: int = 1,
    absent: Container[str] = (),
) -> ApplyFragment:
    """The operation that applies an epilogue stage to `width` registers, adjacent in a row of D.

    It reads the stage's optional operand unconditionally: `read_if` guards it.
    """
    function, there = stage.function, stage.optional and tensor_of(stage.optional)
    given = [tensor_of(o.name) for o in function.tensors if tensor_of(o.name) not in absent]
    sources = tuple(t for t in given if gemm.axes[t] or gemm.is_apart(t))
    return ApplyFragment(
        fragment,
        function,
        registers,
        sources,
        tuple(width if "n" in gemm.axes[t] else 1 for t in sources),
        tuple(t for t in given if t not in sources),
        tuple(t for t in given if gemm.operands[t].optional and t != there),
        width,
    )


def tie_operands(c: CoordinateEditor, gemm: GemmProblem, tiling: Tiling) -> None:
    """Positions in tiles of the epilogue's operands are those in D's, along the axes they have."""
    for tensor in gemm.operands:
        for i, axis in enumerate(gemm.axes[tensor]):
            below = tiling.index("D", gemm.axes["D"].index(axis))
            c.connect(PassThrough(tiling.index(tensor, i), below))


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
        changes: dict[str, Any] = {"registers": (*self.registers, self.vector), "width": 1}
        if isinstance(op, ApplyFragment):
            changes["widths"] = tuple(1 for _ in op.sources)
        single = replace(op, **changes)
        return unrolled(self.c, (*self.registers, self.vector), single)

    def zero(self) -> Body:
        """Clear it."""
        zero = ZeroFragment(self.fragment, self.registers, self.width)
        return (self._each(zero, self.width),)

    def add(self, source: str, width: int) -> Operation:
        """Add a tensor's elements."""
        op = AccumulateFragment(self.fragment, source, self.registers, self.width)
        return self._each(op, width)

    def store(self, destination: str, width: int) -> Operation:
        """Write to a tensor."""
        op = StoreFragment(self.fragment, destination, self.registers, self.width)
        return self._each(op, width)

    def epilogue(
        self, gemm: GemmProblem, op: Epilogue, width: int, absent: Container[str] = ()
    ) -> Body:
        """The epilogue's stages, each on every vector.

        Args:
            gemm: the problem.
            op: the epilogue.
            width: elements of operands that lie next to each other along D's rows, and may be read
                at once.
            absent: tensors of optional operands that are never given.
        """
        body: list[Operation] = []
        for stage in stages(gemm, op, absent):
            apply = applied(gemm, stage, self.fragment, self.registers, width, absent)
            own = width if apply.sources or apply.elements else self.width
            each = self._each(replace(apply, width=self.width), own)
            body.append(read_if(stage, each))
        return tuple(body)

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
