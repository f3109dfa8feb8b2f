"""Operations that lowerings for all machines share: register loops, epilogues, fix-up."""

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
from coordgraph.elements import dtype
from coordgraph.epilogue.operation import QUANTIZED
from coordgraph.epilogue.stages import Stage, stages_of
from coordgraph.gemm import GemmProblem, read_of, tensor_of
from coordgraph.integers import equal, index_symbol
from coordgraph.tilings import ACCUMULATOR, Tiling
from passes.kit.reduce_scatter import SHARE
from passes.lowering.architectures import Architecture
from passes.lowering.multiplying import too_old

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


NOTHING = "nothing is multiplied in this graph, so there is nothing to lower; start from Gemm.graph"
"""The error message for a graph without a `MultiplyAccumulate`, which cannot be lowered."""


def unrolled(c: CoordinateEditor, dims: tuple[str, ...], *body: Operation) -> Operation:
    """Nested unrolled loops over all indices of `dims`, which have fixed sizes, around `body`."""
    for dim in reversed(dims):
        body = (For(dim, Integer(0), Integer(c[dim].fixed_size), body=body, unroll=True),)
    return body[0]


def at(dims: dict[str, int], *body: Operation) -> Operation:
    """`body` with coordinates set to fixed indices, such as 0 for the first element of a vector.

    Args:
        dims: the index of each coordinate, by the coordinate's name.
        body: the operations that are executed at these indices.
    """
    for dim, value in reversed(dims.items()):
        body = (SetCoordinate(dim, Integer(value), body),)
    return body[0]


def multiplied(loop: For) -> MultiplyAccumulate:
    """The `MultiplyAccumulate` in the body of a loop over k tiles."""
    (found,) = (op for op in loop.body if isinstance(op, MultiplyAccumulate))
    return found


def leader(*body: Operation) -> Operation:
    """An operation by which only the first thread of the workgroup executes `body`."""
    return If(equal(index_symbol("workitem"), 0), body)


GPU_TYPES = ("bf16", "f16", "f32", "i32")
"""The element types of operands of an epilogue on a GPU; outputs may have 8-bit types, too."""


def no_epilogue(graph: KernelGraph, architecture: Architecture) -> str | None:
    """Why GPUs of an architecture cannot compute the graph's epilogue, or None if they can."""
    gemm = graph.gemm
    for tensor in (*gemm.operands, *gemm.outputs):
        stored = tensor in gemm.outputs
        types = (*GPU_TYPES, *QUANTIZED) if stored else GPU_TYPES
        if (kind := graph.tensor(tensor).dtype) not in types:
            what, moves = ("output", "store") if stored else ("operand", "read")
            return (
                f"{what} {tensor} of the epilogue has the type {kind}, which GPU kernels do not "
                f"{moves}; convert it to one of: {', '.join(types)}"
            )
    if gemm.row_reductions and SHARE in graph.coordinates:
        return (
            f"the output {gemm.row_reductions[0]} of the epilogue reduces rows, but with the "
            "reduction 'scatter' no workgroup finishes whole rows of a tile; choose another "
            "reduction, such as turnstile"
        )
    kinds = gemm.epilogue.kinds(gemm.accumulator, gemm.out_dtype or gemm.dtype)
    if "f64" in (*kinds.operands.values(), *kinds.steps):
        return (
            f"the epilogue {gemm.epilogue.name} computes in f64, and GPU kernels compute in f32; "
            "use target='cpu', or f32 operands"
        )
    made = (dtype(kind) for kind in kinds.steps if kind != "bool")
    return next((why for kind in made if (why := too_old(kind, architecture))), None)


def stages(gemm: GemmProblem, op: Epilogue, absent: Container[str] = ()) -> tuple[Stage, ...]:
    """The stages of an epilogue, without the stages that read operands in `absent`.

    Args:
        gemm: the problem, which says the types of the accumulator and of D.
        op: the epilogue.
        absent: tensors of optional operands that no launch of this kernel passes.
    """
    found = stages_of(op.function, gemm.accumulator, gemm.out_dtype or gemm.dtype)
    return tuple(s for s in found if not s.optional or tensor_of(s.optional) not in absent)


def read_if(stage: Stage, op: Operation) -> Operation:
    """`op`, executed only if the launch passes the optional operand that `stage` reads."""
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
    part: str = "",
    rows: tuple[str, ...] = (),
    vector: str = "",
) -> ApplyFragment:
    """The operation that applies an epilogue stage to `width` adjacent elements of a row of D.

    The operation reads the stage's optional operand unconditionally; `read_if` makes the read
    conditional.

    Args:
        gemm: the matrix product: element types, extents, layouts and epilogue.
        stage: the stage of the epilogue.
        fragment: the name of the accumulator.
        registers: the unrolled coordinates whose indices select a vector of registers.
        width: number of registers in a vector.
        absent: tensors of optional operands that no launch of this kernel passes.
        part: the coordinate in `registers` along which the sums of one element lie; '' if the
            epilogue has one sum.
        rows: the register coordinates that number the rows of D of which a thread holds elements,
            if outputs that reduce rows are reduced in registers; () if they are reduced in memory.
        vector: the coordinate along a vector of registers.
    """
    function, there = stage.function, stage.optional and tensor_of(stage.optional)
    given = [tensor_of(o.name) for o in function.tensors if tensor_of(o.name) not in absent]
    sources = tuple(t for t in given if gemm.axes[t] or gemm.is_apart(t))
    reduces = tuple(o.name for o in function.outputs if o.reduce and rows)
    # A single product has no dimension that numbers products, so its index along l is taken as 0.
    indices = {o.name: dim for o in function.indices if (dim := gemm.index_of(o.axes))}
    return ApplyFragment(
        fragment,
        function,
        registers,
        sources,
        tuple(width if "n" in gemm.axes[t] else 1 for t in sources),
        tuple(t for t in given if t not in sources),
        tuple(t for t in given if gemm.operands[t].optional and t != there),
        width,
        stores=tuple(o.name for o in function.outputs if o.name not in reduces),
        part=part if len(function.sums) > 1 else "",
        reduces=reduces,
        rows=rows if reduces else (),
        vector=vector if reduces or indices else "",
        column="D.1" if reduces else "",
        indices=tuple(indices),
        along=tuple(indices.values()),
    )


def tie_operands(c: CoordinateEditor, gemm: GemmProblem, tiling: Tiling) -> None:
    """Tie positions in tiles of epilogue operands and outputs to positions in tiles of D.

    Along an axis that a tensor shares with D, a `PassThrough` edge makes both positions equal.
    """
    for tensor in (*gemm.operands, *gemm.outputs):
        for i, axis in enumerate(gemm.axes[tensor]):
            if axis == "t":  # "t" numbers tiles of D along n: no position in a tile
                continue
            below = tiling.index("D", gemm.axes["D"].index(axis))
            c.connect(PassThrough(tiling.index(tensor, i), below))


class Accumulator:
    """Operations that zero, add to, exchange and store an accumulator, vector by vector.

    Args:
        c: the coordinate graph under construction.
        registers: unrolled coordinates; each combination of their indices is a vector of registers.
        vector: the coordinate along a vector; its size is the number of registers in a vector.
        fragment: the name of the accumulator.
        barrier: the barrier among the threads that hold the accumulator.
        part: the coordinate that numbers the sums from which one element of D is computed: one of
            `registers`, or `vector`. D is stored from the registers at its index 0. '' if every
            element of D has one sum.
        rows: the register coordinates that number the rows of D of which a thread holds elements.
    """

    def __init__(
        self,
        c: CoordinateEditor,
        registers: tuple[str, ...],
        vector: str,
        fragment: str = ACCUMULATOR,
        barrier: Barrier = Barrier(),  # noqa: B008 - Barrier is frozen
        part: str = "",
        rows: tuple[str, ...] = (),
    ) -> None:
        self.c = c
        self.rows = rows
        self.registers = registers
        self.vector = vector
        self.fragment = fragment
        self.width = c[vector].fixed_size
        self.barrier = barrier
        self.part = part

    def _each(self, op: Operation, width: int) -> Operation:
        """Unrolled loops that execute `op` for all registers of the accumulator.

        One execution of `op` is for a vector if vectors have `width` registers, else for a single
        register.
        """
        return self._at_registers(op, width, {})

    def _once(self, op: Operation, width: int) -> Operation:
        """Unrolled loops that execute `op` for the first sum of each element of D.

        One execution of `op` is for a vector if vectors have `width` registers and `vector` does
        not number the sums of an element; else it is for a single register.
        """
        width = 1 if self.part == self.vector else width
        return self._at_registers(op, width, {self.part: 0} if self.part else {})

    def _at_registers(self, op: Operation, width: int, fixed: dict[str, int]) -> Operation:
        """Unrolled loops that execute `op` for the registers at the indices in `fixed`.

        Args:
            op: the operation on a vector of registers.
            width: number of registers for which `op` is executed at once if vectors have as many;
                otherwise `op` is executed for single registers.
            fixed: for some coordinates, the only index at which `op` is executed. For each of the
                other coordinates, `op` is executed at all indices.
        """
        dims = self.registers
        if width == self.width:
            fixed = {self.vector: 0} | fixed
        else:
            dims = (*dims, self.vector)
            changes: dict[str, Any] = {"registers": dims, "width": 1}
            if isinstance(op, ApplyFragment):
                changes["widths"] = tuple(1 for _ in op.sources)
            op = replace(op, **changes)
        body = at(fixed, op) if fixed else op
        return unrolled(self.c, tuple(dim for dim in dims if dim not in fixed), body)

    def zero(self) -> Body:
        """Set all registers of the accumulator to zero."""
        zero = ZeroFragment(self.fragment, self.registers, self.width)
        return (self._each(zero, self.width),)

    def add(self, source: str, width: int) -> Operation:
        """Add elements of the tensor `source` to the accumulator, reading `width` per access."""
        op = AccumulateFragment(self.fragment, source, self.registers, self.width)
        return self._each(op, width)

    def store(self, destination: str, width: int) -> Operation:
        """Write the accumulator to the tensor `destination`, with `width` elements per access."""
        op = StoreFragment(self.fragment, destination, self.registers, self.width)
        return self._each(op, width)

    def store_output(self, gemm: GemmProblem, destination: str, width: int) -> Operation:
        """Write the results of the epilogue to D.

        Args:
            gemm: the matrix product: element types, extents, layouts and epilogue.
            destination: the name of the tensor D.
            width: number of elements, adjacent in a row of D, that one access may write.
        """
        op = StoreFragment(self.fragment, destination, self.registers, self.width)
        return self._once(op, width if gemm.in_rows(destination) else 1)

    def epilogue(
        self, gemm: GemmProblem, op: Epilogue, width: int, absent: Container[str] = ()
    ) -> Body:
        """Apply every stage of an epilogue to every vector of the accumulator.

        Args:
            gemm: the matrix product: element types, extents, layouts and epilogue.
            op: the epilogue.
            width: number of elements of an operand or output, adjacent in a row of D, that one
                access may move.
            absent: tensors of optional operands that no launch of this kernel passes.
        """
        return tuple(self.stage(gemm, each, width, absent) for each in stages(gemm, op, absent))

    def stage(
        self, gemm: GemmProblem, stage: Stage, width: int, absent: Container[str] = ()
    ) -> Operation:
        """Apply one stage of an epilogue to every vector of the accumulator.

        Args:
            gemm: the matrix product: element types, extents, layouts and epilogue.
            stage: the stage of the epilogue.
            width: number of elements of an operand or output, adjacent in a row of D, that one
                access may move.
            absent: tensors of optional operands that no launch of this kernel passes.
        """
        apply = applied(
            gemm,
            stage,
            self.fragment,
            self.registers,
            width,
            absent,
            self.part,
            self.rows,
            self.vector,
        )
        accesses = apply.sources or apply.elements or apply.stores or apply.reduces
        own = width if accesses else self.width
        # Elements that are adjacent in a row of D may be apart in a tensor, such as a transposed
        # one; then each access moves one element.
        own = own if all(map(gemm.in_rows, (*apply.sources, *apply.stores))) else 1
        return read_if(stage, self._once(replace(apply, width=self.width), own))

    def send(self, turn: str = "") -> Body:
        """Store the accumulator in a slot of the workspace, then let one thread set its flag.

        The barrier orders the stores of all threads before the release by that thread.

        Args:
            turn: if several workgroups write the slot one after another, the dimension that
                numbers them; else ''.
        """
        signal = SignalFlag("flags", turn)
        return (self.store("partials", self.width), self.barrier, leader(signal))

    def receive(self, turn: str = "") -> Body:
        """Wait for the flag of a workspace slot, add its partial sums, then clear the flag.

        One thread acquires the flag for all threads, and clears the flag once all threads have read
        the partial sums.

        Args:
            turn: if several workgroups write the slot one after another, the dimension that numbers
                them; then the flag that is awaited is 1 + the index along this dimension. Else ''.
        """
        return (
            leader(WaitFlag("flags", turn)),
            self.barrier,
            self.add("partials", self.width),
            self.barrier,
            leader(ClearFlag("flags")),
        )

    def add_to(self, form: str) -> Body:
        """Add the accumulator to a slot of the workspace atomically, then raise the flag by one.

        Several workgroups add to the same slot. The barrier orders the additions of all threads
        before the release by the one thread that raises the flag.

        Args:
            form: the form of the PTX instruction `red`: `vector` or `scalar`.
        """
        op = ReduceFragment(self.fragment, "partials", self.registers, self.width, form)
        return (self._each(op, self.width), self.barrier, leader(RaiseFlag("flags")))

    def collect(self, op: CollectPartial) -> Body:
        """Wait until all senders have added to a workspace slot, add its sums, and clear the slot.

        One thread acquires the slot's flag for all threads. Each thread zeroes the elements that it
        has read, for the next launch. No workgroup adds to the slot again in this launch, so the
        flag is cleared at once.
        """
        wait = (WaitFlag("flags", senders=op.senders), ClearFlag("flags"))
        clear = FillElements("partials", self.width)
        cleared = unrolled(self.c, self.registers, at({self.vector: 0}, clear))
        return (leader(*wait), self.barrier, self.add("partials", self.width), cleared)
