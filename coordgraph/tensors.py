"""Tensor arguments and their element types."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from sympy import Expr, Integer

from coordgraph.errors import VerifyError

__all__ = ["DTYPES", "DType", "Role", "Tensor", "dtype"]


@dataclass(frozen=True)
class DType:
    """An element type: `bits` wide; sums of products of it are kept in `accumulator`."""

    name: str
    bits: int
    accumulator: str

    @property
    def bytes(self) -> int:
        """Size of an element."""
        return self.bits // 8

    def __str__(self) -> str:
        return self.name


DTYPES = {
    d.name: d
    for d in (
        DType("bf16", 16, "f32"),
        DType("f16", 16, "f32"),
        DType("f32", 32, "f32"),
        DType("f64", 64, "f64"),
        DType("i32", 32, "i32"),
    )
}
_ALIASES = {
    "int32": "i32",
    "bfloat16": "bf16",
    "float16": "f16",
    "float32": "f32",
    "float64": "f64",
}


def dtype(name: str) -> DType:
    """A type by name (`bf16`) or by numpy's name for it (`bfloat16`).

    Raises:
        VerifyError: it is no name, or none of a type that there is.
    """
    known = f"there are {', '.join(n for n in DTYPES if n != 'i32')}, and i32 for offsets"
    if not isinstance(name, str):
        raise VerifyError(f"dtype = {name!r} is not the name of a type; {known}")
    found = DTYPES.get(_ALIASES.get(name, name))
    if found is None:
        raise VerifyError(f"unknown dtype '{name}'; {known}")
    return found


class Role(Enum):
    """What a tensor is to the kernel."""

    INPUT = "input"
    OPTIONAL_INPUT = "optional"
    OUTPUT = "output"
    PARTIALS = "partials"
    """Workspace for accumulators on their way between workgroups; needs no initial value."""
    MAPS = "maps"
    """Workspace for what a copy engine is told of matrices; needs no initial value."""
    TABLE = "table"
    """Rising whole numbers that index expressions read; see `coordgraph.tables`."""
    FLAGS = "flags"
    """Workspace that must be zero at launch and is zero again when the kernel ends."""
    SUMS = "sums"
    """Workspace that partials are added to: zero at launch and again when the kernel ends."""

    @property
    def workspace(self) -> bool:
        """The kernel's own memory, which no caller gives."""
        return self in (Role.PARTIALS, Role.MAPS, Role.FLAGS, Role.SUMS)

    @property
    def zeroed(self) -> bool:
        """Zero before every launch and after it."""
        return self in (Role.FLAGS, Role.SUMS)


@dataclass(frozen=True)
class Tensor:
    """A tensor argument; `shape` in elements, as the caller sees it.

    It is contiguous row-major, but where `strides` (in elements) say otherwise.
    """

    name: str
    dtype: str
    shape: tuple[Expr, ...]
    role: Role = Role.INPUT
    strides: tuple[Expr, ...] | None = None

    @property
    def elements(self) -> Expr:
        """How many elements there are from the first to the last."""
        if self.strides is not None:
            last: Expr = Integer(0)
            for extent, stride in zip(self.shape, self.strides, strict=True):
                last = last + (extent - 1) * stride
            return last + 1
        count: Expr = Integer(1)
        for extent in self.shape:
            count = count * extent
        return count
