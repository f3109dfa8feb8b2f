"""The front end: `D = alpha·A@B + beta·C` as a graph that schedules can start from."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from operator import index
from typing import TYPE_CHECKING

from sympy import Expr, Integer

from coordgraph.control.operations import (
    Epilogue,
    For,
    InitAccumulator,
    LoadTile,
    Locate,
    MultiplyAccumulate,
    StoreTile,
)
from coordgraph.coordinates.dimensions import (
    ForLoop,
    Linear,
    MacroTileIndex,
    MacroTileNumber,
    SubDimension,
    User,
)
from coordgraph.coordinates.edges import Concatenate, PassThrough, Ragged, Split, Tile
from coordgraph.errors import VerifyError
from coordgraph.given import flag, whole
from coordgraph.integers import ceil_div, floor_div, index_symbol, load, maximum
from coordgraph.parameters import LARGEST_SIZE, Parameter, Parameters
from coordgraph.tables import Table, place_of
from coordgraph.tensors import Role, Tensor, dtype

if TYPE_CHECKING:
    from coordgraph.kernel import KernelEditor, KernelGraph

__all__ = ["MOST_GROUPS", "OFFSETS", "Gemm", "stride_of"]

MOST_GROUPS = 511
"""What a GPU's shared memory has room for beside tiles and D's slots: tables have one entry more.

On Hopper four stages of 128 x 256 x 64 and two slots for each warpgroup leave 3 KiB."""
MOST_TOGETHER = 2**30
"""Rows (or k) of all groups: half of what an index holds, since a group's last tile may reach
over."""
LARGEST_STRIDE = 2**40
"""Elements from one matrix of a batch to the next: what the copy engine of a GPU takes."""
OFFSETS = "offsets"
"""The table of where groups begin along the axis that they part, and where the last one ends."""
TILE_STARTS = "tile_starts"
"""The table of how many tiles along the axis of groups the groups before have."""
TENSORS = {"A": "mk", "B": "kn", "C": "mn", "D": "mn"}
"""The axes of each."""
GROUP_AXES = "mk"
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
            rows of B (k x n). A group without any makes zeros.
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
        if self.group_axis not in tuple(GROUP_AXES):
            known = " or ".join(GROUP_AXES)
            raise VerifyError(f"Gemm: group_axis={self.group_axis!r} should be {known}")
        if self.group_axis != "m" and not self.grouped:
            raise VerifyError(f"Gemm: group_axis={self.group_axis} belongs to grouped=True")
        if self.ragged("m") and self.transpose_a:
            raise VerifyError("Gemm: groups are rows of A, so A cannot be given as its transpose")

    def ragged(self, axis: str) -> bool:
        """Whether groups part the axis `m`, `n` or `k`: how long it is in each is data."""
        return self.grouped and self.group_axis == axis

    def _largest(self, axis: str) -> int:
        return MOST_TOGETHER if self.ragged(axis) else LARGEST_SIZE

    @property
    def leading(self) -> str:
        """What tells apart the matrices of B: the dimension `batch` or `group`, or '' for one."""
        return "batch" if self.batched else "group" if self.grouped else ""

    @property
    def batched_tensors(self) -> str:
        """The tensors that have a matrix for every index along the leading dimension."""
        if self.batched:
            return "ABCD"
        return "".join(t for t in TENSORS if self.grouped and self.group_axis not in TENSORS[t])

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

        tile = _three(tile)
        given = [
            Parameter(name, 1, self._largest(name), note=f"extent of the problem in {name}")
            for name in ("m", "n", "k")
            if getattr(self, name) is None
        ]
        if self.batched:
            given.append(Parameter("batches", 1, LARGEST_SIZE, note="products"))
            given += (
                Parameter(stride_of(name), 0, LARGEST_STRIDE, note=f"from one matrix of {name} on")
                for name in self.batched_tensors
            )
        if self.grouped:
            given.append(
                Parameter("groups", 1, MOST_GROUPS, note=f"groups along {self.group_axis}")
            )
        read_c = Parameter("read_c", 0, 1, note="1 where C is given and beta is not zero")
        with KernelGraph(self, parameters=Parameters((*given, read_c))).edit() as e:
            _build(self, e, tile)
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


def _build(gemm: Gemm, e: KernelEditor, tile: tuple[int, int, int]) -> None:
    extents: dict[str, Expr] = {
        axis: e.parameters[axis].symbol if axis in e.parameters else Integer(getattr(gemm, axis))
        for axis in "mnk"
    }
    tiles = dict(zip("mnk", tile, strict=True))
    counts = {
        axis: _tiles_of_groups(gemm, e, extents[axis], tiles[axis])
        if gemm.ragged(axis)
        else e.parameter(
            f"tiles_{axis}",
            ceil_div(extents[axis], Integer(tiles[axis])),
            note=f"macro tiles in {axis}",
        )
        for axis in "mnk"
    }
    total = counts["m"] * counts["n"] * counts["k"]
    if gemm.batched:
        batches = e.parameters["batches"].symbol
        total *= batches
        e.coordinates.add(MacroTileNumber("batch", batches, note="which product"))
    if gemm.grouped:
        # Rows of groups follow one another; so their tiles do, and say which group they are of.
        kind = Linear if gemm.ragged("m") else MacroTileNumber
        groups = e.parameters["groups"].symbol
        e.coordinates.add(kind("group", groups, note="which product"))
        if not gemm.ragged("m"):  # k tiles are counted of all groups, output tiles of each
            e.assume(groups * counts["m"] * counts["n"])
    e.assume(total)
    for name, role, transposed in (
        ("A", Role.INPUT, gemm.transpose_a),
        ("B", Role.INPUT, gemm.transpose_b),
        ("C", Role.OPTIONAL_INPUT, False),
        ("D", Role.OUTPUT, False),
    ):
        axes = TENSORS[name]
        _tensor(gemm, e, name, [extents[axis] for axis in axes], role, transposed)
        for i, axis in enumerate(axes):
            number, inside = f"{name}.tile.{i}", f"{name}.index.{i}"
            whole, count = f"{name}.{i}", counts[axis]
            if gemm.ragged(axis):
                # Tiles of one group: how many they are is data.
                whole, count = f"{name}.{INSIDE[axis]}", None
                e.coordinates.add(Linear(whole, note=f"{INSIDE[axis]} in the group"))
                e.coordinates.connect(Ragged(f"{name}.{i}", ("group", whole), OFFSETS))
            e.coordinates.add(MacroTileNumber(number, count, tensor=name, axis=i))
            e.coordinates.add(MacroTileIndex(inside, Integer(tiles[axis]), tensor=name, axis=i))
            e.coordinates.connect(Tile((whole,), (number, inside)))
    e.tensors += tuple(
        Tensor(table.name, "i32", (table.length,), Role.TABLE)
        for table in e.parameters.tables
        if not table.derived
    )
    e.coordinates.add(ForLoop("k_tile", None if gemm.ragged("k") else counts["k"], name="K"))
    e.coordinates.connect(PassThrough(("A.tile.1",), ("k_tile",)))
    e.coordinates.connect(PassThrough(("B.tile.0",), ("k_tile",)))
    for name in ("C", "D"):
        e.coordinates.connect(PassThrough((f"{name}.tile.0",), ("A.tile.0",)))
        e.coordinates.connect(PassThrough((f"{name}.tile.1",), ("B.tile.1",)))
    if gemm.ragged("m"):
        e.coordinates.add(MacroTileNumber("row_tile", counts["m"], note="tiles of all groups"))
        e.coordinates.connect(Concatenate(("group", "A.tile.0"), "row_tile", TILE_STARTS))
    if gemm.ragged("k"):
        # What schedules may ask: how the k tiles of groups follow one another.
        e.coordinates.add(Linear("k_step", counts["k"], note="k tiles of all groups"))
        e.coordinates.connect(Ragged("k_step", ("group", "k_tile"), TILE_STARTS))
    _control(gemm, e, counts["k"])


INSIDE = {"m": "row", "k": "depth"}
"""What an index along an axis is called in a group."""


def _tiles_of_groups(gemm: Gemm, e: KernelEditor, extent: Expr, tile: int) -> Expr:
    """Tables of groups, and the number of their tiles along the axis that they part."""
    groups, axis = e.parameters["groups"].symbol, gemm.group_axis
    # A group without k has one tile of padding, so that its zeros are written.
    least = 1 if axis == "k" else 0
    note = f"where groups begin along {axis}, and the end"
    e.table(Table(OFFSETS, groups + 1, extent, note=note))
    offsets, at = index_symbol(OFFSETS), place_of(TILE_STARTS)
    size = maximum(load(offsets, at + 1) - load(offsets, at), least)
    e.table(
        Table(
            TILE_STARTS,
            groups + 1,
            # A group that is no multiple of the tile has less than one tile more.
            floor_div(extent + (tile - 1 + least) * groups, Integer(tile)),
            ceil_div(size, Integer(tile)),
            note=f"tiles along {axis} in the groups before",
        )
    )
    # Where no group has a row there is one tile of padding: so that sizes are never 0.
    tiles = maximum(load(index_symbol(TILE_STARTS), groups), 1)
    return e.parameter(f"tiles_{axis}", tiles, note=f"macro tiles in {axis}")


def _tensor(
    gemm: Gemm, e: KernelEditor, name: str, shape: list[Expr], role: Role, transposed: bool
) -> None:
    """A tensor argument, its axes, and the matrix among several."""
    kind = (gemm.dtype if name in "AB" else gemm.out_dtype) or gemm.dtype
    strides = (Integer(1), shape[0]) if transposed else (shape[1], Integer(1))
    outer = tuple(reversed(shape) if transposed else shape)
    size, axes = shape[0] * shape[1], (f"{name}.0", f"{name}.1")
    given: tuple[Expr, ...] | None = None
    if name in gemm.batched_tensors:
        count = e.coordinates[gemm.leading].size
        assert count is not None
        stride = size
        if gemm.batched:
            stride = e.parameters[stride_of(name)].symbol
            given = (stride, outer[1], Integer(1))
        outer, strides, axes = (count, *outer), (stride, *strides), (gemm.leading, *axes)
        size = ((count - 1) * stride + size).expand()
    e.tensors += (Tensor(name, kind, outer, role, given),)
    e.coordinates.add(User(name, size, tensor=name))
    for i, extent in enumerate(shape):
        e.coordinates.add(SubDimension(f"{name}.{i}", extent, tensor=name, axis=i))
    e.coordinates.connect(Split((name,), axes, strides))


def _control(gemm: Gemm, e: KernelEditor, depth: Expr) -> None:
    """One output tile's work."""
    leading = (gemm.leading,) if gemm.leading and not gemm.ragged("m") else ()

    def tile(name: str) -> tuple[str, ...]:
        rows = "row_tile" if gemm.ragged("m") and name != "B" else f"{name}.tile.0"
        return (*leading, rows, f"{name}.tile.1")

    offsets, starts, group = index_symbol(OFFSETS), index_symbol(TILE_STARTS), index_symbol("group")
    if gemm.ragged("k"):
        depth = load(starts, group + 1) - load(starts, group)
    loads = (LoadTile("A", tile("A")), LoadTile("B", tile("B")))
    work = (
        InitAccumulator(),
        For("k_tile", Integer(0), depth, body=(*loads, MultiplyAccumulate())),
        Epilogue("C", tile("C")),
        StoreTile("D", tile("D")),
    )
    if gemm.grouped:
        reads = (load(offsets, group), load(offsets, group + 1))
        located = ("group", "A.tile.0")
        if gemm.ragged("k"):
            reads += (load(starts, group), load(starts, group + 1))
            located = ("group",)
        work = (Locate(located, reads, work),)
    e.kernel(*work)
