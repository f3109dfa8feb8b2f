"""`HostClocks`: emits code that reads the operating system's clock, for records of a timeline."""

from __future__ import annotations

from llvmlite import ir

from codegen.emit.walker import Fragments
from codegen.targets.cpu.control_block import SLOT_WORDS, SLOTS
from codegen.targets.cpu.launch_code import call_intrinsic
from coordgraph import CodegenError

__all__ = ["HostClocks"]

I32, I64 = ir.IntType(32), ir.IntType(64)
MONOTONIC = {"linux": 1, "darwin": 6, "macos": 6}
"""Value of the constant CLOCK_MONOTONIC of `clock_gettime`, by the operating system's name in
LLVM's target triple."""
NANOSECONDS = 10**9
WORD_BYTES = 8


class HostClocks:
    """Emits code that reads the operating system's clock and the number of the thread.

    Args:
        builder: the LLVM builder.
        fragments: the stack slots of the emitted function.
        triple: LLVM's target triple of the CPU.
        control: the address of the launch's control block.
        slot: the address of the thread's slot in the control block.
    """

    def __init__(
        self,
        builder: ir.IRBuilder,
        fragments: Fragments,
        triple: str,
        control: ir.Value,
        slot: ir.Value,
    ) -> None:
        found = [number for system, number in MONOTONIC.items() if system in triple]
        if not found:
            raise CodegenError(
                f"timeline=True needs the function clock_gettime, which {triple} lacks; compile "
                "with timeline=False, or on Linux or macOS"
            )
        self.builder, self.fragments, self.number = builder, fragments, found[0]
        self.control, self.slot = control, slot

    def clock(self) -> ir.Value:
        """Emit a read of CLOCK_MONOTONIC, in nanoseconds."""
        b = self.builder
        words = self.fragments.slot("timespec", 0, ir.ArrayType(I64, 2))
        call_intrinsic(b, "clock_gettime", I32, [ir.Constant(I32, self.number), words])
        seconds, rest = (
            b.load(b.gep(words, [ir.Constant(I64, n)], source_etype=I64), typ=I64) for n in (0, 1)
        )
        return b.add(b.mul(seconds, ir.Constant(I64, NANOSECONDS)), rest)

    def global_time(self) -> ir.Value:
        """Emit a read of CLOCK_MONOTONIC, in nanoseconds, which is the same for all threads."""
        return self.clock()

    def processor(self) -> ir.Value:
        """Emit a read of the thread's number among the threads of the launch."""
        b = self.builder
        first, own = (b.ptrtoint(x, I64) for x in (self.control, self.slot))
        offset = b.sub(b.sub(own, first), ir.Constant(I64, WORD_BYTES * SLOTS))
        return b.trunc(b.udiv(offset, ir.Constant(I64, WORD_BYTES * SLOT_WORDS)), I32)
