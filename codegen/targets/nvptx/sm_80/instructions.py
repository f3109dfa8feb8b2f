"""Emits PTX instructions of sm_80, as LLVM intrinsics or as inline assembly.

An intrinsic is used if LLVM has one with the right memory ordering. LLVM's NVPTX backend drops the
ordering of `atomicrmw`, so operations on flags are inline assembly (PTX ISA, "Memory Consistency
Model"). This assembly clobbers memory, so LLVM moves no memory access across it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llvmlite import ir

from codegen.emit.elements import ptx_letter, ptx_type
from coordgraph.elements import DTYPES, DType

__all__ = ["F32", "I1", "I16", "I32", "I64", "VOID", "Instructions", "pointer"]

I1, I8, I16, I32, I64 = (ir.IntType(n) for n in (1, 8, 16, 32, 64))
F32 = ir.FloatType()
VOID = ir.VoidType()
GLOBAL, SHARED = 1, 3
"""LLVM's address-space numbers for global and for shared memory on NVIDIA GPUs."""
SPIN_LIMIT = 1 << 26
"""How many times a kernel with a watchdog polls a flag before it traps."""
_BITS = {8: (I16, "h"), 16: (I16, "h"), 32: (I32, "r"), 64: (I64, "l")}
"""The LLVM type and the constraint letter of a register, by the number of bits of its value.
PTX has no 8-bit registers."""
_VECTOR = 128
"""The number of bits of the largest access of one instruction."""


def pointer(space: int) -> ir.PointerType:
    """The opaque pointer type of an address space."""
    return ir.PointerType(addrspace=space)


class Instructions:
    """Emits PTX instructions at the position of an LLVM builder.

    Args:
        builder: the LLVM builder.
    """

    def __init__(self, builder: ir.IRBuilder) -> None:
        self.builder = builder

    def call(self, name: str, result: ir.Type, args: Sequence[ir.Value]) -> ir.Value:
        """Emit a call of an LLVM intrinsic, and declare the intrinsic in the module if needed."""
        module = self.builder.module
        function = module.globals.get(name)
        if function is None:
            kind = ir.FunctionType(result, [a.type for a in args])
            function = ir.Function(module, kind, name)
        return self.builder.call(function, args)

    def asm(
        self, text: str, constraints: str, args: Sequence[ir.Value], result: ir.Type, *, pure: bool
    ) -> ir.Value:
        """Emit inline assembly.

        Impure assembly clobbers memory, and is convergent: LLVM must not duplicate it into both
        sides of a branch. Many impure instructions must be executed by all lanes of a warp
        together.

        Args:
            text: the PTX; `$0`, `$1`, … are the result's and the arguments' registers.
            constraints: LLVM's constraints of the result and the arguments.
            args: the arguments.
            result: the type of the result.
            pure: whether the assembly only computes its result from its arguments.
        """
        if not pure:
            constraints += ",~{memory}" if constraints else "~{memory}"
        kind = ir.FunctionType(result, [a.type for a in args])
        call = self.builder.asm(kind, text, constraints, list(args), side_effect=not pure)
        if not pure:
            call.attributes.add("convergent")
        return call

    def opaque(self, value: ir.Value) -> ir.Value:
        """A copy of `value` that is made by inline assembly.

        LLVM knows nothing about the copy, so it cannot hoist or fold expressions that use the copy.
        """
        bits, letter = (32, "r") if value.type.width == 32 else (64, "l")
        kind = ir.FunctionType(value.type, [value.type])
        text = f"mov.b{bits} $0, $1;"
        return self.builder.asm(kind, text, f"={letter},{letter}", [value], side_effect=True)

    def thread(self) -> ir.Value:
        """Emit a read of the thread's number in its CTA (PTX: %tid.x)."""
        return self.call("llvm.nvvm.read.ptx.sreg.tid.x", I32, [])

    def block(self) -> ir.Value:
        """Emit a read of the CTA's number in the grid (PTX: %ctaid.x)."""
        return self.call("llvm.nvvm.read.ptx.sreg.ctaid.x", I32, [])

    def cluster(self) -> ir.Value:
        """Emit a read of the cluster's number in the grid (PTX: %clusterid.x)."""
        return self.call("llvm.nvvm.read.ptx.sreg.clusterid.x", I32, [])

    def rank(self) -> ir.Value:
        """Emit a read of the CTA's rank in its cluster (PTX: %cluster_ctarank)."""
        return self.call("llvm.nvvm.read.ptx.sreg.cluster.ctarank", I32, [])

    def clock(self) -> ir.Value:
        """Emit a read of the SM's clock, in cycles, 64 bits (PTX: %clock64)."""
        return self.asm("mov.u64 $0, %clock64;", "=l", [], I64, pure=False)

    def global_time(self) -> ir.Value:
        """Emit a read of the time in nanoseconds, equal on all SMs (PTX: %globaltimer)."""
        return self.asm("mov.u64 $0, %globaltimer;", "=l", [], I64, pure=False)

    def processor(self) -> ir.Value:
        """Emit a read of the number of the SM that executes the thread (PTX: %smid)."""
        return self.asm("mov.u32 $0, %smid;", "=r", [], I32, pure=False)

    def same(self, value: ir.Value) -> ir.Value:
        """Mark a value as equal in all lanes of a warp, so that ptxas uses uniform registers.

        The mark is a shuffle that broadcasts the value of lane 0.
        """
        lanes = [ir.Constant(I32, -1), value, ir.Constant(I32, 0), ir.Constant(I32, 31)]
        return self.call("llvm.nvvm.shfl.sync.idx.i32", I32, lanes)

    def of_lane(self, value: ir.Value, lane: int) -> ir.Value:
        """Emit a broadcast of the value of the lane number `lane` to all lanes of the warp."""
        numbers = [ir.Constant(I32, n) for n in (-1, lane, 31)]
        args = [numbers[0], value, *numbers[1:]]
        return self.call("llvm.nvvm.shfl.sync.idx.i32", I32, args)

    def of_other_lane(self, value: ir.Value, distance: int) -> ir.Value:
        """Emit a read of the f32 `value` of lane i xor `distance`, for lane i of a warp.

        PTX: shfl.sync.bfly.b32.
        """
        args = [ir.Constant(I32, -1), value, ir.Constant(I32, distance), ir.Constant(I32, 31)]
        return self.call("llvm.nvvm.shfl.sync.bfly.f32", F32, args)

    def prefix_sum(self, value: ir.Value, lane: ir.Value) -> ir.Value:
        """Emit the inclusive prefix sum of `value` over a warp; `lane` is the lane's number."""
        for distance in (1, 2, 4, 8, 16):
            numbers = [ir.Constant(I32, n) for n in (-1, distance, 0)]
            args = [numbers[0], value, *numbers[1:]]
            below = self.call("llvm.nvvm.shfl.sync.up.i32", I32, args)
            far = self.builder.icmp_unsigned(">=", lane, numbers[1])
            value = self.builder.add(value, self.builder.select(far, below, ir.Constant(I32, 0)))
        return value

    def barrier(self) -> None:
        """Emit a barrier of all threads of the CTA (PTX: bar.sync 0)."""
        self.call("llvm.nvvm.barrier0", VOID, [])

    def barrier_of(self, identifier: ir.Value, workitems: int) -> None:
        """Emit the named barrier `identifier` of `workitems` threads (PTX: bar.sync)."""
        self.asm(f"bar.sync $0, {workitems};", "r", [identifier], VOID, pure=False)

    def pinned(self, value: ir.Value, kind: DType) -> ir.Value:
        """A copy of a value that forces LLVM to compute the value at this point.

        Otherwise LLVM moves the additions of a tile behind all of the tile's loads, and a thread
        has too few registers for all loaded values.
        """
        function = ir.FunctionType(value.type, [value.type])
        return self.builder.asm(function, "", f"={ptx_letter(kind)},0", [value], side_effect=True)

    def anew(self, value: Any) -> Any:
        """A copy of a 32-bit integer that LLVM computes at this point.

        For a sum `x + constant`, LLVM copies x here and adds the constant again. Otherwise LLVM
        finds what many such sums share, such as the columns of elements, and keeps it in registers.
        """
        if isinstance(value, ir.Constant):
            return value
        if getattr(value, "opname", "") == "add":
            first, second = value.operands
            if isinstance(second, ir.Constant):
                return self.builder.add(self.pinned(first, DTYPES["i32"]), second)
        return self.pinned(value, DTYPES["i32"])

    def fence(self) -> None:
        """Emit a fence across which neither LLVM nor ptxas moves memory accesses of a thread."""
        self.asm("fence.acq_rel.cta;", "", [], VOID, pure=False)

    def schedule_barrier(self) -> None:
        """Emit an instruction across which ptxas moves no other instruction, even arithmetic.

        PTX has no instruction for this purpose. `pmevent` triggers a counter of profilers (PTX ISA,
        "Miscellaneous Instructions: pmevent"), and ptxas does not move instructions across it.
        """
        self.asm("pmevent 0;", "", [], VOID, pure=False)

    def copy_async(self, shared: ir.Value, source: ir.Value, size: int, read: ir.Value) -> None:
        """Emit an asynchronous copy of bytes to shared memory (cp.async).

        Args:
            shared: the address in shared memory.
            source: the address in global memory.
            size: number of bytes that are written: 4, 8 or 16.
            read: number of bytes that are read from `source`; the other bytes are written as zeros.
        """
        cache = "cg" if size == 16 else "ca"
        name = f"llvm.nvvm.cp.async.{cache}.shared.global.{size}.s"
        self.call(name, VOID, [shared, source, read])

    def commit_copies(self) -> None:
        """Emit a commit of the issued cp.async copies as a group (PTX: cp.async.commit_group)."""
        self.call("llvm.nvvm.cp.async.commit.group", VOID, [])

    def wait_copies(self, pending: int) -> None:
        """Emit a wait until at most `pending` groups of cp.async copies are incomplete."""
        self.call("llvm.nvvm.cp.async.wait.group", VOID, [ir.Constant(I32, pending)])

    def load_or_zero(self, source: ir.Value, bits: int, guard: ir.Value) -> ir.Value:
        """Emit a predicated load of 8 to 128 bits; the value is 0 if `guard` is false."""
        if bits == _VECTOR:
            return self._vector_or_zero(source, guard)
        kind, letter = _BITS[bits]
        text = (
            f"{{ .reg .pred p; setp.ne.b32 p, $2, 0; mov.b{kind.width} $0, 0; "
            f"@p ld.global.b{bits} $0, [$1]; }}"
        )
        flag = self.builder.zext(guard, I32)
        found = self.asm(text, f"=&{letter},l,r", [source, flag], kind, pure=False)
        return self.builder.trunc(found, ir.IntType(bits)) if bits < kind.width else found

    def _vector_or_zero(self, source: ir.Value, guard: ir.Value) -> ir.Value:
        """Emit a predicated load of 128 bits; the value is 0 if `guard` is false."""
        text = (
            "{ .reg .pred p; setp.ne.b32 p, $3, 0; mov.b64 $0, 0; mov.b64 $1, 0; "
            "@p ld.global.v2.b64 {$0, $1}, [$2]; }"
        )
        flag, pair = self.builder.zext(guard, I32), ir.LiteralStructType([I64, I64])
        found = self.asm(text, "=&l,=&l,l,r", [source, flag], pair, pure=False)
        whole = ir.IntType(_VECTOR)
        low, high = (
            self.builder.zext(self.builder.extract_value(found, i), whole) for i in range(2)
        )
        return self.builder.or_(low, self.builder.shl(high, ir.Constant(whole, _VECTOR // 2)))

    def store_if(self, value: ir.Value, target: ir.Value, bits: int, guard: ir.Value) -> None:
        """Emit a predicated store of 8 to 64 bits, executed only if `guard` is true."""
        kind, letter = _BITS[bits]
        text = f"{{ .reg .pred p; setp.ne.b32 p, $2, 0; @p st.global.b{bits} [$1], $0; }}"
        flag = self.builder.zext(guard, I32)
        whole = self.builder.bitcast(value, ir.IntType(bits)) if bits < kind.width else value
        whole = self.builder.zext(whole, kind) if bits < kind.width else whole
        whole = self.builder.bitcast(whole, kind)
        self.asm(text, f"{letter},l,r", [whole, target, flag], VOID, pure=False)

    def ldmatrix(self, shared: ir.Value, *, trans: bool) -> list[ir.Value]:
        """Emit a load of four 8x8 matrices of 16-bit elements from shared memory (ldmatrix.x4)."""
        suffix = ".trans" if trans else ""
        name = f"llvm.nvvm.ldmatrix.sync.aligned.m8n8.x4{suffix}.b16.p3"
        result = self.call(name, ir.LiteralStructType([I32] * 4), [shared])
        return [self.builder.extract_value(result, i) for i in range(4)]

    def mma(
        self, instruction: str, a: Sequence[ir.Value], b: Sequence[ir.Value], c: Sequence[ir.Value]
    ) -> list[ir.Value]:
        """Emit mma.sync, and return the new accumulators.

        Args:
            instruction: the instruction's shape and element type, such as `mma.m16n8k16.bf16`.
            a, b, c: the registers of the fragments of A, B and the accumulator.
        """
        _, shape, kind = instruction.split(".")
        name, operands = f"llvm.nvvm.mma.{shape}.row.col.{kind}", [*a, *b]
        if kind == "f16":
            # LLVM names this intrinsic after the types of D and C; A and B are <2 x half>.
            name, half2 = f"llvm.nvvm.mma.{shape}.row.col.f32.f32", ir.VectorType(ir.HalfType(), 2)
            operands = [self.builder.bitcast(x, half2) for x in operands]
        elif kind in DTYPES and DTYPES[kind].is_small_float:
            name = f"mma.sync.aligned.{shape}.row.col.f32.{kind}.{kind}.f32"
            return self._small_mma(name, a, b, c)
        struct = ir.LiteralStructType([x.type for x in c])
        result = self.call(name, struct, [*operands, *c])
        return [self.builder.extract_value(result, i) for i in range(4)]

    def _small_mma(
        self, instruction: str, a: Sequence[ir.Value], b: Sequence[ir.Value], c: Sequence[ir.Value]
    ) -> list[ir.Value]:
        """Emit `mma.sync` of 8-bit floats, for which LLVM has no intrinsic, as assembly.

        Args:
            instruction: the whole name of the instruction.
            a, b, c: the registers of the fragments of A, B and the accumulator.
        """
        counts, first, texts = (len(c), len(a), len(b), len(c)), 0, list[str]()
        for count in counts:
            texts.append(f"{{{', '.join(f'${first + i}' for i in range(count))}}}")
            first += count
        letters = ["=f"] * len(c) + ["r"] * (len(a) + len(b)) + ["f"] * len(c)
        struct = ir.LiteralStructType([x.type for x in c])
        text = f"{instruction} {', '.join(texts)};"
        result: Any = self.asm(text, ",".join(letters), [*a, *b, *c], struct, pure=True)
        result.attributes.add("convergent")  # all lanes of a warp execute it together
        return [self.builder.extract_value(result, i) for i in range(len(c))]

    def to_f32(self, value: ir.Value, kind: DType) -> ir.Value:
        """Emit the exact conversion of a 16-bit float, given as i16, to f32."""
        name = ptx_type(kind)
        if name == "bf16":
            # bf16 is the upper half of an f32, so a shift converts it; sm_80 has no cvt for it.
            wide = self.builder.shl(self.builder.zext(value, I32), ir.Constant(I32, 16))
            return self.builder.bitcast(wide, F32)
        return self.asm(f"cvt.f32.{name} $0, $1;", "=f,h", [value], F32, pure=True)

    def from_f32(self, value: ir.Value, kind: DType) -> ir.Value:
        """Emit the conversion of an f32 to a 16-bit float (an i16), rounding to nearest even."""
        return self.asm(f"cvt.rn.{ptx_type(kind)}.f32 $0, $1;", "=h,f", [value], I16, pure=True)

    def pack_f32(self, low: ir.Value, high: ir.Value, kind: DType) -> ir.Value:
        """Emit the conversion of two f32 to 16-bit floats in one i32, rounding to nearest even."""
        text = f"cvt.rn.{ptx_type(kind)}x2.f32 $0, $1, $2;"
        return self.asm(text, "=r,f,f", [high, low], I32, pure=True)

    def signal(self, flag: ir.Value, value: ir.Value, order: str) -> None:
        """Emit a store to a flag with a memory order and scope, such as `release.gpu`.

        A release also covers writes of other threads that a barrier orders before the release.
        """
        text = f"st.{order}.global.u32 [$0], $1;"
        self.asm(text, "l,r", [flag, value], VOID, pure=False)

    def count(self, flag: ir.Value, order: str) -> None:
        """Emit an atomic addition of 1 to a flag, with an order and scope such as `release.gpu`.

        A thread that acquires the last of several additions also sees the writes that the earlier
        additions released, because `red` is atomic (PTX ISA, "Observation Order").
        """
        self.asm(f"red.{order}.global.add.u32 [$0], 1;", "l", [flag], VOID, pure=False)

    def reduce(
        self, target: ir.Value, values: Sequence[ir.Value], kind: DType, *, vector: bool
    ) -> None:
        """Emit atomic additions of 32-bit numbers to consecutive memory (relaxed, GPU scope).

        Subnormal f32 numbers are treated as zero (PTX ISA, "red").

        Args:
            target: the address of the first number.
            values: the numbers to add.
            kind: the type of the numbers.
            vector: whether one instruction adds all numbers, which must be 2 or 4 f32.
        """
        many, name, letter = len(values), ptx_type(kind), ptx_letter(kind)
        text = "red.relaxed.gpu.global.add"
        names = [f"${1 + i}" for i in range(many)]
        if vector and many > 1:
            text = f"{text}.v{many}.{name} [$0], {{{', '.join(names)}}};"
        else:
            each = (f"{text}.{name} [$0+{kind.bytes * i}], {x};" for i, x in enumerate(names))
            text = " ".join(each)
        constraints = ",".join(["l", *(letter * many)])
        self.asm(text, constraints, [target, *values], VOID, pure=False)

    def ticket(self, counter: ir.Value, last: ir.Value) -> ir.Value:
        """Emit an atomic increment of a counter, and return its old value, a ticket.

        The counter becomes 0 after the ticket `last` (PTX ISA, "atom": `.inc`). The order is
        relaxed, because the increment need not make other writes visible.
        """
        text = "atom.relaxed.gpu.global.inc.u32 $0, [$1], $2;"
        return self.asm(text, "=r,l,r", [counter, last], I32, pure=False)

    def clear(self, flag: ir.Value) -> None:
        """Emit a store of 0 to a flag, for the next launch."""
        self.asm("st.relaxed.gpu.global.u32 [$0], 0;", "l", [flag], VOID, pure=False)

    def wait(self, flag: ir.Value, value: ir.Value, order: str, *, watchdog: bool) -> None:
        """Emit a loop that polls a flag until it equals `value`.

        `order` is the memory order and scope of the loads, such as `acquire.gpu`. With a watchdog,
        the kernel traps after 2^26 polls instead of hanging.
        """
        text = _spin("setp.ne.u32 p, v, $1;", order, watchdog=watchdog)
        self.asm(text, "l,r", [flag, value], VOID, pure=False)

    def take(self, flag: ir.Value, order: str, *, watchdog: bool) -> None:
        """Emit a loop that polls a flag until it is not 0, then subtracts 1.

        Several readers may take one flag. A reader whose load observes the value after another
        reader's subtraction is still synchronised with the sender, because `red` is atomic (PTX
        ISA, "Observation Order").
        """
        lower = "red.relaxed.gpu.global.add.u32 [$0], 0xffffffff;"
        text = _spin("setp.eq.u32 p, v, 0;", order, lower, watchdog=watchdog)
        self.asm(text, "l", [flag], VOID, pure=False)


def _spin(again: str, order: str, then: str = "", *, watchdog: bool) -> str:
    """The PTX of a loop that polls a flag in global memory.

    Args:
        again: the instruction that sets the predicate `p` if polling must continue; the flag's
            value is in the register `v`.
        order: the memory order and scope of the load, such as `acquire.gpu`.
        then: instructions to execute after polling.
        watchdog: whether to trap after `SPIN_LIMIT` polls.
    """
    guard = f"add.u32 n, n, 1; setp.gt.u32 q, n, {SPIN_LIMIT}; @q trap;" if watchdog else ""
    poll = f"ld.{order}.global.u32 v, [$0]; {again} {guard} @p bra WAIT_${{:uid}};"
    start = ".reg .pred p, q; .reg .b32 v, n; mov.b32 n, 0;"
    return f"{{ {start} WAIT_${{:uid}}: {poll} {then} }}"
