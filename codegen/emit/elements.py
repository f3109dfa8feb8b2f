"""LLVM's and PTX's words for element types, and arithmetic in the types of accumulators.

Everything follows from the record in `coordgraph.elements`; only floating-point types, which LLVM
and PTX give names of their own, are listed here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from llvmlite import ir

from coordgraph import CodegenError
from coordgraph.elements import DType, Number

__all__ = ["Arithmetic", "llvm_type", "ptx_letter", "ptx_type", "scalar_type"]


class _Float(NamedTuple):
    """The words for a floating-point type.

    Attributes:
        llvm: LLVM's type that calculates, or None where there is none.
        ptx: PTX's type.
        letter: inline assembly's letter for a register that holds a number.
    """

    llvm: Any
    ptx: str
    letter: str


_FLOATS = {
    "bf16": _Float(None, "bf16", "h"),  # the upper half of an f32: made by shifts
    "f16": _Float(ir.HalfType(), "f16", "h"),
    "f32": _Float(ir.FloatType(), "f32", "f"),
    "f64": _Float(ir.DoubleType(), "f64", "d"),
}
_LETTERS = {16: "h", 32: "r", 64: "l"}
"""Inline assembly's letters for registers of integers."""


def llvm_type(kind: DType) -> Any:
    """LLVM's type for numbers of an element type that it calculates with.

    Raises:
        CodegenError: it does not calculate with them.
    """
    if not kind.is_float:
        return ir.IntType(kind.bits)
    found = _FLOATS.get(kind.name)
    if found is None or found.llvm is None:
        raise CodegenError(f"no code calculates with numbers of {kind}")
    return found.llvm


def ptx_type(kind: DType) -> str:
    """PTX's name of an element type, such as f32, s32 and u8."""
    if not kind.is_float:
        return f"{'s' if kind.number is Number.SIGNED else 'u'}{kind.bits}"
    return _FLOATS[kind.name].ptx


def ptx_letter(kind: DType) -> str:
    """Inline assembly's letter for a PTX register that holds a number of an element type."""
    return _FLOATS[kind.name].letter if kind.is_float else _LETTERS[max(kind.bits, 16)]


def scalar_type(kind: DType) -> Any:
    """The type of ctypes that passes a number of a type of accumulators to a kernel."""
    import ctypes

    if kind.is_float:
        return {32: ctypes.c_float, 64: ctypes.c_double}[kind.bits]
    return {32: ctypes.c_int32, 64: ctypes.c_int64}[kind.bits]


@dataclass(frozen=True)
class Arithmetic:
    """Sums and products at a builder's place, of numbers or vectors of them.

    Args:
        builder: where instructions go.
        kind: the type of the numbers, as of an accumulator; integers wrap around.
    """

    builder: Any  # llvmlite's types say too little
    kind: DType

    @property
    def type(self) -> Any:
        """LLVM's type of one number."""
        return llvm_type(self.kind)

    @property
    def zero(self) -> Any:
        """The number zero."""
        return ir.Constant(self.type, 0.0 if self.kind.is_float else 0)

    def add(self, one: Any, other: Any) -> Any:
        """The sum."""
        return (self.builder.fadd if self.kind.is_float else self.builder.add)(one, other)

    def multiply(self, one: Any, other: Any) -> Any:
        """The product."""
        return (self.builder.fmul if self.kind.is_float else self.builder.mul)(one, other)

    def atomic_add(self, address: Any, value: Any) -> None:
        """Add to memory while others do, too."""
        operation = "fadd" if self.kind.is_float else "add"
        self.builder.atomic_rmw(operation, address, value, "monotonic")

    def convert(self, value: Any, source: DType) -> Any:
        """A number of another type in this one: rounded, or truncated to the bits there are."""
        target, b = self.kind, self.builder
        if source == target:
            return value
        signed = source.number is Number.SIGNED
        if source.is_float and target.is_float:
            change = b.fpext if target.bits > source.bits else b.fptrunc
        elif source.is_float:
            change = b.fptosi if target.number is Number.SIGNED else b.fptoui
        elif target.is_float:
            change = b.sitofp if signed else b.uitofp
        elif target.bits > source.bits:
            change = b.sext if signed else b.zext
        else:
            return b.trunc(value, self.type) if target.bits < source.bits else value
        return change(value, self.type)
