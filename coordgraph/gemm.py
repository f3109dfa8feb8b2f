"""The front end: `D = alpha·A@B + beta·C` as a graph that schedules can start from."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from operator import index
from typing import TYPE_CHECKING

from coordgraph.errors import VerifyError
from coordgraph.given import flag, whole
from coordgraph.parameters import LARGEST_INDEX, LARGEST_SIZE, Parameter, Parameters
from coordgraph.tensors import dtype

if TYPE_CHECKING:
    from coordgraph.kernel import KernelGraph

__all__ = [
    "AXES",
    "GROUP_AXES",
    "MOST_GROUPS",
    "MOST_TOGETHER",
    "OFFSETS",
    "OFFSETS_OF",
    "ROW_STEP",
    "TENSORS",
    "Gemm",
    "elements_of",
    "stride_of",
]

MOST_GROUPS = 511
"""What a GPU's shared memory has room for beside tiles and D's slots: tables have one entry more.

On Hopper four stages of 128 x 256 x 64 and two slots for each warpgroup leave 3 KiB."""
MOST_TOGETHER = 2**30
"""Rows (or k) of all groups: half of what an index holds, since a group's last tile may reach
over."""
LARGEST_STRIDE = 2**40
"""Elements from one matrix of a batch to the next: what the copy engine of a GPU takes."""
MOST_PROBLEMS = 64
"""The same of groups that share no extent, which have eight tables."""
ROW_STEP = 8
"""Elements: where groups share no extent, rows of their matrices begin at multiples of it."""
OFFSETS = "offsets"
"""Where groups begin along the axis that they part, and where the last one ends: a table, or of
groups that share no extent three."""
AXES = ("m", "n", "k")
OFFSETS_OF = {axis: f"{axis}_{OFFSETS}" for axis in AXES}
"""These three: rows of the array that a call is given."""
TENSORS = {"A": "mk", "B": "kn", "C": "mn", "D": "mn"}
"""The axes of each."""
GROUP_AXES = ("m", "k", "mnk")
"""The axes that groups may part."""


@dataclass(frozen=True)
class Gemm:
    """`D = alpha·A@B + beta·C` with A of m x k, B of k x n, C and D of m x n, all row-major.

    Args:
        dtype: of A and B: bf16, f16, f32 or f64; products are summed in f32 (f64 for f64).
        out_dtype: of C and D; by default `dtype`.
        m, n, k: numbers to specialise the kernel on, or None for launch arguments.
        transpose_a: A is given as its transpose, a row-major k x m tensor.
        transpose_b: B is given as its transpose, a row-major n x k tensor.
        batched: many products of one shape: A is l x m x k, B l x k x n, C and D l x m x n. Every
            matrix is contiguous; from one to the next there may be any stride, also 0 where A, B
            or C has only one matrix for all.
        grouped: products that share k and n, but not m: rows `offsets[g] .. offsets[g + 1] - 1` of
            D are those rows of A (m x k, the rows of all groups) times B[g] (B is g x k x n).
            `offsets` are whole numbers (i32) on the device, rising, at most m (or k). Rows of D
            that belong to no group are not written.
        group_axis: which axis groups part: `m`, or `k`, as gradients of weights need it. Then they
            share m and n, and D[g] (D and C are g x m x n) is the product of columns
            `offsets[g] .. offsets[g + 1] - 1` of A (m x k, the columns of all groups) and those
            rows of B (k x n). A group without any makes zeros. Or `mnk`: a list of products that
            share nothing. A, B, C and D are vectors with the matrices of all groups one after
            another, row-major, each row beginning at a multiple of `ROW_STEP` elements: what fills
            a row up is not read, and in D it may be overwritten. `offsets` (3 x (g + 1)) says for
            m, n and k where groups begin: group g has `offsets[0, g + 1] - offsets[0, g]` rows of
            A, and so on.
    """

    dtype: str = "bf16"
    out_dtype: str | None = None
    m: int | None = None
    n: int | None = None
    k: int | None = None
    transpose_a: bool = False
    transpose_b: bool = False
    batched: bool = False
    grouped: bool = False
    group_axis: str = "m"

    def __post_init__(self) -> None:
        object.__setattr__(self, "dtype", dtype(self.dtype).name)
        out = self.dtype if self.out_dtype is None else self.out_dtype
        object.__setattr__(self, "out_dtype", dtype(out).name)
        for name in ("dtype", "out_dtype"):
            if getattr(self, name) == "i32":
                raise VerifyError(f"Gemm: {name} must be a floating-point type")
        for name in ("m", "n", "k"):
            if getattr(self, name) is None:
                continue
            extent, most = whole(getattr(self, name), f"Gemm: {name}"), self._largest(name)
            if not 1 <= extent <= most:
                raise VerifyError(f"Gemm: {name} = {extent} must be in 1..{most}")
            object.__setattr__(self, name, extent)
        for name in ("transpose_a", "transpose_b", "batched", "grouped"):
            object.__setattr__(self, name, flag(getattr(self, name), f"Gemm: {name}"))
        if self.batched and self.grouped:
            raise VerifyError("Gemm: products are batched or grouped, not both")
        if self.group_axis not in GROUP_AXES:
            *first, last = GROUP_AXES
            known = f"{', '.join(first)} or {last}"
            raise VerifyError(f"Gemm: group_axis={self.group_axis!r} should be {known}")
        if self.group_axis != "m" and not self.grouped:
            raise VerifyError(f"Gemm: group_axis={self.group_axis} belongs to grouped=True")
        if self.ragged("m") and self.transpose_a and not self.diagonal:
            raise VerifyError("Gemm: groups are rows of A, so A cannot be given as its transpose")
        if self.diagonal and (fixed := [x for x in "mnk" if getattr(self, x) is not None]):
            raise VerifyError(
                f"Gemm: {', '.join(fixed)}: groups that part {self.group_axis} have extents of "
                "their own, which offsets say"
            )

    def ragged(self, axis: str) -> bool:
        """Whether groups part the axis `m`, `n` or `k`: how long it is in each is data."""
        return self.grouped and axis in self.group_axis

    @property
    def diagonal(self) -> bool:
        """Whether groups share no extent: all tensors are block-diagonal matrices, so to speak."""
        return self.grouped and self.group_axis == "mnk"

    def offsets(self, axis: str) -> str:
        """The table of where groups begin along an axis that they part, and of the end."""
        return OFFSETS_OF[axis] if self.diagonal else OFFSETS

    def tile_starts(self, axis: str) -> str:
        """The table of how many tiles along such an axis the groups before have."""
        return f"{axis}_tile_starts" if self.diagonal else "tile_starts"

    def _largest(self, axis: str) -> int:
        return MOST_TOGETHER if self.ragged(axis) else LARGEST_SIZE

    @property
    def most_groups(self) -> int:
        """How many groups there may be."""
        return MOST_PROBLEMS if self.diagonal else MOST_GROUPS

    @property
    def leading(self) -> str:
        """What tells apart the matrices of B: the dimension `batch` or `group`, or '' for one."""
        return "batch" if self.batched else "group" if self.grouped else ""

    @property
    def batched_tensors(self) -> str:
        """The tensors that have a matrix for every index along the leading dimension."""
        if self.batched:
            return "ABCD"
        return "".join(
            t for t in TENSORS if self.grouped and not set(self.group_axis) & {*TENSORS[t]}
        )

    @property
    def accumulator(self) -> str:
        """The type in which products are summed, and of alpha and beta."""
        return dtype(self.dtype).accumulator

    def graph(self, tile: tuple[int, int, int] = (128, 128, 32)) -> KernelGraph:
        """The precondition of every schedule: tiled tensors, dangling tile numbers, a K loop.

        Args:
            tile: elements of a macro tile in m, n and k, each a positive number.
        """
        from coordgraph.kernel import KernelGraph
        from coordgraph.problem import build

        tile = _three(tile)
        given = [
            Parameter(name, 1, self._largest(name), note=f"extent of the problem in {name}")
            for name in ("m", "n", "k")
            if getattr(self, name) is None and not self.diagonal
        ]
        if self.diagonal:
            given += (
                Parameter(elements_of(name), 1, LARGEST_INDEX, note=f"elements of {name}")
                for name in "ABD"
            )
        if self.batched:
            given.append(Parameter("batches", 1, LARGEST_SIZE, note="products"))
            given += (
                Parameter(stride_of(name), 0, LARGEST_STRIDE, note=f"from one matrix of {name} on")
                for name in self.batched_tensors
            )
        if self.grouped:
            given.append(
                Parameter("groups", 1, self.most_groups, note=f"groups along {self.group_axis}")
            )
        read_c = Parameter("read_c", 0, 1, note="1 where C is given and beta is not zero")
        with KernelGraph(self, parameters=Parameters((*given, read_c))).edit() as e:
            build(self, e, tile)
        return e.graph


def _three(tile: Iterable[int]) -> tuple[int, int, int]:
    """The extents of a tile."""
    try:
        m, n, k = map(index, tile)
        if min(m, n, k) > 0:
            return m, n, k
    except (TypeError, ValueError):
        pass
    raise VerifyError(f"Gemm: tile {tile!r} must be three positive numbers (m, n, k)")


def stride_of(tensor: str) -> str:
    """The parameter that says how far one matrix of a batch is from the next, in elements."""
    return f"stride_{tensor.lower()}"


def elements_of(tensor: str) -> str:
    """The parameter that says how many elements a vector of matrices has; C's are D's."""
    return f"elements_{'d' if tensor == 'C' else tensor.lower()}"
