"""Elements in memory and in registers: what the host's loads and stores convert.

Registers hold the accumulator's type. bf16 is the upper half of an f32, so it is made by shifts;
f16 is converted by the instructions that the host must have for it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from llvmlite import ir

from coordgraph import CodegenError

__all__ = ["Elements", "float_type"]

_FLOATS = {"f16": ir.HalfType(), "f32": ir.FloatType(), "f64": ir.DoubleType()}
I16, I32 = ir.IntType(16), ir.IntType(32)


def float_type(name: str) -> Any:
    """LLVM's type for one of ours that it calculates with."""
    return _FLOATS[name]


@dataclass(frozen=True)
class Elements:
    """Loads and stores at a builder's place; values are of the type `register`."""

    builder: Any  # llvmlite's types say too little
    register: str

    def load(self, address: Any, kind: str) -> Any:
        """An element of type `kind` as a register holds it."""
        if kind != "bf16":
            value = self.builder.load(address, typ=self._memory(kind))
            return self._convert(value, kind, self.register)
        b = self.builder
        bits = b.zext(b.load(address, typ=I16, align=2), I32)
        value = b.bitcast(b.shl(bits, ir.Constant(I32, 16)), float_type("f32"))
        return self._convert(value, "f32", self.register)

    def store(self, value: Any, address: Any, kind: str) -> None:
        """Round a register to `kind`, to the nearest and to even, and store it."""
        if kind == "bf16":
            value = self._bf16(self._convert(value, self.register, "f32"))
        elif kind == "f16":
            # By way of f32: few hosts have an instruction from f64.
            value = self._convert(self._convert(value, self.register, "f32"), "f32", kind)
        else:
            value = self._convert(value, self.register, kind)
        self.builder.store(value, address)

    def _convert(self, value: Any, source: str, target: str) -> Any:
        before, after = _BITS[source], _BITS[target]
        if before == after:
            return value
        change = self.builder.fpext if after > before else self.builder.fptrunc
        return change(value, float_type(target))

    def _bf16(self, value: Any) -> Any:
        """Add half a unit less one, and one where the last bit is set; NaN only loses bits."""
        b = self.builder
        bits = b.bitcast(value, I32)
        upper = b.lshr(bits, ir.Constant(I32, 16))
        half = b.add(b.and_(upper, ir.Constant(I32, 1)), ir.Constant(I32, 0x7FFF))
        rounded = b.lshr(b.add(bits, half), ir.Constant(I32, 16))
        quiet = b.or_(upper, ir.Constant(I32, 0x40))
        return b.trunc(b.select(b.fcmp_unordered("uno", value, value), quiet, rounded), I16)

    @staticmethod
    def _memory(kind: str) -> Any:
        if kind not in _FLOATS:
            raise CodegenError(f"the host has no elements of {kind}")
        return float_type(kind)


_BITS = {"f16": 16, "f32": 32, "f64": 64}
