"""Loads and stores of a CPU kernel, which convert between element types and the accumulator's type.

A bf16 is the upper half of an f32, so shifts convert it. A table converts 8-bit floats to f32.
Instructions of the CPU (x86: F16C) convert f16; f16 tensors are refused on CPUs without such
instructions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from llvmlite import ir

from codegen.emit.elements import Arithmetic, llvm_type
from codegen.emit.small_floats import to_f32
from coordgraph.elements import DTYPES, DType

__all__ = ["Elements"]

BF16, F16, F32 = (DTYPES[name] for name in ("bf16", "f16", "f32"))
I16, I32 = ir.IntType(16), ir.IntType(32)


@dataclass(frozen=True)
class Elements:
    """Emits loads and stores of elements that convert between types in memory and in registers.

    Args:
        builder: the LLVM builder, positioned where the instructions are emitted.
        register: the element type of values in registers.
    """

    builder: Any  # llvmlite has no precise types for its builder
    register: DType

    def load(self, address: Any, kind: DType) -> Any:
        """Load an element of type `kind`; convert it to `self.register`, the type in registers."""
        b = self.builder
        if kind.is_small_float and kind != self.register:
            single = to_f32(b, b.load(address, typ=llvm_type(kind)), kind, gpu=False)
            return self._convert(single, F32, self.register)
        if kind != BF16:
            return self._convert(b.load(address, typ=llvm_type(kind)), kind, self.register)
        bits = b.zext(b.load(address, typ=I16, align=2), I32)
        value = b.bitcast(b.shl(bits, ir.Constant(I32, 16)), llvm_type(F32))
        return self._convert(value, F32, self.register)

    def store(self, value: Any, address: Any, kind: DType) -> None:
        """Convert a value in a register to `kind`, rounding to nearest even, and store it."""
        if kind == BF16:
            value = self._bf16(self._convert(value, self.register, F32))
        elif kind == F16:
            # f64 is rounded to f32 and then to f16: few CPUs convert f64 to f16 directly, and GPU
            # kernels round twice too.
            value = self._convert(self._convert(value, self.register, F32), F32, kind)
        else:
            value = self._convert(value, self.register, kind)
        self.builder.store(value, address)

    def _convert(self, value: Any, source: DType, target: DType) -> Any:
        return Arithmetic(self.builder, target).convert(value, source)

    def _bf16(self, value: Any) -> Any:
        """Emit the rounding of an f32 to the nearest bf16, ties to even; the result is an i16.

        A NaN becomes a quiet NaN.

        The emitted code adds 0x7FFF, and 1 more if the lowest of the upper 16 bits is set, and
        returns the upper 16 bits.
        """
        b = self.builder
        bits = b.bitcast(value, I32)
        upper = b.lshr(bits, ir.Constant(I32, 16))
        half = b.add(b.and_(upper, ir.Constant(I32, 1)), ir.Constant(I32, 0x7FFF))
        rounded = b.lshr(b.add(bits, half), ir.Constant(I32, 16))
        quiet = b.or_(upper, ir.Constant(I32, 0x40))
        return b.trunc(b.select(b.fcmp_unordered("uno", value, value), quiet, rounded), I16)
