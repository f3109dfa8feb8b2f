"""PTX instructions as LLVM calls: the only place that spells them.

Intrinsics where LLVM has them with the right ordering, inline assembly elsewhere. LLVM's NVPTX
backend drops the ordering of `atomicrmw`, so flags use PTX of their own (PTX ISA, "Memory
Consistency Model"); every one of those clobbers memory, so LLVM moves no access across it.
"""

from __future__ import annotations

from collections.abc import Sequence

from llvmlite import ir

from codegen.emit.elements import ptx_letter, ptx_type
from coordgraph.elements import DType

__all__ = ["F32", "I1", "I16", "I32", "I64", "VOID", "Instructions", "pointer"]

I1, I8, I16, I32, I64 = (ir.IntType(n) for n in (1, 8, 16, 32, 64))
F32 = ir.FloatType()
VOID = ir.VoidType()
GLOBAL, SHARED = 1, 3
SPIN_LIMIT = 1 << 26
_BITS = {8: (I16, "h"), 16: (I16, "h"), 32: (I32, "r"), 64: (I64, "l")}
"""The register that holds so many bits: PTX has none of 8."""


def pointer(space: int) -> ir.PointerType:
    """An untyped pointer into an address space."""
    return ir.PointerType(addrspace=space)


class Instructions:
    """Emits instructions at a builder's place."""

    def __init__(self, builder: ir.IRBuilder) -> None:
        self.builder = builder

    def call(self, name: str, result: ir.Type, args: Sequence[ir.Value]) -> ir.Value:
        """An LLVM intrinsic, declared where it is not yet."""
        module = self.builder.module
        function = module.globals.get(name)
        if function is None:
            kind = ir.FunctionType(result, [a.type for a in args])
            function = ir.Function(module, kind, name)
        return self.builder.call(function, args)

    def asm(
        self, text: str, constraints: str, args: Sequence[ir.Value], result: ir.Type, *, pure: bool
    ) -> ir.Value:
        """Inline assembly; what is not pure clobbers memory and stays where it is.

        It is convergent too: LLVM must not give each side of a branch a copy of its own, since the
        lanes of a warp come together in many of these instructions.
        """
        if not pure:
            constraints += ",~{memory}" if constraints else "~{memory}"
        kind = ir.FunctionType(result, [a.type for a in args])
        call = self.builder.asm(kind, text, constraints, list(args), side_effect=not pure)
        if not pure:
            call.attributes.add("convergent")
        return call

    def opaque(self, value: ir.Value) -> ir.Value:
        """The same number, of which LLVM knows nothing and which it computes nowhere else."""
        bits, letter = (32, "r") if value.type.width == 32 else (64, "l")
        kind = ir.FunctionType(value.type, [value.type])
        text = f"mov.b{bits} $0, $1;"
        return self.builder.asm(kind, text, f"={letter},{letter}", [value], side_effect=True)

    def thread(self) -> ir.Value:
        """The workitem's number."""
        return self.call("llvm.nvvm.read.ptx.sreg.tid.x", I32, [])

    def block(self) -> ir.Value:
        """The workgroup's number."""
        return self.call("llvm.nvvm.read.ptx.sreg.ctaid.x", I32, [])

    def cluster(self) -> ir.Value:
        """The cluster's number."""
        return self.call("llvm.nvvm.read.ptx.sreg.clusterid.x", I32, [])

    def rank(self) -> ir.Value:
        """The workgroup's rank in its cluster."""
        return self.call("llvm.nvvm.read.ptx.sreg.cluster.ctarank", I32, [])

    def same(self, value: ir.Value) -> ir.Value:
        """What is equal in all lanes of a warp, said so that registers of the warp hold it."""
        lanes = [ir.Constant(I32, -1), value, ir.Constant(I32, 0), ir.Constant(I32, 31)]
        return self.call("llvm.nvvm.shfl.sync.idx.i32", I32, lanes)

    def of_lane(self, value: ir.Value, lane: int) -> ir.Value:
        """What a lane of the warp has, in all of them."""
        numbers = [ir.Constant(I32, n) for n in (-1, lane, 31)]
        args = [numbers[0], value, *numbers[1:]]
        return self.call("llvm.nvvm.shfl.sync.idx.i32", I32, args)

    def prefix_sum(self, value: ir.Value, lane: ir.Value) -> ir.Value:
        """The sum over the warp's lanes up to and with this one."""
        for distance in (1, 2, 4, 8, 16):
            numbers = [ir.Constant(I32, n) for n in (-1, distance, 0)]
            args = [numbers[0], value, *numbers[1:]]
            below = self.call("llvm.nvvm.shfl.sync.up.i32", I32, args)
            far = self.builder.icmp_unsigned(">=", lane, numbers[1])
            value = self.builder.add(value, self.builder.select(far, below, ir.Constant(I32, 0)))
        return value

    def barrier(self) -> None:
        """All workitems of the workgroup."""
        self.call("llvm.nvvm.barrier0", VOID, [])

    def barrier_of(self, identifier: ir.Value, workitems: int) -> None:
        """Some workitems of the workgroup, by a barrier of their own."""
        self.asm(f"bar.sync $0, {workitems};", "r", [identifier], VOID, pure=False)

    def pinned(self, value: ir.Value, kind: DType) -> ir.Value:
        """The same number, computed here.

        LLVM would sink a tile's sums below all of its loads; registers do not suffice for both.
        """
        function = ir.FunctionType(value.type, [value.type])
        return self.builder.asm(function, "", f"={ptx_letter(kind)},0", [value], side_effect=True)

    def fence(self) -> None:
        """No memory access of this thread moves across it, in ptxas's schedule either."""
        self.asm("fence.acq_rel.cta;", "", [], VOID, pure=False)

    def copy_async(self, shared: ir.Value, source: ir.Value, size: int, read: ir.Value) -> None:
        """cp.async of 4, 8 or 16 bytes of which `read` come from memory and the rest are zero."""
        cache = "cg" if size == 16 else "ca"
        name = f"llvm.nvvm.cp.async.{cache}.shared.global.{size}.s"
        self.call(name, VOID, [shared, source, read])

    def commit_copies(self) -> None:
        """Close a group of cp.async."""
        self.call("llvm.nvvm.cp.async.commit.group", VOID, [])

    def wait_copies(self, pending: int) -> None:
        """Wait until at most `pending` groups are under way."""
        self.call("llvm.nvvm.cp.async.wait.group", VOID, [ir.Constant(I32, pending)])

    def load_or_zero(self, source: ir.Value, bits: int, guard: ir.Value) -> ir.Value:
        """A guarded load without a branch (8, 16, 32 or 64 bits)."""
        kind, letter = _BITS[bits]
        text = (
            f"{{ .reg .pred p; setp.ne.b32 p, $2, 0; mov.b{kind.width} $0, 0; "
            f"@p ld.global.b{bits} $0, [$1]; }}"
        )
        flag = self.builder.zext(guard, I32)
        found = self.asm(text, f"=&{letter},l,r", [source, flag], kind, pure=False)
        return self.builder.trunc(found, ir.IntType(bits)) if bits < kind.width else found

    def store_if(self, value: ir.Value, target: ir.Value, bits: int, guard: ir.Value) -> None:
        """A guarded store without a branch (16, 32 or 64 bits)."""
        kind, letter = _BITS[bits]
        text = f"{{ .reg .pred p; setp.ne.b32 p, $2, 0; @p st.global.b{bits} [$1], $0; }}"
        flag = self.builder.zext(guard, I32)
        whole = self.builder.bitcast(value, kind)
        self.asm(text, f"{letter},l,r", [whole, target, flag], VOID, pure=False)

    def ldmatrix(self, shared: ir.Value, *, trans: bool) -> list[ir.Value]:
        """Four 8x8 matrices of 16-bit elements."""
        suffix = ".trans" if trans else ""
        name = f"llvm.nvvm.ldmatrix.sync.aligned.m8n8.x4{suffix}.b16.p3"
        result = self.call(name, ir.LiteralStructType([I32] * 4), [shared])
        return [self.builder.extract_value(result, i) for i in range(4)]

    def mma(
        self, instruction: str, a: Sequence[ir.Value], b: Sequence[ir.Value], c: Sequence[ir.Value]
    ) -> list[ir.Value]:
        """mma.sync of a shape and of operands of a kind: `mma.m16n8k16.bf16`, `mma.m16n8k32.s8`."""
        _, shape, kind = instruction.split(".")
        name, operands = f"llvm.nvvm.mma.{shape}.row.col.{kind}", [*a, *b]
        if kind == "f16":  # LLVM names it by C and D, and takes pairs of halves
            name, half2 = f"llvm.nvvm.mma.{shape}.row.col.f32.f32", ir.VectorType(ir.HalfType(), 2)
            operands = [self.builder.bitcast(x, half2) for x in operands]
        struct = ir.LiteralStructType([x.type for x in c])
        result = self.call(name, struct, [*operands, *c])
        return [self.builder.extract_value(result, i) for i in range(4)]

    def to_f32(self, value: ir.Value, kind: DType) -> ir.Value:
        """One stored 16-bit float (as i16) as f32; exact."""
        name = ptx_type(kind)
        if name == "bf16":  # the upper half of an f32; sm_80 has no instruction for it
            wide = self.builder.shl(self.builder.zext(value, I32), ir.Constant(I32, 16))
            return self.builder.bitcast(wide, F32)
        return self.asm(f"cvt.f32.{name} $0, $1;", "=f,h", [value], F32, pure=True)

    def from_f32(self, value: ir.Value, kind: DType) -> ir.Value:
        """f32 as one 16-bit float (i16), to nearest even."""
        return self.asm(f"cvt.rn.{ptx_type(kind)}.f32 $0, $1;", "=h,f", [value], I16, pure=True)

    def pack_f32(self, low: ir.Value, high: ir.Value, kind: DType) -> ir.Value:
        """Two f32 as two 16-bit floats in one i32, to nearest even."""
        text = f"cvt.rn.{ptx_type(kind)}x2.f32 $0, $1, $2;"
        return self.asm(text, "=r,f,f", [high, low], I32, pure=True)

    def signal(self, flag: ir.Value, value: ir.Value) -> None:
        """Raise a flag: everything before it, here and behind a barrier, is visible first."""
        text = "st.release.gpu.global.u32 [$0], $1;"
        self.asm(text, "l,r", [flag, value], VOID, pure=False)

    def count(self, flag: ir.Value) -> None:
        """Raise a flag by one: everything before it, here and behind a barrier, is visible first.

        Who waits for the last of several that count sees what all of them wrote: `red` is atomic
        (PTX ISA, "Observation Order").
        """
        self.asm("red.release.gpu.global.add.u32 [$0], 1;", "l", [flag], VOID, pure=False)

    def reduce(
        self, target: ir.Value, values: Sequence[ir.Value], kind: DType, *, vector: bool
    ) -> None:
        """Add numbers of 32 bits to memory, each atomically; a vector takes 2 or 4 f32 at once.

        PTX ISA, "red": subnormal numbers count as zero.
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

    def clear(self, flag: ir.Value) -> None:
        """Lower a flag for the next launch."""
        self.asm("st.relaxed.gpu.global.u32 [$0], 0;", "l", [flag], VOID, pure=False)

    def wait(self, flag: ir.Value, value: ir.Value, *, watchdog: bool) -> None:
        """Spin until a flag is `value`, then see what was written before it.

        With a watchdog the kernel traps after 2^26 polls instead of hanging.
        """
        text = _spin("setp.ne.u32 p, v, $1;", watchdog=watchdog)
        self.asm(text, "l,r", [flag, value], VOID, pure=False)

    def take(self, flag: ir.Value, *, watchdog: bool) -> None:
        """Spin until a flag is not zero, lower it by one, see what was written before it.

        Who reads what another reader left synchronises with the sender all the same: `red` is
        atomic (PTX ISA, "Observation Order").
        """
        lower = "red.relaxed.gpu.global.add.u32 [$0], 0xffffffff;"
        text = _spin("setp.eq.u32 p, v, 0;", lower, watchdog=watchdog)
        self.asm(text, "l", [flag], VOID, pure=False)


def _spin(again: str, then: str = "", *, watchdog: bool) -> str:
    """Poll the flag at $0 as v, with acquire, as long as `again` sets p."""
    guard = f"add.u32 n, n, 1; setp.gt.u32 q, n, {SPIN_LIMIT}; @q trap;" if watchdog else ""
    poll = f"ld.acquire.gpu.global.u32 v, [$0]; {again} {guard} @p bra WAIT_${{:uid}};"
    start = ".reg .pred p, q; .reg .b32 v, n; mov.b32 n, 0;"
    return f"{{ {start} WAIT_${{:uid}}: {poll} {then} }}"
