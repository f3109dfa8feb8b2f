"""The tensors of a kernel: arguments and workspaces, with element type, shape and role."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from sympy import Expr, Integer

from coordgraph.elements import DTYPES, DType, dtype

__all__ = ["DTYPES", "DType", "Role", "Tensor", "dtype", "tensors_in_order"]


class Role(Enum):
    """What the kernel uses a tensor for."""

    INPUT = "input"
    """An operand of the matrix product: A or B."""
    OPTIONAL_INPUT = "optional"
    """A tensor operand of the epilogue that a kernel call may omit."""
    OPERAND = "operand"
    """A tensor operand of the epilogue that every kernel call must give."""
    OUTPUT = "output"
    """The result D, or another output of the epilogue."""
    PARTIALS = "partials"
    """Workspace through which workgroups pass partial sums; it needs no initial value."""
    MAPS = "maps"
    """Workspace for TMA descriptors (tensor maps), which the kernel itself writes before use."""
    TABLE = "table"
    """Table of integers that index expressions read, given by the caller; see
    `coordgraph.tables`."""
    FLAGS = "flags"
    """Workspace for synchronisation flags, which are zero at launch and when the kernel ends."""
    SUMS = "sums"
    """Workspace into which workgroups add partial sums atomically; zero at launch and at the
    end."""
    COUNTERS = "counters"
    """Workspace for the counters from which workgroups take indices of dynamic loops; they are zero
    at launch and when the kernel ends."""
    TIMELINE = "timeline"
    """Workspace for the time stamps that a kernel compiled with `timeline=True` writes."""

    @property
    def workspace(self) -> bool:
        """Whether the tensor is scratch memory of the kernel, which the caller does not give."""
        return self in WORKSPACES

    @property
    def finishes(self) -> bool:
        """Whether the tensor is an operand of the epilogue."""
        return self in (Role.OPTIONAL_INPUT, Role.OPERAND)

    @property
    def zeroed(self) -> bool:
        """Whether the tensor must be zero before a launch and is zero again after the launch."""
        return self in (Role.FLAGS, Role.SUMS, Role.COUNTERS)


@dataclass(frozen=True)
class Tensor:
    """A tensor in device memory that a kernel reads or writes.

    Args:
        name: the name of the tensor, such as `A`.
        dtype: the name of the element type, such as `bf16`.
        shape: the extents of the array that the caller passes, in elements.
        role: what the kernel uses the tensor for.
        strides: the strides of the axes in elements; None for a contiguous row-major tensor.
    """

    name: str
    dtype: str
    shape: tuple[Expr, ...]
    role: Role = Role.INPUT
    strides: tuple[Expr, ...] | None = None

    @property
    def elements(self) -> Expr:
        """The number of elements from the tensor's first to its last in memory, gaps included."""
        if self.strides is not None:
            last: Expr = Integer(0)
            for extent, stride in zip(self.shape, self.strides, strict=True):
                last = last + (extent - 1) * stride
            return last + 1
        count: Expr = Integer(1)
        for extent in self.shape:
            count = count * extent
        return count


WORKSPACES = (
    Role.PARTIALS,
    Role.SUMS,
    Role.FLAGS,
    Role.COUNTERS,
    Role.MAPS,
    Role.TIMELINE,
)
"""The roles of workspaces in the order in which a kernel takes them as arguments."""


def tensors_in_order(tensors: Sequence[Tensor], names: Sequence[str]) -> tuple[Tensor, ...]:
    """Sort the tensors of a kernel, so that the order in which they are declared does not matter.

    The problem's tensors come first, then workspaces by role and name, then all other tensors.

    Args:
        tensors: the tensors in any order.
        names: the names of the problem's tensors in order: A, B, operands of the epilogue, D, other
            outputs, and tables.
    """
    places = {name: place for place, name in enumerate(names)}

    def rank(tensor: Tensor) -> tuple[int, int, str]:
        if tensor.name in places:
            return 0, places[tensor.name], ""
        if tensor.role in WORKSPACES:
            return 1, WORKSPACES.index(tensor.role), tensor.name
        return 2, 0, tensor.name

    return tuple(sorted(tensors, key=rank))
