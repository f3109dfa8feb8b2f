"""LLVM and PTX types of element types, and arithmetic in the types of accumulators.

The names of integer types follow from their widths and signs in `coordgraph.elements`.
Floating-point types, whose names in LLVM and PTX follow no rule, are listed in this file.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from coordgraph import CodegenError
from coordgraph.elements import DType, Number

__all__ = ["Arithmetic", "llvm_type", "ptx_letter", "ptx_type", "scalar_type"]


class _Float(NamedTuple):
    """The names of a floating-point type in LLVM and PTX.

    Attributes:
        llvm: the class of LLVM's type for arithmetic in `llvmlite.ir`, or '' if generated code does
            no arithmetic in it.
        ptx: the type's name in PTX.
        letter: the constraint letter of inline assembly for a register of this type.
    """

    llvm: str
    ptx: str
    letter: str


_FLOATS = {
    "bf16": _Float("", "bf16", "h"),  # no LLVM type: f32 is used for arithmetic
    "f16": _Float("HalfType", "f16", "h"),
    "f32": _Float("FloatType", "f32", "f"),
    "f64": _Float("DoubleType", "f64", "d"),
}
_LETTERS = {16: "h", 32: "r", 64: "l"}
"""The constraint letter of inline assembly for an integer register, by the register's bits."""


def llvm_type(kind: DType) -> Any:
    """LLVM's type for arithmetic in the element type `kind`.

    For an 8-bit float it is an integer of 8 bits: generated code only moves and converts its bits.

    Raises:
        CodegenError: generated code does no arithmetic in `kind`, for example in bf16.
    """
    from llvmlite import ir  # imported here, because launches import this module but not LLVM

    if not kind.is_float or kind.is_small_float:
        return ir.IntType(kind.bits)
    found = _FLOATS.get(kind.name)
    if found is None or not found.llvm:
        raise CodegenError(
            f"generated code does no arithmetic in {kind}; convert to f32, f64 or an integer type"
        )
    return getattr(ir, found.llvm)()


def ptx_type(kind: DType) -> str:
    """The PTX type of an element type, such as f32, s32 or u8 (PTX ISA, "Fundamental Types")."""
    if not kind.is_float:
        return f"{'s' if kind.number is Number.SIGNED else 'u'}{kind.bits}"
    return _FLOATS[kind.name].ptx


def ptx_letter(kind: DType) -> str:
    """The constraint letter of inline assembly for a PTX register of an element type."""
    return _FLOATS[kind.name].letter if kind.is_float else _LETTERS[max(kind.bits, 16)]


def scalar_type(kind: DType) -> Any:
    """The ctypes type in which a scalar of the element type `kind` is passed to a kernel."""
    import ctypes

    if kind.is_float:
        return {32: ctypes.c_float, 64: ctypes.c_double}[kind.bits]
    return {32: ctypes.c_int32, 64: ctypes.c_int64}[kind.bits]


@dataclass(frozen=True)
class Arithmetic:
    """Emits additions and multiplications of scalars or vectors of one element type.

    Args:
        builder: the LLVM IR builder that inserts the instructions.
        kind: the element type of the operands, such as f32; integers wrap around on overflow.
    """

    builder: Any  # llvmlite's type hints are incomplete
    kind: DType

    @property
    def type(self) -> Any:
        """LLVM's type of one scalar of the element type."""
        return llvm_type(self.kind)

    @property
    def zero(self) -> Any:
        """The constant 0 of the element type."""
        from llvmlite import ir

        return ir.Constant(self.type, 0.0 if self.kind.is_float else 0)

    def add(self, one: Any, other: Any) -> Any:
        """Emit `one + other`."""
        return (self.builder.fadd if self.kind.is_float else self.builder.add)(one, other)

    def multiply(self, one: Any, other: Any) -> Any:
        """Emit `one * other`."""
        return (self.builder.fmul if self.kind.is_float else self.builder.mul)(one, other)

    def atomic_add(self, address: Any, value: Any) -> None:
        """Emit an atomic addition of `value` to the memory at `address`, with relaxed ordering."""
        operation = "fadd" if self.kind.is_float else "add"
        self.builder.atomic_rmw(operation, address, value, "monotonic")

    def convert(self, value: Any, source: DType) -> Any:
        """Emit a conversion of `value` from the type `source` to the type `kind` of this object.

        Conversions to a narrower float round, conversions of floats to integers drop the fraction,
        and conversions to a narrower integer drop upper bits.
        """
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
