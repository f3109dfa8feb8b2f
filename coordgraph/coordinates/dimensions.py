"""Dimensions: the nodes of a coordinate graph.

A dimension is an immutable record. Its `id` is unique in its graph, and also names the symbol that
stands for the index along the dimension in expressions. Its `size` is an expression in the kernel's
parameters, or None if the size is unknown and not needed (a loop whose trip count varies). Names of
classes follow AMD's rocRoller: a *workgroup* is a CTA (thread block) of CUDA, a *workitem* is a
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
"""Every class of dimension by its name; subclassing `Dimension` registers a class."""


@dataclass(frozen=True)
class Dimension:
    """A node of the coordinate graph: something that has an index.

    Args:
        id: the name, unique in its graph, such as `A.tile.0`.
        size: the number of indices, an expression in the kernel's parameters, or None.
        note: an explanation for diagrams.

    Raises:
        VerifyError: the id is not text, or the size is not a non-negative integer expression.
    """

    id: str
    size: Expr | None = None
    note: str = ""

    hardware: ClassVar[bool] = False
    """Whether hardware provides the index (such as blockIdx), instead of a loop or an operation."""

    def __init_subclass__(cls) -> None:
        DIMENSIONS[cls.__name__] = cls

    def __post_init__(self) -> None:
        text(self.id, "the id of a dimension")
        if self.size is not None:
            size = integer(self.size, f"dimension '{self.id}': size", least=0)
            object.__setattr__(self, "size", size)

    @property
    def kind(self) -> str:
        """The name of the class, as the text form and diagrams show it."""
        return type(self).__name__

    @property
    def symbol(self) -> Symbol:
        """The symbol that stands for the index along this dimension in expressions."""
        return index_symbol(self.id)

    @property
    def details(self) -> dict[str, str | int]:
        """The fields that this class adds to `Dimension`, in order, without empty ones."""
        common = {f.name for f in fields(Dimension)}
        own = [f.name for f in fields(self) if f.name not in common]
        return {name: value for name in own if (value := getattr(self, name)) not in ("", None)}

    @property
    def label(self) -> str:
        """The text of the node in diagrams: class and fields, as in `MacroTileNumber(A; 0)`."""
        inside = "; ".join(str(value) for value in self.details.values())
        return f"{self.kind}({inside})" if inside else self.kind

    @property
    def fixed_size(self) -> int:
        """The size as a number; ValueError if the size is symbolic or None."""
        if not isinstance(self.size, Integer):
            raise ValueError(
                f"dimension '{self.id}' must have a number as its size, but it has {self.size}"
            )
        return int(self.size)


@dataclass(frozen=True)
class _OfTensor(Dimension):
    """Base of dimensions that belong to a tensor; `tensor` is its name."""

    tensor: str = ""


@dataclass(frozen=True)
class _OfTensorAxis(Dimension):
    """Base of dimensions along one axis of a tensor: its name, and the axis, 0 for rows."""

    tensor: str = ""
    axis: int | None = None


@dataclass(frozen=True)
class User(_OfTensor):
    """A tensor argument; its index is the offset in elements from the tensor's first element."""


@dataclass(frozen=True)
class SubDimension(_OfTensorAxis):
    """One axis of a tensor; its index is the position of an element along that axis."""


@dataclass(frozen=True)
class MacroTile(_OfTensor):
    """A whole macro tile of a tensor, as a single dimension."""


@dataclass(frozen=True)
class MacroTileNumber(_OfTensorAxis):
    """The number of a macro tile along one axis of a tensor.

    It is *dangling* (no edge leads to the machine) until a schedule ties it to workgroups or loops.
    """


@dataclass(frozen=True)
class MacroTileIndex(_OfTensorAxis):
    """The position of an element within a macro tile, along one axis of a tensor."""


@dataclass(frozen=True)
class Linear(Dimension):
    """An intermediate index, such as one that numbers all tiles, or a part of such an index."""


@dataclass(frozen=True)
class ForLoop(Dimension):
    """The index of a `For` loop in the control graph."""

    name: str = ""


@dataclass(frozen=True)
class Unroll(Dimension):
    """The index of a loop that code generation unrolls."""


@dataclass(frozen=True)
class Workgroup(Dimension):
    """The number of a workgroup (blockIdx.x in CUDA); its size is the number of workgroups.

    In a kernel with a `Cluster` dimension it numbers clusters instead.
    """

    hardware: ClassVar[bool] = True


@dataclass(frozen=True)
class Cluster(Dimension):
    """The rank of a workgroup in its cluster (%cluster_ctarank in PTX).

    Its size is the number of workgroups in a cluster. A `Workgroup` dimension in the same graph
    numbers clusters.
    """

    hardware: ClassVar[bool] = True


@dataclass(frozen=True)
class Warpgroup(Dimension):
    """The number of a warpgroup: four consecutive warps, which execute one `wgmma` together."""


@dataclass(frozen=True)
class Warp(Dimension):
    """The number of a warp in its workgroup, or the warp's position along one axis of the tile."""


@dataclass(frozen=True)
class WarpNumber(Dimension):
    """The number of a warp in its workgroup, as a value that is uniform across the warp's lanes."""

    hardware: ClassVar[bool] = True


@dataclass(frozen=True)
class Lane(Dimension):
    """The number of a thread in its warp, or the thread's position along one axis of a fragment."""


@dataclass(frozen=True)
class Workitem(Dimension):
    """The number of a thread in its workgroup (threadIdx.x in CUDA); its size is the block size."""

    hardware: ClassVar[bool] = True


@dataclass(frozen=True)
class Register(Dimension):
    """The number of a register in a fragment of one thread; its size is always a number."""


@dataclass(frozen=True)
class Shared(_OfTensor):
    """An allocation in the shared memory of a workgroup; its index counts elements.

    Args:
        tensor: the tensor whose tiles it holds, in that tensor's element type.
        element: the element type if it holds no tensor's tiles. Without a tensor and an element
            type it holds mbarriers.
        within: the id of another allocation whose memory it reuses; the two are never in use at
            the same time.
    """

    element: str = ""
    within: str = ""

    @property
    def barriers(self) -> bool:
        """Whether the allocation holds mbarriers."""
        return not self.tensor and not self.element


@dataclass(frozen=True)
class Stage(_OfTensor):
    """The number of a buffer (stage) of a software pipeline."""


@dataclass(frozen=True)
class Selector(Dimension):
    """The number of the segment that a `Sunder` edge selects."""


for _base in ("_OfTensor", "_OfTensorAxis"):
    DIMENSIONS.pop(_base)
