"""Emits PTX instructions of Hopper as inline assembly: mbarriers, TMA, wgmma and setmaxnreg.

The assembly clobbers memory, so LLVM does not reorder it. The accumulators are tied operands (input
and output in the same registers) of wgmma.mma_async, wgmma.fence and wgmma.wait_group. So LLVM
knows which registers wgmma may still write asynchronously, and moves no access to these registers
across the three instructions.
"""

from __future__ import annotations

from collections.abc import Sequence

from llvmlite import ir

from codegen.emit.elements import ptx_letter, ptx_type
from codegen.targets.nvptx.sm_80.instructions import I32, I64, VOID, Instructions
from coordgraph.elements import DType

__all__ = ["HopperInstructions"]

SWIZZLES, SWIZZLE_BIT = {128: 1, 64: 2, 32: 3}, 30
"""SWIZZLES: the code of a swizzle mode in a wgmma matrix descriptor, by the number of bytes in a
swizzled row of shared memory.
SWIZZLE_BIT: the lowest bit of the code in the descriptor's upper 32 bits (PTX ISA, "Matrix
Descriptor Format")."""


def _once(instruction: str) -> str:
    """PTX that all lanes of a warp execute, in which one elected lane issues `instruction`."""
    return f"{{ .reg .pred once; elect.sync _|once, 0xffffffff; @once {instruction} }}"


class HopperInstructions(Instructions):
    """Emits PTX instructions of Hopper; addresses in shared memory are 32-bit integers."""

    def set_registers(self, count: int, *, grow: bool) -> None:
        """Emit setmaxnreg: each thread of this warpgroup then has `count` registers."""
        way = "inc" if grow else "dec"
        self.asm(f"setmaxnreg.{way}.sync.aligned.u32 {count};", "", [], VOID, pure=False)

    def barrier_init(self, barrier: ir.Value, arrivals: int) -> None:
        """Emit the initialisation of an mbarrier with `arrivals` arrivals for each phase."""
        text = f"mbarrier.init.shared::cta.b64 [$0], {arrivals};"
        self.asm(text, "r", [barrier], VOID, pure=False)

    def barrier_publish(self) -> None:
        """Emit a fence that makes initialised mbarriers visible to TMA and the cluster's CTAs."""
        self.asm("fence.mbarrier_init.release.cluster;", "", [], VOID, pure=False)

    def barrier_expect(self, barrier: ir.Value, size: ir.Value) -> None:
        """Emit an arrival of one lane at an mbarrier that then expects `size` bytes by TMA."""
        text = _once("mbarrier.arrive.expect_tx.release.cta.shared::cta.b64 _, [$0], $1;")
        self.asm(text, "r,r", [barrier, size], VOID, pure=False)

    def barrier_arrive(self, barrier: ir.Value) -> None:
        """Emit an arrival at an mbarrier, with release semantics at CTA scope."""
        text = "mbarrier.arrive.release.cta.shared::cta.b64 _, [$0];"
        self.asm(text, "r", [barrier], VOID, pure=False)

    def barrier_arrive_at(self, barrier: ir.Value, rank: ir.Value, *, publish: bool) -> None:
        """Emit an arrival at the corresponding mbarrier of another CTA of the cluster.

        Args:
            barrier: the address of this CTA's mbarrier.
            rank: the rank of the other CTA in the cluster.
            publish: whether to release earlier writes at cluster scope. The release takes time, and
                is not needed to signal that wgmma has finished reading a stage.
        """
        release = ".release.cluster" if publish else ""
        text = (
            "{ .reg .b32 a; mapa.shared::cluster.u32 a, $0, $1; "
            f"mbarrier.arrive{release}.shared::cluster.b64 _, [a]; }}"
        )
        self.asm(text, "r,r", [barrier, rank], VOID, pure=False)

    def store_at(
        self, values: Sequence[ir.Value], kind: DType, shared: ir.Value, rank: ir.Value
    ) -> None:
        """Emit a store of four 32-bit numbers to the shared memory of another CTA of the cluster.

        Args:
            values: the four numbers.
            kind: the type of the numbers.
            shared: the corresponding address in this CTA's shared memory.
            rank: the rank of the other CTA in the cluster.
        """
        text = (
            "{ .reg .b32 a; mapa.shared::cluster.u32 a, $4, $5; "
            f"st.shared::cluster.v4.{ptx_type(kind)} [a], {{$0, $1, $2, $3}}; }}"
        )
        letters = ",".join([ptx_letter(kind)] * len(values))
        self.asm(text, f"{letters},r,r", [*values, shared, rank], VOID, pure=False)

    def store_word_at(self, word: ir.Value, shared: ir.Value, rank: ir.Value) -> None:
        """Emit a store of a 32-bit integer to the shared memory of a CTA of the cluster.

        Args:
            word: the integer.
            shared: the corresponding address in this CTA's shared memory.
            rank: the rank of the CTA in the cluster, which may be this CTA's own.
        """
        text = (
            "{ .reg .b32 a; mapa.shared::cluster.u32 a, $1, $2; st.shared::cluster.u32 [a], $0; }"
        )
        self.asm(text, "r,r,r", [word, shared, rank], VOID, pure=False)

    def cluster_barrier(self) -> None:
        """Emit a barrier of all threads of the cluster; threads of a warp may be diverged."""
        text = "barrier.cluster.arrive.release; barrier.cluster.wait.acquire;"
        self.asm(text, "", [], VOID, pure=False)

    def await_earlier_launch(self) -> None:
        """Emit a wait until the earlier launches that this launch overlaps with are complete."""
        self.asm("griddepcontrol.wait;", "", [], VOID, pure=False)

    def allow_next_launch(self) -> None:
        """Emit griddepcontrol.launch_dependents: the stream's next launch may start its CTAs."""
        self.asm("griddepcontrol.launch_dependents;", "", [], VOID, pure=False)

    def prefetch_map(self, tensor_map: ir.Value) -> None:
        """Emit a prefetch of a tensor map into the cache from which TMA reads it."""
        self.asm("prefetch.tensormap [$0];", "l", [tensor_map], VOID, pure=False)

    def describe(
        self,
        target: ir.Value,
        shared: ir.Value,
        template: ir.Value,
        *,
        first: ir.Value,
        extents: Sequence[ir.Value],
        pitch: ir.Value,
    ) -> None:
        """Emit code that writes a tensor map: a template, changed to describe another matrix.

        All lanes of a warp execute the instructions (PTX ISA, "tensormap.replace",
        "tensormap.cp_fenceproxy").

        Args:
            target: the address in global memory to which the map is written.
            shared: the address in shared memory at which the map is assembled.
            template: the address of the map that is copied.
            first: the address of the matrix's first element.
            extents: the matrix's extents in elements, the contiguous axis first.
            pitch: the leading dimension of the matrix, in bytes.
        """
        b = self.builder
        lane = b.and_(self.thread(), ir.Constant(I32, 31))
        word = b.mul(lane, ir.Constant(I32, 4))
        source = b.add(template, b.zext(word, I64))
        text = "{ .reg .b32 a; ld.b32 a, [$1]; bar.warp.sync 0xffffffff; st.shared.b32 [$0], a; }"
        self.asm(text, "r,l", [b.add(shared, word), source], VOID, pure=False)
        place = "tensormap.replace.tile.{}.shared::cta.b1024.{} [$0], {};"
        changes = (
            place.format("global_address", "b64", "$1"),
            place.format("global_dim", "b32", "0, $2"),
            place.format("global_dim", "b32", "1, $3"),
            place.format("global_stride", "b64", "0, $4"),
        )
        args = [b.zext(shared, I64), first, *extents, pitch]
        text = " ".join(f"@once {change}" for change in changes)
        text = (
            "{ .reg .pred once; bar.warp.sync 0xffffffff; "
            f"elect.sync _|once, 0xffffffff; {text} bar.warp.sync 0xffffffff; }}"
        )
        self.asm(text, "l,l,r,r,l", args, VOID, pure=False)
        text = (
            "tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.gpu"
            ".sync.aligned [$0], [$1], 128;"
        )
        self.asm(text, "l,r", [target, shared], VOID, pure=False)
        # Threads that synchronise with this warp after this fence may use the tensor map.
        text = "fence.proxy.tensormap::generic.acquire.gpu [$0], 128;"
        self.asm(text, "l", [target], VOID, pure=False)
        self.prefetch_map(target)

    def barrier_wait(self, barrier: ir.Value, parity: ir.Value, *, cluster: bool) -> None:
        """Emit a wait until the mbarrier's phase of the parity `parity` completes.

        Args:
            barrier: the mbarrier's address.
            parity: the parity of the phase, 0 or 1.
            cluster: whether to acquire writes of other CTAs of the cluster.
        """
        acquire = ".acquire.cluster" if cluster else ""
        text = (
            "{ .reg .pred p; AGAIN_${:uid}: "
            f"mbarrier.try_wait.parity{acquire}.shared::cta.b64 p, [$0], $1; "
            "@!p bra AGAIN_${:uid}; }"
        )
        self.asm(text, "r,r", [barrier, parity], VOID, pure=False)

    def barrier_wait_timed(
        self, barrier: ir.Value, parity: ir.Value, cycles: ir.Value, *, cluster: bool
    ) -> ir.Value:
        """Emit `barrier_wait`; lane 0 of each warp gets `cycles` plus the clock cycles of the wait.

        The other lanes get `cycles`; the result has 32 bits. The clock is read only if the phase
        has not completed when the wait begins (test_wait, which does not suspend the thread, finds
        that out). Because only one lane reads the clock, ptxas emits CS2R; otherwise it emits S2UR
        in some kernels, which has tens of cycles of latency.
        """
        acquire = ".acquire.cluster" if cluster else ""
        of = f"parity{acquire}.shared::cta.b64 p, [$1], $2;"
        text = (
            "{ .reg .pred p, first; .reg .b32 time; "
            f"mbarrier.test_wait.{of} @p bra DONE_${{:uid}}; "
            "and.b32 time, $3, 31; setp.eq.u32 first, time, 0; "
            "@first mov.u32 time, %clock; sub.u32 $0, $0, time; "
            f"AGAIN_${{:uid}}: mbarrier.try_wait.{of} @!p bra AGAIN_${{:uid}}; "
            "@first mov.u32 time, %clock; add.u32 $0, $0, time; DONE_${:uid}: }"
        )
        args = [barrier, parity, self.thread(), cycles]
        return self.asm(text, "=&r,r,r,r,0", args, I32, pure=False)

    def copy_box(
        self,
        target: ir.Value,
        tensor_map: ir.Value,
        at: Sequence[ir.Value],
        barrier: ir.Value,
        receivers: ir.Value | None,
    ) -> None:
        """Emit a TMA copy of a box to shared memory by one lane (cp.async.bulk.tensor).

        Args:
            target: the address in shared memory.
            tensor_map: the address of the tensor map.
            at: the coordinates of the box's first element, the contiguous axis first.
            barrier: the address of the mbarrier that counts the copied bytes.
            receivers: the multicast mask, a bit for the rank in the cluster of each CTA that
                receives the box; None for this CTA only.
        """
        axes = len(at)
        name = f"cp.async.bulk.tensor.{axes}d.shared::cluster.global.tile"
        name += ".mbarrier::complete_tx::bytes"
        place = f"[$1, {{{', '.join(f'${2 + i}' for i in range(axes))}}}], [${2 + axes}]"
        if receivers is None:
            text, more, masks = f"{name} [$0], {place};", "", []
        else:
            text, more = f"{name}.multicast::cluster [$0], {place}, ${3 + axes};", ",h"
            masks = [receivers]
        args = [target, tensor_map, *at, barrier, *masks]
        self.asm(_once(text), f"r,l{',r' * axes},r{more}", args, VOID, pure=False)

    def copy_run(self, target: ir.Value, source: ir.Value, size: int, barrier: ir.Value) -> None:
        """Emit a TMA copy of consecutive bytes to shared memory by one lane (cp.async.bulk).

        Args:
            target: the address in shared memory.
            source: the address in global memory.
            size: number of bytes to copy.
            barrier: the address of the mbarrier that counts the copied bytes.
        """
        name = "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"
        text = f"{name} [$0], [$1], {size}, [$2];"
        self.asm(_once(text), "r,l,r", [target, source, barrier], VOID, pure=False)

    def store_box(self, source: ir.Value, tensor_map: ir.Value, at: Sequence[ir.Value]) -> None:
        """Emit a TMA copy of a box from shared memory to a tensor (cp.async.bulk.tensor).

        Args:
            source: the address in shared memory.
            tensor_map: the address of the tensor map.
            at: the coordinates of the box's first element, the contiguous axis first.
        """
        axes = len(at)
        place = ", ".join(f"${2 + i}" for i in range(axes))
        name = f"cp.async.bulk.tensor.{axes}d.global.shared::cta.tile.bulk_group"
        text = f"{name} [$1, {{{place}}}], [$0];"
        self.asm(text, f"r,l{',r' * axes}", [source, tensor_map, *at], VOID, pure=False)

    def commit_stores(self) -> None:
        """Emit a commit of the TMA stores that this thread has issued as one bulk group."""
        self.asm("cp.async.bulk.commit_group;", "", [], VOID, pure=False)

    def wait_stores(self, pending: int) -> None:
        """Emit a wait until TMA has read the data of all but the newest `pending` bulk groups."""
        self.asm(f"cp.async.bulk.wait_group.read {pending};", "", [], VOID, pure=False)

    def fence_memory(self) -> None:
        """Emit a proxy fence: orders a thread's global memory accesses before later ones by TMA."""
        self.asm("fence.proxy.async.global;", "", [], VOID, pure=False)

    def fence_shared(self) -> None:
        """Emit a proxy fence: orders a thread's shared memory accesses before later ones by TMA."""
        self.asm("fence.proxy.async.shared::cta;", "", [], VOID, pure=False)

    def stmatrix(self, shared: ir.Value, values: Sequence[ir.Value], *, trans: bool) -> None:
        """Emit a store of two or four 8x8 matrices of 16-bit elements (stmatrix.x2, stmatrix.x4).

        Args:
            shared: the address in shared memory of one row of one matrix.
            values: for each matrix, a 32-bit register with two elements of the matrix.
            trans: whether to store the transposes of the matrices.
        """
        count, suffix = len(values), ".trans" if trans else ""
        registers = ", ".join(f"${i + 1}" for i in range(count))
        text = f"stmatrix.sync.aligned.m8n8.x{count}{suffix}.shared.b16 [$0], {{{registers}}};"
        self.asm(text, f"r{',r' * count}", [shared, *values], VOID, pure=False)

    def descriptor(self, address: ir.Value, strides: tuple[int, int], row: int) -> ir.Value:
        """Emit a 64-bit matrix descriptor for wgmma (PTX ISA, "Matrix Descriptor Format").

        Inline assembly combines the two halves of the descriptor, so that LLVM computes the address
        in 32 bits and not in 64.

        Args:
            address: the address in shared memory, in units of 16 bytes.
            strides: the leading and the stride byte offset (PTX ISA, "Strides").
            row: number of bytes of a swizzled row: 128, 64 or 32.
        """
        leading, stride = (s >> 4 for s in strides)
        low = self.builder.or_(address, ir.Constant(I32, leading << 16))
        high = ir.Constant(I32, stride | SWIZZLES[row] << SWIZZLE_BIT)
        return self.asm("mov.b64 $0, {$1, $2};", "=l,r,r", [low, high], I64, pure=True)

    def multiply(
        self,
        instruction: str,
        acc: Sequence[ir.Value],
        sums: DType,
        a: ir.Value,
        b: ir.Value,
        keep: ir.Value,
        transposes: tuple[bool, ...],
    ) -> list[ir.Value]:
        """Emit wgmma.mma_async on two matrix descriptors, and return the new accumulators.

        Args:
            instruction: the instruction's shape and the type of its operands, such as
                `wgmma.m64n256k16.bf16`.
            acc: the accumulators.
            sums: the type of the accumulators.
            a, b: the matrix descriptors of the left and of the right operand.
            keep: 1 to add to the accumulators, 0 to overwrite them.
            transposes: whether the left and the right operand are transposed; () for element types
                for which wgmma cannot transpose.
        """
        _, shape, kind = instruction.split(".")
        count = len(acc)
        registers = ",".join(f"${i}" for i in range(count))
        # For floats wgmma has two operands, 1 or -1, that scale A and B. For integers it has none.
        signs = (1, 1) if sums.is_float else ()
        more = "".join(f", {int(x)}" for x in (*signs, *transposes))
        text = (
            f"{{ .reg .pred p; setp.ne.b32 p, ${2 * count + 2}, 0; "
            f"wgmma.mma_async.sync.aligned.{shape}.{ptx_type(sums)}.{kind}.{kind} {{{registers}}}, "
            f"${2 * count}, ${2 * count + 1}, p{more}; }}"
        )
        return self._tied(text, acc, sums, "l,l,r", [a, b, keep])

    def fence_multiplies(self, acc: Sequence[ir.Value], sums: DType) -> list[ir.Value]:
        """Emit wgmma.fence: earlier accesses to accumulators precede later wgmma.mma_async."""
        return self._tied("wgmma.fence.sync.aligned;", acc, sums, "", [])

    def commit_multiplies(self) -> None:
        """Emit a commit of the wgmma.mma_async instructions issued so far as one group."""
        self.asm("wgmma.commit_group.sync.aligned;", "", [], VOID, pure=False)

    def wait_multiplies(self, pending: int, acc: Sequence[ir.Value], sums: DType) -> list[ir.Value]:
        """Emit a wait until at most `pending` groups of wgmma instructions are incomplete."""
        return self._tied(f"wgmma.wait_group.sync.aligned {pending};", acc, sums, "", [])

    def _tied(
        self, text: str, acc: Sequence[ir.Value], sums: DType, more: str, args: Sequence[ir.Value]
    ) -> list[ir.Value]:
        """Emit assembly that updates the accumulators in place, and return their new values.

        Args:
            text: the PTX; `$0`, `$1`, … are the accumulators, followed by their inputs and by the
                other arguments.
            acc: the accumulators.
            sums: the type of the accumulators.
            more: the constraints of the other arguments.
            args: the other arguments.
        """
        count, letter = len(acc), f"={ptx_letter(sums)}"
        constraints = ",".join([*[letter] * count, *map(str, range(count)), *filter(None, [more])])
        # The struct type has a name, because LLVM IR would repeat the text of an unnamed type, with
        # up to 256 elements, at the extraction of every element.
        kind = acc[0].type
        struct = self.builder.module.context.get_identified_type(f"{kind}.{count}")
        if struct.is_opaque:
            struct.set_body(*[kind] * count)
        result = self.asm(text, constraints, [*acc, *args], struct, pure=False)
        return [self.builder.extract_value(result, i) for i in range(count)]
