"""Elements in memory and in registers: what the host's loads and stores convert.

Registers hold the accumulator's type. bf16 is the upper half of an f32, so it is made by shifts;
f16 is converted by the instructions that the host must have for it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from llvmlite import ir

from codegen.emit.elements import Arithmetic, llvm_type
from coordgraph.elements import DTYPES, DType

__all__ = ["Elements"]

BF16, F16, F32 = (DTYPES[name] for name in ("bf16", "f16", "f32"))
I16, I32 = ir.IntType(16), ir.IntType(32)


@dataclass(frozen=True)
class Elements:
    """Loads and stores at a builder's place; values are of the type `register`."""

    builder: Any  # llvmlite's types say too little
    register: DType

    def load(self, address: Any, kind: DType) -> Any:
        """An element of type `kind` as a register holds it."""
        b = self.builder
        if kind != BF16:
            return self._convert(b.load(address, typ=llvm_type(kind)), kind, self.register)
        bits = b.zext(b.load(address, typ=I16, align=2), I32)
        value = b.bitcast(b.shl(bits, ir.Constant(I32, 16)), llvm_type(F32))
        return self._convert(value, F32, self.register)

    def store(self, value: Any, address: Any, kind: DType) -> None:
        """Round a register to `kind`, to the nearest and to even, and store it."""
        if kind == BF16:
            value = self._bf16(self._convert(value, self.register, F32))
        elif kind == F16:
            # By way of f32: few hosts have an instruction from f64, and GPUs convert so, too.
            value = self._convert(self._convert(value, self.register, F32), F32, kind)
        else:
            value = self._convert(value, self.register, kind)
        self.builder.store(value, address)

    def _convert(self, value: Any, source: DType, target: DType) -> Any:
        return Arithmetic(self.builder, target).convert(value, source)

    def _bf16(self, value: Any) -> Any:
        """Add half a unit less one, and one where the last bit is set; NaN only loses bits."""
        b = self.builder
        bits = b.bitcast(value, I32)
        upper = b.lshr(bits, ir.Constant(I32, 16))
        half = b.add(b.and_(upper, ir.Constant(I32, 1)), ir.Constant(I32, 0x7FFF))
        rounded = b.lshr(b.add(bits, half), ir.Constant(I32, 16))
        quiet = b.or_(upper, ir.Constant(I32, 0x40))
        return b.trunc(b.select(b.fcmp_unordered("uno", value, value), quiet, rounded), I16)
