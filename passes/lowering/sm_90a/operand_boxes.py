"""Operands of the epilogue, loaded by TMA through the ring of stages like tiles of A and B.

If the epilogue reads an operand as large as D from global memory, it waits for memory several
times, because a thread has registers for few loads in flight. So the producer loads the operand's
tile to shared memory while the consumers still multiply. The operand's tile is loaded into the
stages that follow the last k tile in the ring, one *step* of the ring after another. In a step, the
stage holds boxes with some of the columns, and all of the rows, that a workgroup has of D. The part
of a vector along n, such as a bias, that belongs to these columns is loaded in the same step.
Consumers wait until a step is loaded, apply the epilogue to its columns, and free the stage.

In shared memory an operand along m and n aliases the stages of A or of B, whichever are larger, and
a vector along n aliases the stages of the other one.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import replace
from math import gcd

from sympy import Integer

from coordgraph import KernelGraph
from coordgraph.control.asynchronous import Advance, CopyBox, ExpectBytes, FenceShared, WaitBarrier
from coordgraph.control.operations import Body, Epilogue, For, Operation
from coordgraph.coordinates.dimensions import Linear, Register, Shared, Unroll
from coordgraph.coordinates.edges import Flatten, Split, Tile
from coordgraph.coordinates.graph import CoordinateEditor
from coordgraph.elements import ROW_BYTES, dtype
from coordgraph.epilogue.stages import Stage
from coordgraph.gemm import tensor_of
from passes.lowering.control import Accumulator, applied, at, stages, unrolled
from passes.lowering.sm_90a.boxes import LEAST_ROW_BYTES, MOST_ROWS, swizzle
from passes.lowering.sm_90a.division import Division
from passes.lowering.sm_90a.ring import EMPTY, FULL, PHASE, STEP

__all__ = ["OperandBoxes", "loaded_by_boxes"]

EIGHT, PAIR = 8, 2
"""EIGHT: number of adjacent columns of a wgmma result that four lanes together hold. PAIR: number
of adjacent columns that one lane holds."""
BOX_ALIGNMENT = 128
"""TMA needs the address of a box in shared memory to be a multiple of this number of bytes."""


def loaded_by_boxes(graph: KernelGraph, division: Division) -> tuple[str, ...]:
    """The epilogue operands that TMA loads through the ring of pipeline stages.

    TMA loads the first operand along m and n and the first vector along n, because a stage has
    room for one of each. Threads read all other operands, and operands that a launch may leave out,
    from global memory.

    The result is () in these cases, in which threads read all operands from global memory:

    - The problem is batched or grouped.
    - The workgroups of a cluster divide k, B is the left operand of wgmma, or a workgroup's part of
      a tile has more than `MOST_ROWS` rows.
    - The elements of a row of an operand or output are not adjacent, as in a transposed one.
    - The epilogue computes an element of D from several sums.
    - Consumers are ping-pong warpgroups. If operands were in the ring, the next main loop could
      begin only after the previous epilogue, but ping-pong consumers are meant to overlap main
      loops with epilogues.
    """
    gemm = graph.gemm
    if gemm.batched or gemm.grouped or division.turns > 1 or division.split > 1:
        return ()
    if division.swapped or division.extent(0) > MOST_ROWS or gemm.by_elements or gemm.sums > 1:
        return ()
    found = [name for name, each in gemm.operands.items() if not each.optional]
    first = (
        next((name for name in found if gemm.axes[name] == axes), None) for axes in ("mn", "n")
    )
    return tuple(name for name in first if name is not None)


class OperandBoxes:
    """Makes the operations and edges for epilogue operands that TMA loads through the ring.

    Args:
        c: the coordinate graph under construction; it has the accumulator's coordinates already.
        graph: the scheduled graph.
        division: how a macro tile is divided over workgroups and warpgroups.
        rooms: number of elements of A and of B that a stage has room for, by the dimension of their
            shared memory.
        stages: number of stages of the ring of k tiles in shared memory.
        tensors: the names of the operands that TMA loads: the result of `loaded_by_boxes`.
    """

    def __init__(
        self,
        c: CoordinateEditor,
        graph: KernelGraph,
        division: Division,
        rooms: Mapping[str, int],
        stages: int,
        tensors: Sequence[str],
    ) -> None:
        self.c, self.gemm, self.division, self.tensors = c, graph.gemm, division, tensors
        self.own, self.stages = division.tiling.own, stages
        self.kinds = {tensor: dtype(graph.tensor(tensor).dtype) for tensor in tensors}
        self.rows, self.columns = division.extent(0), division.extent(1)
        large = [tensor for tensor in tensors if self._is_large(tensor)]
        bytes_of = {name: room * division.kind.bytes for name, room in rooms.items()}
        larger, smaller = sorted(bytes_of, key=lambda name: bytes_of[name], reverse=True)
        self.width, self.run = self._boxes(bytes_of[larger], large[0] if large else None)
        """width: number of columns of a TMA box of an epilogue operand. run: number of such boxes
        of a warpgroup in one step of the ring of stages; 0 if no box fits in a stage."""
        if not self.run:
            self.tensors = ()
            return
        self.steps = division.share(1) // self.width // self.run
        self._add_columns()
        for tensor in tensors:
            if self._is_large(tensor):
                self._add_tile(tensor, larger, bytes_of[larger])
            else:
                self._add_vector(tensor, smaller, bytes_of[smaller])

    def _boxes(self, room_bytes: int, large: str | None) -> tuple[int, int]:
        """Choose the width and the number of TMA boxes that are loaded in one step of the ring.

        Rows of a box have at most `ROW_BYTES` bytes, unless rows would be very short: then a box
        has the whole width. A box is halved until it fits in a stage, but not below rows of
        `LEAST_ROW_BYTES` bytes. A step then has as many boxes as fit in a stage.

        Args:
            room_bytes: number of bytes of a stage.
            large: the name of the operand that is as large as D; None if only vectors are loaded.

        Returns:
            (number of columns of a box, number of boxes of a warpgroup in one step); the number of
            boxes is 0 if no box fits in a stage.
        """
        division = self.division
        if large is None:
            return division.columns, division.pieces
        size = self.kinds[large].bytes
        width, whole = gcd(division.columns, ROW_BYTES // size), division.columns
        if width * size < LEAST_ROW_BYTES and self._bytes_of_box(whole, size) <= room_bytes:
            # One wide box takes less time than many boxes whose rows are a single 16-byte chunk.
            # Rows of the wide box are an odd number of chunks, so they do not conflict in banks.
            width = whole
        while width * size > LEAST_ROW_BYTES and self._bytes_of_box(width, size) > room_bytes:
            width //= 2
        boxes, fit = division.share(1) // width, room_bytes // self._bytes_of_box(width, size)
        return width, max((n for n in range(1, fit + 1) if boxes % n == 0), default=0)

    def _bytes_of_box(self, width: int, size: int) -> int:
        """Bytes of TMA boxes that one step of the ring loads if each warpgroup has one box.

        If the warpgroups do not divide the columns of a tile, they share a single box.

        Args:
            width: number of columns of a box.
            size: number of bytes of an element.
        """
        return self.rows * width * size * self._beside

    def _is_large(self, tensor: str) -> bool:
        """Whether an operand has an element for every element of D."""
        return self.gemm.axes[tensor] == "mn"

    @property
    def _beside(self) -> int:
        """Number of warpgroups among which the columns of a tile are divided; 1 if they are not.

        Each of these warpgroups has its own TMA boxes in a step of the ring.
        """
        return self.division.team if self.division.warpgroups(1) else 1

    def _add_columns(self) -> None:
        """Add the edges from a column of D to its step of the ring, TMA box, and register."""
        c, own, division = self.c, self.own, self.division
        step, box, eight = own("operand.step"), own("operand.box"), own("operand.eight")
        c.add(Unroll(step, Integer(self.steps), note="steps of the ring"))
        c.add(Register(box, Integer(self.run), note="boxes of a step"))
        c.add(Register(eight, Integer(self.width // EIGHT), note="columns of 8 in a box"))
        all_of = Integer(division.pieces * division.columns // EIGHT)
        columns = c.add(Linear(own("operand.columns"), all_of, note="columns of 8"))
        c.connect(Flatten((own("acc.p"), own("acc.n")), columns.id))
        c.connect(Tile(columns.id, (step, box, eight)))
        self.step, self.registers = step, (own("acc.m"), step, box, eight, own("acc.half"))
        # These coordinates are for the producer's TMA loads: `number` numbers the boxes along n,
        # and a load begins at the first element of its box.
        beside = self._warpgroup("operand.load.warpgroup")
        number, load = own("operand.load.number"), own("operand.load.box")
        c.add(Linear(number, Integer(self.columns // self.width), note="boxes across"))
        c.add(Unroll(load, Integer(self.run)))
        c.connect(Tile(number, (*beside, step, load)))
        self.first = own("operand.first.row"), own("operand.first.column")
        c.add(Linear(self.first[0], Integer(self.rows), note="first row of a box: 0"))
        c.add(Linear(self.first[1], Integer(self.width), note="first column of a box: 0"))
        c.connect(Tile(division.own("D", 0), (self.first[0],)))
        c.connect(Tile(division.own("D", 1), (number, self.first[1])))
        self.loads = (*beside, load)
        # The TMA box of a column of D, and the column's position in the box: consumers and producer
        # both use these coordinates.
        self.part, self.column = own("operand.part"), own("operand.column")
        self.beside = self._warpgroup("operand.warpgroup")
        found, of_step = own("operand.number"), own("operand.of_step")
        c.add(Linear(found, c[number].size, note="boxes across"))
        c.add(Linear(of_step, Integer(self.steps)))
        c.add(Linear(self.part, Integer(self.run)))
        c.add(Linear(self.column, Integer(self.width), note="in a box"))
        c.connect(Flatten((found, self.column), division.own("D", 1)))
        c.connect(Flatten((*self.beside, of_step, self.part), found))

    def _warpgroup(self, name: str) -> tuple[str, ...]:
        """Add a coordinate that numbers the warpgroups among which the columns are divided.

        Returns the coordinate's id, or () if the columns are not divided.
        """
        if self._beside == 1:
            return ()
        return (self.c.add(Unroll(self.own(name), Integer(self._beside))).id,)

    def _memory(self, tensor: str) -> str:
        """The dimension of the shared memory for the part of an operand that a ring step loads."""
        return self.own(f"{tensor}.shared")

    def _add_memory(self, tensor: str, home: str, room_bytes: int, size: int) -> str:
        """Add shared memory, in every stage of the ring, for the elements that one step loads.

        Args:
            tensor: the operand.
            home: the shared memory (of A or of B) whose stages the operand aliases.
            room_bytes: number of bytes of a stage of `home`.
            size: number of elements of the operand in a step.

        Returns:
            The dimension whose index is the position of an element in a stage.
        """
        c, memory = self.c, self._memory(tensor)
        room = room_bytes // self.kinds[tensor].bytes
        whole = Integer((self.stages - 1) * room + size)
        c.add(Shared(memory, whole, tensor=tensor, within=home))
        place = c.add(Linear(f"{memory}.inside", Integer(size), note="in a stage"))
        c.connect(Split(memory, ("stage", place.id), (Integer(room), Integer(1))))
        return place.id

    def _add_tile(self, tensor: str, home: str, room_bytes: int) -> None:
        """Add the edges from shared memory to rows and columns of an operand along m and n."""
        c, memory, kind = self.c, self._memory(tensor), self.kinds[tensor]
        size = self.run * self._beside * self.rows * self.width
        inside = self._add_memory(tensor, home, room_bytes, size)
        chunks = self.width // kind.chunk
        row = c.add(Linear(f"{memory}.row", Integer(self.rows)))
        chunk = c.add(Linear(f"{memory}.chunk", Integer(chunks), note="16-byte chunk"))
        place = c.add(Linear(f"{memory}.place", Integer(chunks), note="before swizzle"))
        element = c.add(Linear(f"{memory}.element", Integer(kind.chunk)))
        c.connect(Tile(inside, (*self.beside, self.part, row.id, chunk.id, element.id)))
        c.connect(swizzle((row.id, chunk.id), (self.division.own("D", 0), place.id), chunks))
        c.connect(Flatten((place.id, element.id), self.column))

    def _add_vector(self, tensor: str, home: str, room_bytes: int) -> None:
        """Add the edges from shared memory to columns of D, for a vector along n.

        Every box begins at a multiple of 128 bytes, as TMA needs (PTX ISA, "Tensor Size, Alignment
        and Strides").
        """
        unit = BOX_ALIGNMENT // self.kinds[tensor].bytes
        pitch = -(-self.width // unit) * unit
        strides = self.run * pitch, pitch, 1
        size = (self._beside * self.run - 1) * pitch + self.width
        inside = self._add_memory(tensor, home, room_bytes, size)
        dims = (*self.beside, self.part, self.column)
        self.c.connect(Split(inside, dims, tuple(map(Integer, strides[-len(dims) :]))))

    def load(self, op: Epilogue) -> Body:
        """The producer's part of an epilogue: in each step, load the operands' boxes by TMA."""
        return tuple(
            self._load(held) for stage in stages(self.gemm, op) if (held := self._of(stage))
        )

    def _load(self, tensors: Sequence[str]) -> Operation:
        """Load operands that one stage of the epilogue function reads."""
        boxes = self.run * self._beside
        rows = {t: self.rows if self._is_large(t) else 1 for t in tensors}
        size = sum(boxes * self.width * rows[t] * self.kinds[t].bytes for t in tensors)
        copies = tuple(
            CopyBox(
                t,
                (f"{t}.1", f"{t}.0") if self._is_large(t) else (f"{t}.0",),
                self._memory(t),
                FULL,
                (self.width, self.rows) if self._is_large(t) else (self.width,),
            )
            for t in tensors
        )
        start = dict.fromkeys(self.first, 0)
        body = (
            WaitBarrier(EMPTY, PHASE, before=True),
            ExpectBytes(FULL, Integer(size)),
            unrolled(self.c, self.loads, at(start, *copies)),
            Advance(STEP),
        )
        return For(self.step, Integer(0), Integer(self.steps), body=body, unroll=True)

    def apply(
        self,
        accumulator: Accumulator,
        op: Epilogue,
        width: int,
        free: Callable[[], Operation],
        absent: Container[str] = (),
    ) -> Body:
        """The consumers' part of an epilogue: apply it, stage by stage, to the loaded columns.

        Consumers read a stage by ordinary loads, so a proxy fence orders these loads before TMA's
        next write (PTX ISA, "Async proxy").

        Args:
            accumulator: the registers of the product.
            op: the epilogue.
            width: number of elements, adjacent in a row of D, that one access may read in an
                epilogue stage whose operands are all in global memory.
            free: a function that makes the operation that frees the stage of the previous step.
            absent: tensors of optional operands that no launch of this kernel passes.
        """
        body: list[Operation] = []
        for stage in stages(self.gemm, op, absent):
            held = self._of(stage)
            if not held:
                body.append(accumulator.stage(self.gemm, stage, width, absent))
                continue
            one = applied(
                self.gemm,
                stage,
                accumulator.fragment,
                self.registers,
                PAIR,
                absent,
                rows=accumulator.rows,
                vector=accumulator.vector,
            )
            memories = tuple(self._memory(t) if t in held else t for t in one.sources)
            each = unrolled(
                self.c,
                self.registers[:1] + self.registers[2:],
                at({accumulator.vector: 0}, replace(one, memories=memories)),
            )
            step = (
                WaitBarrier(FULL, PHASE),
                each,
                FenceShared(),
                self.division.own_barrier,
                Advance(STEP),
                free(),
            )
            body.append(For(self.step, Integer(0), Integer(self.steps), body=step, unroll=True))
        return tuple(body)

    def _of(self, stage: Stage) -> tuple[str, ...]:
        """The operands that one stage of the epilogue function reads and that TMA loads.

        A launch may skip a stage that has an optional operand, so the result is () for such a
        stage.
        """
        if stage.optional:
            return ()
        read = {tensor_of(operand.name) for operand in stage.function.tensors}
        return tuple(tensor for tensor in self.tensors if tensor in read)
