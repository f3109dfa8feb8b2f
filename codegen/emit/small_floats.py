"""Conversions between f32 and 8-bit floats (e4m3, e5m2), whose bits are LLVM integers of 8 bits."""

from __future__ import annotations

from typing import Any, cast

from llvmlite import ir

from coordgraph.elements import DType

__all__ = ["from_f32", "to_f32"]

I8, I16, I32, F32 = ir.IntType(8), ir.IntType(16), ir.IntType(32), ir.FloatType()
HALF2 = ir.VectorType(ir.HalfType(), 2)
STORED, BIAS = 23, 127
"""STORED: number of bits of the significand that an f32 stores. BIAS: the number that is added to
the exponent of an f32 in its bits."""
NAN = 0x7F
"""The bits of NaN as instructions of GPUs make it, in both 8-bit float types."""


def to_f32(builder: Any, value: Any, kind: DType, *, gpu: bool) -> Any:
    """Emit the exact conversion of the bits of an 8-bit float to f32.

    A GPU of compute capability 8.9 or more executes PTX's `cvt` to f16, which holds every 8-bit
    float. A CPU loads the number from a table.
    """
    if not gpu:
        return _from_table(builder, value, kind)
    text = f"cvt.rn.f16x2.{kind}x2 $0, $1;"
    pair = builder.asm(ir.FunctionType(I32, [I16]), text, "=r,h", [builder.zext(value, I16)], False)
    half = builder.extract_element(builder.bitcast(pair, HALF2), ir.Constant(I32, 0))
    return builder.fpext(half, F32)


def from_f32(builder: Any, value: Any, kind: DType, *, gpu: bool) -> Any:
    """Emit the rounding of an f32 to the bits of the nearest 8-bit float, ties to even.

    A number outside the range of the type becomes the nearest finite number; NaN stays NaN. A GPU
    of compute capability 8.9 or more executes PTX's `cvt.rn.satfinite`, a CPU integer operations.
    """
    if not gpu:
        return _rounded(builder, value, kind)
    text = f"cvt.rn.satfinite.{kind}x2.f32 $0, $2, $1;"
    zero = ir.Constant(F32, 0.0)
    pair = builder.asm(ir.FunctionType(I16, [F32, F32]), text, "=h,f,f", [value, zero], False)
    return builder.trunc(pair, I8)


def _from_table(builder: Any, value: Any, kind: DType) -> Any:
    """Load the f32 that equals an 8-bit float from a table of all 256, which the module holds."""
    module, name = builder.module, f"numbers_of_{kind}"
    numbers = ir.ArrayType(I32, 256)
    table: Any = module.globals.get(name)
    if table is None:
        table = cast(Any, ir.GlobalVariable(module, numbers, name))
        table.initializer = ir.Constant(numbers, [_bits_of_f32(bits, kind) for bits in range(256)])
        table.global_constant, table.linkage = True, "private"
    place = [ir.Constant(I32, 0), builder.zext(value, I32)]
    at = builder.gep(table, place, inbounds=True, source_etype=numbers)
    return builder.bitcast(builder.load(at, typ=I32), F32)


def _bits_of_f32(bits: int, kind: DType) -> int:
    """The bits of the f32 that equals the 8-bit float with the bits `bits`."""
    import numpy as np

    from coordgraph.interpreter.arguments import numpy_dtype

    small = np.array([bits], np.uint8).view(numpy_dtype(kind.name))
    return int(small.astype(np.float32).view(np.uint32)[0])


def _rounded(b: Any, value: Any, kind: DType) -> Any:
    """Emit integer operations that round an f32 to an 8-bit float; see `from_f32`.

    Numbers that are normal in the type: the bits of the significand that the type does not store
    are rounded off, and the exponent gets the bias of the type. Other numbers are multiples of the
    least positive number of the type; their bits are the multiple. A number that rounds up to the
    least normal one gets its bits in both ways.
    """
    stored = kind.digits - 1
    bias = (1 << (kind.bits - 2 - stored)) - 1
    dropped = STORED - stored
    least = 2.0 ** (1 - bias)

    def number(x: int) -> Any:
        return ir.Constant(I32, x)

    def call(name: str, *arguments: Any) -> Any:
        function = b.module.globals.get(name)
        if function is None:
            types = ir.FunctionType(F32, [a.type for a in arguments])
            function = ir.Function(b.module, types, name)
        return b.call(function, list(arguments))

    size = call("llvm.fabs.f32", value)
    # minnum returns the other argument for NaN, so all later steps compute with finite numbers.
    size = call("llvm.minnum.f32", size, ir.Constant(F32, kind.most))
    bits = b.bitcast(size, I32)
    odd = b.and_(b.lshr(bits, number(dropped)), number(1))
    carried = b.add(bits, b.add(odd, number((1 << (dropped - 1)) - 1)))
    normal = b.sub(b.lshr(carried, number(dropped)), number((BIAS - bias) << stored))
    multiple = call("llvm.rint.f32", b.fmul(size, ir.Constant(F32, 2.0**stored / least)))
    small = b.fcmp_ordered("<", size, ir.Constant(F32, least))
    # The conversion to an integer is unspecified for large numbers, whose multiple is not used.
    multiple = b.select(small, multiple, ir.Constant(F32, 0.0))
    found = b.select(small, b.fptoui(multiple, I32), normal)
    sign = b.and_(b.lshr(b.bitcast(value, I32), number(24)), number(0x80))
    found = b.select(b.fcmp_unordered("uno", value, value), number(NAN), b.or_(found, sign))
    return b.trunc(found, I8)
