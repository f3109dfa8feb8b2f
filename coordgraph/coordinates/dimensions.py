"""Dimensions: the nodes of a coordinate graph.

A dimension is a frozen record. Its `id` is unique in its graph and names the symbol that stands for
"the index along this dimension" in every expression; its `size` is an expression over the kernel's
parameters, or None where nothing reads it (a loop whose trip count varies). Names follow AMD's
rocRoller; a *workgroup* is what CUDA calls a CTA or thread block, a *workitem* a thread.
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


@dataclass(frozen=True)
class Dimension:
    """A coordinate: `id` unique in its graph, `size` an expression or None."""

    id: str
    size: Expr | None = None
    note: str = ""

    hardware: ClassVar[bool] = False
    """True where the machine, not the control graph, gives the value."""

    def __init_subclass__(cls) -> None:
        DIMENSIONS[cls.__name__] = cls

    def __post_init__(self) -> None:
        text(self.id, "the id of a dimension")
        if self.size is not None:
            size = integer(self.size, f"dimension '{self.id}': size", least=0)
            object.__setattr__(self, "size", size)

    @property
    def kind(self) -> str:
        """The class name, as the text form and the pictures show it."""
        return type(self).__name__

    @property
    def symbol(self) -> Symbol:
        """The symbol of this dimension's index."""
        return index_symbol(self.id)

    @property
    def details(self) -> dict[str, str | int]:
        """The fields that only this kind has, in order."""
        common = {f.name for f in fields(Dimension)}
        own = [f.name for f in fields(self) if f.name not in common]
        return {name: value for name in own if (value := getattr(self, name)) not in ("", None)}

    @property
    def label(self) -> str:
        """How pictures name a node: `MacroTileNumber(A; 0)`."""
        inside = "; ".join(str(value) for value in self.details.values())
        return f"{self.kind}({inside})" if inside else self.kind

    @property
    def fixed_size(self) -> int:
        """The size as a number; ValueError where it is symbolic or absent."""
        if not isinstance(self.size, Integer):
            raise ValueError(f"dimension '{self.id}' has no fixed size, but {self.size}")
        return int(self.size)


@dataclass(frozen=True)
class _OfTensor(Dimension):
    tensor: str = ""


@dataclass(frozen=True)
class _OfTensorAxis(Dimension):
    tensor: str = ""
    axis: int | None = None


@dataclass(frozen=True)
class User(_OfTensor):
    """A tensor argument; its index is an element offset from the tensor's first element."""


@dataclass(frozen=True)
class SubDimension(_OfTensorAxis):
    """One axis of a tensor, in elements."""


@dataclass(frozen=True)
class MacroTile(_OfTensor):
    """One whole tile of a tensor."""


@dataclass(frozen=True)
class MacroTileNumber(_OfTensorAxis):
    """Which tile along an axis; *dangling* (no edge below it) until a schedule ties it."""


@dataclass(frozen=True)
class MacroTileIndex(_OfTensorAxis):
    """The element inside a tile along an axis."""


@dataclass(frozen=True)
class Linear(Dimension):
    """An index with no meaning of its own: a flattened space or a part of one."""


@dataclass(frozen=True)
class ForLoop(Dimension):
    """The index of a loop of the control graph."""

    name: str = ""


@dataclass(frozen=True)
class Unroll(Dimension):
    """The index of a loop that code generation writes out."""


@dataclass(frozen=True)
class Workgroup(Dimension):
    """The workgroup's number (CUDA: blockIdx.x); its size is the grid."""

    hardware: ClassVar[bool] = True


@dataclass(frozen=True)
class Cluster(Dimension):
    """A workgroup's rank in its cluster (CUDA: %cluster_ctarank); its size is the cluster.

    Where there is one, `Workgroup` counts clusters.
    """

    hardware: ClassVar[bool] = True


@dataclass(frozen=True)
class Warpgroup(Dimension):
    """Four consecutive warps, the unit of Hopper's matrix instructions."""


@dataclass(frozen=True)
class Warp(Dimension):
    """A warp of a workgroup, or its place along one axis of the tile."""


@dataclass(frozen=True)
class WarpNumber(Dimension):
    """The warp's number in its workgroup, which the machine knows to be one for all its lanes."""

    hardware: ClassVar[bool] = True


@dataclass(frozen=True)
class Lane(Dimension):
    """A thread of a warp, or its place along one axis of a fragment."""


@dataclass(frozen=True)
class Workitem(Dimension):
    """A thread of a workgroup (CUDA: threadIdx.x); its size is the block."""

    hardware: ClassVar[bool] = True


@dataclass(frozen=True)
class Register(Dimension):
    """Which register of a thread holds a value; always a fixed size."""


@dataclass(frozen=True)
class Shared(_OfTensor):
    """A workgroup's on-chip memory: a tensor's tiles, in its elements; else values of `element`.

    What has neither holds barriers. `within` names another such memory whose place it shares: the
    two are never in use at the same time.
    """

    element: str = ""
    within: str = ""

    @property
    def barriers(self) -> bool:
        """True where it holds barriers."""
        return not self.tensor and not self.element


@dataclass(frozen=True)
class Stage(_OfTensor):
    """Which of the buffers of a software pipeline."""


@dataclass(frozen=True)
class Selector(Dimension):
    """Which segment of a `Sunder`."""


for _base in ("_OfTensor", "_OfTensorAxis"):
    DIMENSIONS.pop(_base)
