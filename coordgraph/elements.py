"""Element types: `DType` says how elements are stored, multiplied, summed and converted.

To add a type, add its record to `DTYPES`. The interpreter and the CPU backend need nothing else for
integer types. `codegen/emit/elements.py` maps records to LLVM types, conversions and matrix
instructions.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from coordgraph.errors import VerifyError

__all__ = [
    "BYTE",
    "CHUNK_BYTES",
    "DTYPES",
    "ROW_BYTES",
    "WARPGROUP_MMA",
    "WARP_MMA",
    "DType",
    "MatrixInstruction",
    "Number",
    "dtype",
]

CHUNK_BYTES, ROW_BYTES = 16, 128
"""CHUNK_BYTES: size in bytes of the widest memory access of one thread, and of a row of `ldmatrix`.
ROW_BYTES: size in bytes of a row of a TMA box that has the widest shared-memory swizzle."""
BYTE = 8
"""Number of bits of the elements that only the epilogue operation `quantize` stores."""
WARP_MMA, WARPGROUP_MMA = "mma.sync", "wgmma"
"""Families of matrix instructions: `mma.sync` of one warp (sm_80 and later), `wgmma` of one
warpgroup (sm_90a)."""

WIDTHS, SUMS = (8, 16, 32, 64), ("f32", "f64", "i32")
"""WIDTHS: allowed sizes of an element, in bits. SUMS: names of the accumulator types."""
_INTEGERS = tuple(f"{sign}int{bits}" for bits in WIDTHS for sign in ("", "u"))
LIBRARY = (*_INTEGERS, "float16", "bfloat16", "float32", "float64", "float8_e4m3fn", "float8_e5m2")
"""Names of the NumPy and ml_dtypes element types whose sizes are in `WIDTHS`."""


class Number(Enum):
    """The number format of an element: floating point, signed integer or unsigned integer."""

    FLOAT = "float"
    SIGNED = "signed"
    UNSIGNED = "unsigned"


@dataclass(frozen=True)
class MatrixInstruction:
    """How the matrix instructions of one family multiply elements of one type.

    Args:
        family: `WARP_MMA` or `WARPGROUP_MMA`.
        kind: the type of A and B in the instruction's name (PTX ISA, `mma` and `wgmma.mma_async`).
        depth: extent of one instruction along k, in elements.
        across_k: whether operands may be contiguous along m or n (MN-major). Otherwise both must be
            contiguous along k (K-major): A row-major, B given as its transpose.
        columns: the extent of an instruction along n is a multiple of this number of elements.
    """

    family: str
    kind: str
    depth: int
    across_k: bool = True
    columns: int = 8


@dataclass(frozen=True)
class DType:
    """An element type of tensors and accumulators, such as bf16.

    Args:
        name: the name by which `Gemm` takes the type, such as `bf16`.
        bits: size of an element in memory, in bits.
        number: whether the bits are a float, a signed or an unsigned integer.
        library: the type's name in NumPy, ml_dtypes, PyTorch and CUDA's tensor maps.
        accumulator: the type in which products of elements are summed; alpha and beta have this
            type too.
        digits: number of bits of a float's significand, with the hidden bit; 0 for an integer.
        operand: whether A and B may have this type.
        instructions: how matrix instructions multiply elements of the type, at most one record per
            family.
        capability: the lowest compute capability, times ten, of the NVIDIA GPUs that have
            instructions for the type: 89 for 8.9.
        most: the largest finite number of an 8-bit float, to which `quantize` saturates; 0.0 for
            other types.
        sum_digits: number of bits of the significand to which tensor cores cut off sums of products
            of the type; 0 if they round the sums to the accumulator's type.

    Raises:
        VerifyError: a field has a wrong type, or a value that no element type can have.
    """

    name: str
    bits: int
    number: Number
    library: str
    accumulator: str
    digits: int = 0
    operand: bool = True
    instructions: tuple[MatrixInstruction, ...] = ()
    capability: int = 80
    most: float = 0.0
    sum_digits: int = 0

    def __post_init__(self) -> None:
        if not isinstance(self.number, Number):
            raise VerifyError(
                f"DType {self.name}: number = {self.number!r} must be one of "
                f"{', '.join(map(str, Number))}"
            )
        if self.bits not in WIDTHS:
            raise VerifyError(
                f"DType {self.name}: bits = {self.bits!r} must be one of "
                f"{', '.join(map(str, WIDTHS))}"
            )
        if self.accumulator not in SUMS:
            raise VerifyError(
                f"DType {self.name}: accumulator = {self.accumulator!r} must be one of "
                f"{', '.join(SUMS)}, the types in which kernels sum"
            )
        if self.library not in LIBRARY:
            raise VerifyError(
                f"DType {self.name}: library = {self.library!r} is no element type of NumPy or "
                f"ml_dtypes that kernels store; use one of {', '.join(LIBRARY)}"
            )
        if not all(isinstance(each, MatrixInstruction) for each in self.instructions):
            raise VerifyError(
                f"DType {self.name}: instructions = {self.instructions!r} is no tuple of "
                "MatrixInstruction objects; give a tuple of them, or ()"
            )

    @property
    def bytes(self) -> int:
        """Size of an element in bytes."""
        return self.bits // 8

    @property
    def chunk(self) -> int:
        """Number of elements in 16 bytes, the widest memory access of one thread."""
        return CHUNK_BYTES // self.bytes

    @property
    def row(self) -> int:
        """Number of elements in a 128-byte row of a TMA box."""
        return ROW_BYTES // self.bytes

    @property
    def is_float(self) -> bool:
        """Whether elements are floating-point numbers."""
        return self.number is Number.FLOAT

    @property
    def is_small_float(self) -> bool:
        """Whether elements are 8-bit floats; their names are those of PTX, too."""
        return self.is_float and self.bits == BYTE

    @property
    def roundoff(self) -> float:
        """The largest relative error of rounding a number to this type; 0.0 for integer types."""
        return 2.0**-self.digits if self.is_float else 0.0

    @property
    def sum_roundoff(self) -> float:
        """The largest relative error of one addition to a sum of products of this type.

        It is 0.0 if sums are integers. Sums of products of 8-bit floats are less exact than their
        type, f32, allows (see `sum_digits`).
        """
        if self.sum_digits:
            return 2.0 ** (1 - self.sum_digits)  # cutting off is twice as inexact as rounding
        return DTYPES[self.accumulator].roundoff

    @property
    def least(self) -> int:
        """The smallest value that an integer type can hold."""
        return -(1 << (self.bits - 1)) if self.number is Number.SIGNED else 0

    @property
    def largest(self) -> int:
        """The largest value that an integer type can hold."""
        return self.least + (1 << self.bits) - 1

    def instruction(self, family: str) -> MatrixInstruction | None:
        """How matrix instructions of a family multiply this type, or None if the family cannot.

        Args:
            family: `WARP_MMA` or `WARPGROUP_MMA`.
        """
        return next((i for i in self.instructions if i.family == family), None)

    def becomes(self, other: DType) -> bool:
        """Whether sums of this type can be stored as elements of type `other`.

        All sums can be stored as their own type and as floats of 16 bits or more. Elements of 8
        bits are stored only by the epilogue operation `quantize`, which says how they are rounded.
        """
        return other == self or (other.is_float and other.bits > BYTE)

    @property
    def result(self) -> str:
        """The default type of D if A and B have this type.

        D has this type if this type is a float of 16 bits or more. For 8-bit types, D has the
        accumulator's type.
        """
        return self.name if DTYPES[self.accumulator].becomes(self) else self.accumulator

    def __str__(self) -> str:
        return self.name


def _float(
    name: str, bits: int, accumulator: str, library: str, digits: int, tensor_cores: bool = False
) -> DType:
    """Make a floating-point type; `tensor_cores` adds `mma.sync` and `wgmma` with k = 16."""
    families = (WARP_MMA, WARPGROUP_MMA) if tensor_cores else ()
    instructions = tuple(MatrixInstruction(family, name, 16) for family in families)
    return DType(name, bits, Number.FLOAT, library, accumulator, digits, True, instructions)


def _byte(name: str, number: Number, library: str, kind: str) -> DType:
    """Make an 8-bit integer type, whose products are summed exactly modulo 2^32."""
    instructions = (
        MatrixInstruction(WARP_MMA, kind, 32, across_k=False),
        MatrixInstruction(WARPGROUP_MMA, kind, 32, across_k=False, columns=16),
    )
    return DType(name, 8, number, library, "i32", instructions=instructions)


def _small_float(name: str, library: str, digits: int, most: float) -> DType:
    """Make an 8-bit float type.

    Its `mma.sync` exists on GPUs of compute capability 8.9 or more (PTX ISA, "mma"). Hopper's
    tensor cores keep about 14 bits of sums (DeepSeek-V3 Technical Report, arXiv:2412.19437, section
    3.5.2).
    """
    instructions = (
        MatrixInstruction(WARP_MMA, name, 32, across_k=False),
        MatrixInstruction(WARPGROUP_MMA, name, 32, across_k=False),
    )
    return DType(
        *(name, BYTE, Number.FLOAT, library, "f32", digits),
        instructions=instructions,
        capability=89,
        most=most,
        sum_digits=14,
    )


DTYPES = {
    d.name: d
    for d in (
        _float("bf16", 16, "f32", "bfloat16", 8, tensor_cores=True),
        _float("f16", 16, "f32", "float16", 11, tensor_cores=True),
        _float("f32", 32, "f32", "float32", 24),
        _float("f64", 64, "f64", "float64", 53),
        _byte("i8", Number.SIGNED, "int8", "s8"),
        _byte("u8", Number.UNSIGNED, "uint8", "u8"),
        _small_float("e4m3", "float8_e4m3fn", 4, 448.0),
        _small_float("e5m2", "float8_e5m2", 3, 57344.0),
        DType("i32", 32, Number.SIGNED, "int32", "i32", operand=False),
    )
}
"""Every element type by its name. Types with `operand=False` cannot be types of A and B."""


def dtype(name: str) -> DType:
    """Look up an element type by its name: `bf16`, or `bfloat16` as NumPy and PyTorch call it.

    Raises:
        VerifyError: `name` is not a string, or no type has that name.
    """
    if isinstance(name, str):
        if found := DTYPES.get(name):
            return found
        for found in DTYPES.values():
            if found.library == name:
                return found
    operands = ", ".join(d.name for d in DTYPES.values() if d.operand)
    others = " and ".join(d.name for d in DTYPES.values() if not d.operand)
    known = f"use {operands}, or {others} for offsets and sums of integers"
    if not isinstance(name, str):
        raise VerifyError(f"dtype = {name!r} is not the name of an element type; {known}")
    raise VerifyError(f"unknown dtype '{name}'; {known}")
