"""Dimensions: the nodes of a coordinate graph.

A dimension is an immutable record. The dimension's `id` is unique in its graph; the symbol for the
index along the dimension has the id as its name. The dimension's `size` is an expression in the
kernel's parameters, or None if the size is unknown and not needed (a loop whose trip count varies).
Class names follow AMD's rocRoller: a *workgroup* is a CTA (thread block) of CUDA, a *workitem* is a
thread.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import ClassVar

from sympy import Expr, Integer, Symbol

from coordgraph.integers import index_symbol
from coordgraph.validation import integer, text

__all__ = [
    "DIMENSIONS",
    "Cluster",
    "Dimension",
    "ForLoop",
    "Lane",
    "Linear",
    "MacroTile",
    "MacroTileIndex",
    "MacroTileNumber",
    "Register",
    "Selector",
    "Shared",
    "Stage",
    "SubDimension",
    "Unroll",
    "User",
    "Warp",
    "WarpNumber",
    "Warpgroup",
    "Workgroup",
    "Workitem",
]

DIMENSIONS: dict[str, type[Dimension]] = {}
"""Every class of dimension by class name; subclassing `Dimension` registers the subclass."""


@dataclass(frozen=True)
class Dimension:
    """A node of the coordinate graph: an axis along which an index counts.

    Args:
        id: the dimension's name, unique in the graph, such as `A.tile.0`.
        size: the number of indices, an expression in the kernel's parameters; None if it is
            unknown.
        note: an explanation of the dimension, shown in diagrams.

    Raises:
        VerifyError: the id is not text, or the size is not a non-negative integer expression.
    """

    id: str
    size: Expr | None = None
    note: str = ""

    hardware: ClassVar[bool] = False
    """Whether hardware provides the index along the dimension, such as blockIdx; otherwise a loop
    or an operation does."""

    def __init_subclass__(cls) -> None:
        DIMENSIONS[cls.__name__] = cls

    def __post_init__(self) -> None:
        text(self.id, "the id of a dimension")
        if self.size is not None:
            size = integer(self.size, f"dimension '{self.id}': size", least=0)
            object.__setattr__(self, "size", size)

    @property
    def kind(self) -> str:
        """The name of the dimension's class, as the text form and diagrams show it."""
        return type(self).__name__

    @property
    def symbol(self) -> Symbol:
        """The symbol that stands for the index along this dimension in expressions."""
        return index_symbol(self.id)

    @property
    def details(self) -> dict[str, str | int]:
        """The fields that the class adds to `Dimension`, by name, without empty fields."""
        common = {f.name for f in fields(Dimension)}
        own = [f.name for f in fields(self) if f.name not in common]
        return {name: value for name in own if (value := getattr(self, name)) not in ("", None)}

    @property
    def label(self) -> str:
        """The text of the dimension in diagrams: class and fields, as `MacroTileNumber(A; 0)`."""
        inside = "; ".join(str(value) for value in self.details.values())
        return f"{self.kind}({inside})" if inside else self.kind

    @property
    def fixed_size(self) -> int:
        """The dimension's size as a number.

        Raises:
            ValueError: the size is symbolic or None.
        """
        if not isinstance(self.size, Integer):
            raise ValueError(
                f"dimension '{self.id}' has the size {self.size}, which is not a number; give it a "
                "number as its size"
            )
        return int(self.size)


@dataclass(frozen=True)
class _OfTensor(Dimension):
    """Base class of dimensions that belong to the tensor named `tensor`."""

    tensor: str = ""


@dataclass(frozen=True)
class _OfTensorAxis(Dimension):
    """Base class of dimensions along axis `axis` of the tensor `tensor`; axis 0 counts rows."""

    tensor: str = ""
    axis: int | None = None


@dataclass(frozen=True)
class User(_OfTensor):
    """A tensor argument of the kernel; its index is an element's offset from the first element.

    The offset is counted in elements.
    """


@dataclass(frozen=True)
class SubDimension(_OfTensorAxis):
    """One axis of a tensor; its index is the position of an element along that axis."""


@dataclass(frozen=True)
class MacroTile(_OfTensor):
    """A whole macro tile of a tensor as one dimension; its index numbers the tile's elements."""


@dataclass(frozen=True)
class MacroTileNumber(_OfTensorAxis):
    """The number of a macro tile along one axis of a tensor.

    The dimension is *dangling* as long as it is no upstream operand of an edge. Schedules add
    edges below it, on the way to workgroups and loops.
    """


@dataclass(frozen=True)
class MacroTileIndex(_OfTensorAxis):
    """The position of an element within a macro tile, along one axis of a tensor."""


@dataclass(frozen=True)
class Linear(Dimension):
    """An intermediate index, such as the number of a tile among all tiles of a matrix."""


@dataclass(frozen=True)
class ForLoop(Dimension):
    """The index of a `For` loop of the control graph."""

    name: str = ""


@dataclass(frozen=True)
class Unroll(Dimension):
    """The index of a loop that code generation unrolls."""


@dataclass(frozen=True)
class Workgroup(Dimension):
    """The number of a workgroup (blockIdx.x in CUDA); the size is the number of workgroups.

    In a kernel with a `Cluster` dimension, the index is the number of a cluster instead.
    """

    hardware: ClassVar[bool] = True


@dataclass(frozen=True)
class Cluster(Dimension):
    """The rank of a workgroup in its cluster (%cluster_ctarank in PTX).

    The size is the number of workgroups in a cluster. A `Workgroup` dimension in the same graph
    numbers clusters.
    """

    hardware: ClassVar[bool] = True


@dataclass(frozen=True)
class Warpgroup(Dimension):
    """The number of a warpgroup: four consecutive warps, which execute one `wgmma` together."""


@dataclass(frozen=True)
class Warp(Dimension):
    """The number of a warp in its workgroup, or the warp's position along one axis of a tile."""


@dataclass(frozen=True)
class WarpNumber(Dimension):
    """The number of a warp in its workgroup, as a value that is uniform in the warp.

    The compiler can prove that all lanes of the warp have the same value.
    """

    hardware: ClassVar[bool] = True


@dataclass(frozen=True)
class Lane(Dimension):
    """The number of a thread in its warp, or the thread's position along one axis of a fragment."""


@dataclass(frozen=True)
class Workitem(Dimension):
    """The number of a thread in its workgroup (threadIdx.x in CUDA); the size is the block size."""

    hardware: ClassVar[bool] = True


@dataclass(frozen=True)
class Register(Dimension):
    """The number of a register in one thread's fragment of a tile; `size` is a constant."""


@dataclass(frozen=True)
class Shared(_OfTensor):
    """An allocation in the shared memory of a workgroup; the index is an offset in elements.

    Args:
        tensor: the name of the tensor whose tiles the allocation holds, in that tensor's element
            type.
        element: the element type if the allocation holds no tensor's tiles. An allocation without a
            tensor and without an element type holds mbarriers.
        within: the id of another allocation whose memory this allocation reuses; the two
            allocations are never in use at the same time. '' if it reuses none.
    """

    element: str = ""
    within: str = ""

    @property
    def barriers(self) -> bool:
        """Whether the shared-memory allocation holds mbarriers."""
        return not self.tensor and not self.element


@dataclass(frozen=True)
class Stage(_OfTensor):
    """The number of a stage (a buffer in shared memory) of a software pipeline."""


@dataclass(frozen=True)
class Selector(Dimension):
    """The selector of a `Sunder` edge, which divides an index into parts.

    The index along this dimension is the number of the part that is used.
    """


for _base in ("_OfTensor", "_OfTensorAxis"):
    DIMENSIONS.pop(_base)
