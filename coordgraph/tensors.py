"""Tensor arguments: what each is to the kernel, its element type and its shape."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from sympy import Expr, Integer

from coordgraph.elements import DTYPES, DType, dtype

__all__ = ["DTYPES", "DType", "Role", "Tensor", "dtype"]


class Role(Enum):
    """What a tensor is to the kernel."""

    INPUT = "input"
    OPTIONAL_INPUT = "optional"
    """An operand of the epilogue that a call may leave out."""
    OPERAND = "operand"
    """An operand of the epilogue that every call gives."""
    OUTPUT = "output"
    PARTIALS = "partials"
    """Workspace for accumulators on their way between workgroups; needs no initial value."""
    MAPS = "maps"
    """Workspace for what TMA is told of matrices; needs no initial value."""
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
    def finishes(self) -> bool:
        """An operand of the epilogue."""
        return self in (Role.OPTIONAL_INPUT, Role.OPERAND)

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
