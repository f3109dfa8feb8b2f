"""Simulated copies, products and fix-ups of one warpgroup of a lowered Hopper kernel."""

from __future__ import annotations

from math import prod

from coordgraph.control import asynchronous as ops
from coordgraph.control import lowered as elements
from coordgraph.control.operations import Operation
from coordgraph.control.resolve import Node
from coordgraph.coordinates.dimensions import Shared
from coordgraph.elements import dtype
from coordgraph.integers import index_symbol
from tests.codegen.nvptx.hopper_control import Agent, ControlFlow
from tests.codegen.nvptx.hopper_filling import WARPGROUP, bring
from tests.codegen.nvptx.hopper_maps import Map
from tests.codegen.nvptx.hopper_memory import (
    Box,
    Place,
    Run,
    Stage,
)

__all__ = ["Role"]

SHARE = index_symbol("fixup.share")


class Role(ControlFlow):
    """One warpgroup that executes a kernel: its copies, products and exchange of partial sums."""

    def do_CopyBox(self, node: Node, op: ops.CopyBox) -> Agent:
        if op.tensor not in ("A", "B"):
            yield from self._copy_operand(node, op)
            return
        first, second = (self.place(node, f"{op.tensor}.{axis}") for axis in (0, 1))
        across = second if op.tensor == "B" else first
        assert across < self._extent(op.tensor), "TMA loads a box that begins outside the matrix"
        self._check_map(node, op)
        stage, offset = self._stage(node, op.destination)
        for rank in self.machine.sharing(self.rank, op.receivers):
            memory = self.machine.memory[self.number][rank]
            memory.copy_box(stage, offset, Box((first, second), self.step))
            if self.machine.ends:
                bring(self, node, op, memory.contents, stage)
            barrier = memory.barriers[op.barrier, self.place(node, op.barrier)]
            barrier.change(bytes=-2 * op.box[0] * op.box[1])
        yield lambda: True

    def _copy_operand(self, node: Node, op: ops.CopyBox) -> Agent:
        """Load a TMA box of an epilogue operand to this workgroup only (without multicast)."""
        assert not op.receivers
        stage, offset = self._stage(node, op.destination)
        self.own.copy_box(stage, offset, Box((0, offset), self.step))
        self.machine.operand_steps += 1
        kind = self.machine.graph.tensor(op.tensor).dtype
        self._barrier(node, op.barrier).change(bytes=-dtype(kind).bytes * prod(op.box))
        yield lambda: True

    def do_ApplyFragment(self, node: Node, op: elements.ApplyFragment) -> None:
        stages = {self._stage(node, m)[0] for t, m in op.read_from.items() if t != m}
        if stages:
            self.own.count(f"consumer {self.warpgroup}", self.step)
        for stage in stages:
            self.own.read_operand(stage, self.step, self.warpgroup)

    def _extent(self, tensor: str) -> int:
        """The row of A, or the column of B, at which the tensor map ends and TMA reads zeros.

        The map ends with the matrix; in a list of products, with the current product's matrix.
        """
        if self.machine.matrices:
            return self.machine.matrices.end("mn"["AB".index(tensor)], self.group)
        return self.value(self.machine.graph.coordinates[f"{tensor}.{'AB'.index(tensor)}"].size)

    def depth(self, axis: str) -> int:
        """The extent of a tensor along k in its tensor map; TMA reads zeros from there on."""
        if self.machine.matrices:
            # TMA rejects extent 0, so a group with k = 0 is described with an extent of 1, and
            # threads store zeros there.
            begin = self.machine.matrices.sides["k"][self.group]
            return max(begin + 1, self.machine.matrices.end("k", self.group))
        return self.value(self.machine.graph.coordinates[axis].size)

    @property
    def group(self) -> int:
        return self.env[index_symbol("group")]

    def do_DescribeMatrix(self, node: Node, op: ops.DescribeMatrix) -> Agent:
        first, pitch, along, across = (
            self.value(node.scope.resolve(x)) for x in (op.first, op.pitch, *op.extents)
        )
        made = Map(op.tensor, first, (along, across), pitch)
        assert made == self._map(op.tensor), "a tensor map has wrong fields"
        self.written[self.place(node, op.map)] = made
        yield lambda: True

    def _map(self, tensor: str) -> Map:
        """The fields that the tensor map of the current group must have."""
        matrices, gemm = self.machine.matrices, self.machine.graph.gemm
        assert matrices
        turned = {"A": gemm.transpose_a, "B": gemm.transpose_b}.get(tensor, False)
        return matrices.map(tensor, self.group, turned=turned)

    def _check_map(self, node: Node, op: ops.CopyBox | ops.StoreBox) -> None:
        """Check that TMA copies a box through the tensor map of the current group's matrix."""
        matrices = self.machine.matrices
        assert bool(op.map) == bool(matrices)
        if matrices:
            matrices.check(self.place(node, op.map), self._map(op.tensor))

    def do_CopyRun(self, node: Node, op: ops.CopyRun) -> Agent:
        stage = self._home(node, op.destination)
        first = self.value(node.scope.resolve(index_symbol("fixup.step"))) == 0
        self.own.copy_run(stage, Run((self.place(node, op.source), int(first)), self.step))
        self._barrier(node, op.barrier).change(bytes=-4 * op.count)
        yield lambda: True

    def _home(self, node: Node, dim: str) -> Stage:
        """The pipeline stage in shared memory to which TMA copies partial sums (`CopyRun`)."""
        shared = self.machine.graph.coordinates[dim]
        assert isinstance(shared, Shared)
        return shared.within, self.place(node, "stage")

    def _stage(self, node: Node, dim: str) -> tuple[Stage, int]:
        """(the stage that contains a shared-memory address, the address's offset in the stage)."""
        coordinates = self.machine.graph.coordinates
        shared = coordinates[dim]
        assert isinstance(shared, Shared)
        home = shared.within or dim
        whole, stages = (coordinates[d].fixed_size for d in (home, "stage"))
        number, offset = divmod(self.place(node, dim), whole // stages)
        return (home, number), offset

    def do_FenceShared(self, node: Node, op: ops.FenceShared) -> None:
        self.state.unfenced = False
        self.state.filled.fence()

    def do_MultiplyShared(self, node: Node, op: ops.MultiplyShared) -> None:
        if self.value(node.scope.resolve_condition(op.fresh)):
            self.state.sum = ()
            self.own.enter(self.warpgroup, alone=self.machine.turns)
        self.own.count(f"consumer {self.warpgroup}", self.step)
        first: dict[str, Place] = {}
        for dim in (op.a, op.b):
            stage, _ = self._stage(node, dim)
            if self.machine.ends and (stage[0], self.step) not in self.own.outside:
                end = self.machine.ends[self.env[index_symbol("group")]]
                self.own.contents.check(stage, self.step, end)
            first[stage[0][0]] = self.own.multiply(stage, self.step, self.warpgroup)
        self.state.sum += ((first["A"], first["B"]),)

    def do_CommitMultiplies(self, node: Node, op: Operation) -> None:
        self.state.commit()

    def do_WaitMultiplies(self, node: Node, op: ops.WaitMultiplies) -> None:
        self.state.wait(op.pending)

    def do_WaitFlag(self, node: Node, op: elements.WaitFlag) -> Agent:
        flags, flag = self.machine.flags, self.place(node, op.flag)
        senders = self.value(node.scope.resolve(op.senders))
        raised = self._raised(node, op.turn) if op.turn else senders
        yield lambda: flags[flag] == raised

    def do_ClearFlag(self, node: Node, op: elements.ClearFlag) -> None:
        self.machine.flags[self.place(node, op.flag)] = 0

    def do_SignalFlag(self, node: Node, op: elements.SignalFlag) -> Agent:
        readers = self.value(node.scope.resolve(op.readers))
        up = self._raised(node, op.turn) if op.turn else readers
        self.machine.raise_flag(self.place(node, op.flag), up)
        yield lambda: True

    def do_RaiseFlag(self, node: Node, op: elements.RaiseFlag) -> Agent:
        self.machine.flags[self.place(node, op.flag)] += 1
        yield lambda: True

    def do_TakeFlag(self, node: Node, op: elements.TakeFlag) -> Agent:
        flags, flag = self.machine.flags, self.place(node, op.flag)
        yield lambda: flags[flag] > 0
        flags[flag] -= 1
        self.state.taken.add(flag)
        yield lambda: True

    def _raised(self, node: Node, turn: str) -> int:
        """The value to which a sender sets a flag: 1, or 1 + the index along dimension `turn`."""
        return 1 + (self.place(node, turn) if turn else 0)

    def do_AccumulateFragment(self, node: Node, op: elements.AccumulateFragment) -> None:
        if op.source == "partials":
            self._add_share(node)
        if op.source != "fixup.shared":
            return
        self.own.count(f"consumer {self.warpgroup}", self.step)
        first, begins = self.own.add_run(self._home(node, op.source), self.warpgroup)
        if begins:  # the first bulk copy from a workspace slot stands for the whole partial sum
            own = 0 if self.machine.turns else self.warpgroup
            self.state.sum += self.machine.take_partials(first + 4 * WARPGROUP * own)

    def _add_share(self, node: Node) -> None:
        """Add another workgroup's partial sum of a share to the accumulators.

        A share is the part of a tile that one workgroup completes in a reduce-scatter. The kernel
        reads the partial sum in several accesses, of which the simulation makes only the first.
        """
        flag, share = self.place(node, "flags"), self.env[SHARE]
        with self.binding(SHARE, 0):
            first = self.place(node, "partials")
        self.state.read_share(flag, first, share)
        self.state.sum += self.machine.read_partials(first)

    def do_ZeroFragment(self, node: Node, op: elements.ZeroFragment) -> None:
        self.state.sum = ()

    def do_StoreFragment(self, node: Node, op: elements.StoreFragment) -> None:
        if op.destination == "partials":
            self.machine.write_partials(self.place(node, "partials"), self.state.sum)
        elif op.destination == "D":
            self._store(node, op.fragment)
        elif op.destination.endswith("D.shared"):
            self.slots.fill(self.place(node, op.destination))

    def do_ReduceFragment(self, node: Node, op: elements.ReduceFragment) -> Agent:
        self.machine.add_partials(self.place(node, op.destination), self.state.sum)
        yield lambda: True

    def do_FillElements(self, node: Node, op: elements.FillElements) -> None:
        assert op.destination == "partials", "zeros for group ends are stored outside their branch"
        # The simulation clears a whole slot in step 0 of a fix-up, although each step clears only a
        # part of it.
        if self.value(node.scope.resolve(index_symbol("fixup.step"))) == 0:
            self.machine.clear_partials(self.place(node, op.destination))

    def do_WaitStores(self, node: Node, op: ops.WaitStores) -> None:
        self.slots.wait(op.pending)

    def do_CommitStores(self, node: Node, op: ops.CommitStores) -> None:
        if self.machine.matrices:
            # TMA stores no box outside the matrix, so such boxes are dropped
            self.slots.full.clear()
        self.slots.commit()

    def do_StoreBox(self, node: Node, op: ops.StoreBox) -> None:
        self.slots.take(self.place(node, op.source), later=True)
        row, end = self._row(node), self._end()
        assert end is None or row + op.box[1] <= end, "TMA stores rows of the next group"
        self._check_map(node, op)
        if self.machine.matrices:
            ends = (self.machine.matrices.end(axis, self.group) for axis in "mn")
            here = row, self.place(node, "D.1")
            assert all(x < end for x, end in zip(here, ends, strict=True)), (
                "TMA stores a box that begins outside the matrix"
            )
        self._box(node, op.source, "engine")

    def do_CopyElements(self, node: Node, op: elements.CopyElements) -> None:
        self.slots.take(self.place(node, op.source), later=False)
        row, end = self.place(node, "D.0"), self._end()
        rows = self.machine.graph.coordinates["store.copy.row"].fixed_size
        assert end is not None
        assert row + rows > end, "threads store a box that lies in one group"
        if row < end:
            self._box(node, op.source, "rows")

    def _end(self) -> int | None:
        """In a problem grouped along m, the row at which the current group ends; else None."""
        offsets = self.machine.offsets
        if offsets is None or self.machine.ends:
            return None
        return offsets[self.env[index_symbol("group")] + 1]

    def _row(self, node: Node) -> int:
        """The row of D that an operation writes; the rows of groups are numbered consecutively."""
        row = self.place(node, "D.0")
        if not self.machine.ends:
            return row
        return row + self.machine.rows * self.env[index_symbol("group")]

    def _box(self, node: Node, source: str, who: str) -> None:
        """Record a store of a box of D by `who`: `engine` (TMA) or `rows` (threads).

        The first box of a tile also stores the tile's sum, which stands for all of its boxes.
        """
        place, tile = (self._row(node), self.place(node, "D.1")), source[: -len("D.shared")]
        assert place not in self.machine.boxes, "a box of D is stored twice"
        self.machine.boxes[place] = who
        if all(self.env[index_symbol(f"{tile}store.{dim}")] == 0 for dim in ("m", "box")):
            self._store(node, tile.removesuffix(".") or "acc")

    def _store(self, node: Node, accumulator: str) -> None:
        place = self._row(node), self.place(node, "D.1")
        here = self.number, self.rank, self.warpgroup
        share = SHARE.name in node.scope.known
        self.machine.store(place, self.state.product(), accumulator, here, share=share)
