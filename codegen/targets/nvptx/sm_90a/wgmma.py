"""Instructions of Hopper as PTX: mbarriers, bulk tensor copies, wgmma, register budgets.

Each is inline assembly that clobbers memory, so LLVM keeps their order. The accumulators of wgmma
are tied operands of the multiplication and of what orders it: LLVM then sees every register that
the asynchronous unit may still write, and moves nothing across.
"""

from __future__ import annotations

from collections.abc import Sequence

from llvmlite import ir

from codegen.emit.elements import ptx_letter, ptx_type
from codegen.targets.nvptx.sm_80.instructions import I32, I64, VOID, Instructions
from coordgraph.elements import DType

__all__ = ["HopperInstructions"]

SWIZZLES, SWIZZLE_BIT = {128: 1, 64: 2, 32: 3}, 30
"""How the upper half of a descriptor names a swizzle by the bytes of its rows."""


def _once(instruction: str) -> str:
    """An instruction that one lane of a warp issues, in code that all of them run."""
    return f"{{ .reg .pred once; elect.sync _|once, 0xffffffff; @once {instruction} }}"


class HopperInstructions(Instructions):
    """Emits at a builder's place; addresses of shared memory are 32-bit numbers."""

    def set_registers(self, count: int, *, grow: bool) -> None:
        """Registers of each thread of this warpgroup."""
        way = "inc" if grow else "dec"
        self.asm(f"setmaxnreg.{way}.sync.aligned.u32 {count};", "", [], VOID, pure=False)

    def barrier_init(self, barrier: ir.Value, arrivals: int) -> None:
        """A barrier in shared memory."""
        text = f"mbarrier.init.shared::cta.b64 [$0], {arrivals};"
        self.asm(text, "r", [barrier], VOID, pure=False)

    def barrier_publish(self) -> None:
        """Initialised barriers become visible to the asynchronous units and the cluster."""
        self.asm("fence.mbarrier_init.release.cluster;", "", [], VOID, pure=False)

    def barrier_expect(self, barrier: ir.Value, size: ir.Value) -> None:
        """Arrive and expect bytes, once for the warp."""
        text = _once("mbarrier.arrive.expect_tx.release.cta.shared::cta.b64 _, [$0], $1;")
        self.asm(text, "r,r", [barrier, size], VOID, pure=False)

    def barrier_arrive(self, barrier: ir.Value) -> None:
        """Arrive."""
        text = "mbarrier.arrive.release.cta.shared::cta.b64 _, [$0];"
        self.asm(text, "r", [barrier], VOID, pure=False)

    def barrier_arrive_at(self, barrier: ir.Value, rank: ir.Value, *, publish: bool) -> None:
        """Arrive at the same barrier of another workgroup of the cluster.

        With `publish` the cluster sees what was written before it; without, it only says that
        asynchronous reads have ended, for which the fence of a wider scope would be wasted.
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
        """Store four numbers of 32 bits in shared memory of another workgroup of the cluster."""
        text = (
            "{ .reg .b32 a; mapa.shared::cluster.u32 a, $4, $5; "
            f"st.shared::cluster.v4.{ptx_type(kind)} [a], {{$0, $1, $2, $3}}; }}"
        )
        letters = ",".join([ptx_letter(kind)] * len(values))
        self.asm(text, f"{letters},r,r", [*values, shared, rank], VOID, pure=False)

    def cluster_barrier(self) -> None:
        """All workitems of the cluster; those of a warp need not come together."""
        text = "barrier.cluster.arrive.release; barrier.cluster.wait.acquire;"
        self.asm(text, "", [], VOID, pure=False)

    def await_earlier_launch(self) -> None:
        """Wait for the launches that this one may overlap with."""
        self.asm("griddepcontrol.wait;", "", [], VOID, pure=False)

    def allow_next_launch(self) -> None:
        """Let the next launch of the stream begin."""
        self.asm("griddepcontrol.launch_dependents;", "", [], VOID, pure=False)

    def prefetch_map(self, tensor_map: ir.Value) -> None:
        """Bring a tensor map near to TMA."""
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
        """Write a tensor map like another one, of another matrix; a whole warp comes here.

        `target`, `template` and the matrix (`first`) are addresses, `pitch` is in bytes, `extents`
        are elements, the contiguous axis first.
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
        # This fence lies on the way of causality to whoever waits for this warp.
        text = "fence.proxy.tensormap::generic.acquire.gpu [$0], 128;"
        self.asm(text, "l", [target], VOID, pure=False)
        self.prefetch_map(target)

    def barrier_wait(self, barrier: ir.Value, parity: ir.Value, *, cluster: bool) -> None:
        """Wait for the end of the phase of that parity; see what the cluster has written."""
        acquire = ".acquire.cluster" if cluster else ""
        text = (
            "{ .reg .pred p; AGAIN_${:uid}: "
            f"mbarrier.try_wait.parity{acquire}.shared::cta.b64 p, [$0], $1; "
            "@!p bra AGAIN_${:uid}; }"
        )
        self.asm(text, "r,r", [barrier, parity], VOID, pure=False)

    def copy_box(
        self,
        target: ir.Value,
        tensor_map: ir.Value,
        at: Sequence[ir.Value],
        barrier: ir.Value,
        receivers: ir.Value | None,
    ) -> None:
        """cp.async.bulk.tensor of a box, counted by a barrier, once for the warp.

        `receivers` has a bit for the rank of each workgroup of the cluster that gets it.
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
        """cp.async.bulk of consecutive bytes, counted by a barrier, once for the warp."""
        name = "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"
        text = f"{name} [$0], [$1], {size}, [$2];"
        self.asm(_once(text), "r,l,r", [target, source, barrier], VOID, pure=False)

    def store_box(self, source: ir.Value, tensor_map: ir.Value, at: Sequence[ir.Value]) -> None:
        """cp.async.bulk.tensor of a box to memory."""
        axes = len(at)
        place = ", ".join(f"${2 + i}" for i in range(axes))
        name = f"cp.async.bulk.tensor.{axes}d.global.shared::cta.tile.bulk_group"
        text = f"{name} [$1, {{{place}}}], [$0];"
        self.asm(text, f"r,l{',r' * axes}", [source, tensor_map, *at], VOID, pure=False)

    def commit_stores(self) -> None:
        """Close a group of boxes stored."""
        self.asm("cp.async.bulk.commit_group;", "", [], VOID, pure=False)

    def wait_stores(self, pending: int) -> None:
        """Wait until of at most `pending` groups shared memory is still read."""
        self.asm(f"cp.async.bulk.wait_group.read {pending};", "", [], VOID, pure=False)

    def fence_memory(self) -> None:
        """What this thread has come to see in global memory TMA sees too."""
        self.asm("fence.proxy.async.global;", "", [], VOID, pure=False)

    def fence_shared(self) -> None:
        """Accesses of this thread to shared memory come before those of TMA."""
        self.asm("fence.proxy.async.shared::cta;", "", [], VOID, pure=False)

    def stmatrix(self, shared: ir.Value, values: Sequence[ir.Value], *, trans: bool) -> None:
        """Four 8x8 matrices of 16-bit elements, two of them in each value."""
        suffix = ".trans" if trans else ""
        text = f"stmatrix.sync.aligned.m8n8.x4{suffix}.shared.b16 [$0], {{$1, $2, $3, $4}};"
        self.asm(text, "r,r,r,r,r", [shared, *values], VOID, pure=False)

    def descriptor(self, address: ir.Value, strides: tuple[int, int], row: int) -> ir.Value:
        """A wgmma matrix descriptor (PTX ISA, "Matrix Descriptor Format"), swizzled in rows.

        `address` counts 16 bytes, `row` is 128, 64 or 32. The halves are put together here, where
        LLVM does not look: it would compute on 64 bits what the machine does in 32.
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
        """wgmma.mma_async on two descriptors; where `keep` is 0 the result is overwritten.

        Args:
            instruction: shape and operands' type, as `wgmma.m64n256k16.bf16`.
            acc: the accumulators, and `sums`, their type.
            a, b: matrix descriptors.
            keep: 1 to add to the accumulators.
            transposes: whether A and B are transposed; () for types without such a choice.
        """
        _, shape, kind = instruction.split(".")
        count = len(acc)
        registers = ",".join(f"${i}" for i in range(count))
        # Floats may be negated (by -1 in place of 1); integers may not.
        signs = (1, 1) if sums.is_float else ()
        more = "".join(f", {int(x)}" for x in (*signs, *transposes))
        text = (
            f"{{ .reg .pred p; setp.ne.b32 p, ${2 * count + 2}, 0; "
            f"wgmma.mma_async.sync.aligned.{shape}.{ptx_type(sums)}.{kind}.{kind} {{{registers}}}, "
            f"${2 * count}, ${2 * count + 1}, p{more}; }}"
        )
        return self._tied(text, acc, sums, "l,l,r", [a, b, keep])

    def fence_multiplies(self, acc: Sequence[ir.Value], sums: DType) -> list[ir.Value]:
        """Order earlier register accesses before the multiplications that follow."""
        return self._tied("wgmma.fence.sync.aligned;", acc, sums, "", [])

    def commit_multiplies(self) -> None:
        """Close a group of multiplications."""
        self.asm("wgmma.commit_group.sync.aligned;", "", [], VOID, pure=False)

    def wait_multiplies(self, pending: int, acc: Sequence[ir.Value], sums: DType) -> list[ir.Value]:
        """Wait until at most `pending` groups are under way."""
        return self._tied(f"wgmma.wait_group.sync.aligned {pending};", acc, sums, "", [])

    def _tied(
        self, text: str, acc: Sequence[ir.Value], sums: DType, more: str, args: Sequence[ir.Value]
    ) -> list[ir.Value]:
        """Assembly that reads and writes the accumulators, of type `sums`, in place."""
        count, letter = len(acc), f"={ptx_letter(sums)}"
        constraints = ",".join([*[letter] * count, *map(str, range(count)), *filter(None, [more])])
        struct = ir.LiteralStructType([x.type for x in acc])
        result = self.asm(text, constraints, [*acc, *args], struct, pure=False)
        return [self.builder.extract_value(result, i) for i in range(count)]
