"""The front end: `D = alpha·A@B + beta·C` as a graph that schedules can start from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from sympy import Expr, Integer

from coordgraph.control.operations import (
    Epilogue,
    For,
    InitAccumulator,
    LoadTile,
    MultiplyAccumulate,
    StoreTile,
)
from coordgraph.coordinates.dimensions import (
    ForLoop,
    MacroTileIndex,
    MacroTileNumber,
    SubDimension,
    User,
)
from coordgraph.coordinates.edges import PassThrough, Split, Tile
from coordgraph.errors import VerifyError
from coordgraph.integers import ceil_div
from coordgraph.parameters import LARGEST_SIZE, Parameter, Parameters
from coordgraph.tensors import Role, Tensor, dtype

if TYPE_CHECKING:
    from coordgraph.kernel import KernelEditor, KernelGraph

__all__ = ["Gemm"]


@dataclass(frozen=True)
class Gemm:
    """`D = alpha·A@B + beta·C` with A of m x k, B of k x n, C and D of m x n, all row-major.

    Args:
        dtype: of A and B: bf16, f16, f32 or f64; products are summed in f32 (f64 for f64).
        out_dtype: of C and D; by default `dtype`.
        m, n, k: numbers to specialise the kernel on, or None for launch arguments.
        transpose_a: A is given as its transpose, a row-major k x m tensor.
        transpose_b: B is given as its transpose, a row-major n x k tensor.
    """

    dtype: str = "bf16"
    out_dtype: str | None = None
    m: int | None = None
    n: int | None = None
    k: int | None = None
    transpose_a: bool = False
    transpose_b: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "dtype", dtype(self.dtype).name)
        object.__setattr__(self, "out_dtype", dtype(self.out_dtype or self.dtype).name)
        for name in ("dtype", "out_dtype"):
            if getattr(self, name) == "i32":
                raise VerifyError(f"Gemm: {name} must be a floating-point type")
        for name in ("m", "n", "k"):
            extent = getattr(self, name)
            if extent is not None and not (isinstance(extent, int) and 1 <= extent <= LARGEST_SIZE):
                raise VerifyError(f"Gemm: {name} = {extent!r} must be in 1..{LARGEST_SIZE}")

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

        if len(tile) != 3 or any(not isinstance(t, int) or t < 1 for t in tile):
            raise VerifyError(f"Gemm: tile {tile!r} must be three positive numbers (m, n, k)")
        given = [
            Parameter(name, 1, LARGEST_SIZE, note=f"extent of the problem in {name}")
            for name in ("m", "n", "k")
            if getattr(self, name) is None
        ]
        read_c = Parameter("read_c", 0, 1, note="1 where C is given and beta is not zero")
        with KernelGraph(self, parameters=Parameters((*given, read_c))).edit() as e:
            _build(self, e, tile)
        return e.graph


def _build(gemm: Gemm, e: KernelEditor, tile: tuple[int, int, int]) -> None:
    extents: dict[str, Expr] = {
        axis: e.parameters[axis].symbol if axis in e.parameters else Integer(getattr(gemm, axis))
        for axis in "mnk"
    }
    tiles = dict(zip("mnk", tile, strict=True))
    counts = {
        axis: e.parameter(
            f"tiles_{axis}",
            ceil_div(extents[axis], Integer(tiles[axis])),
            note=f"macro tiles in {axis}",
        )
        for axis in "mnk"
    }
    e.assume(counts["m"] * counts["n"] * counts["k"])
    out = gemm.out_dtype or gemm.dtype
    for name, axes, kind, role, transposed in (
        ("A", "mk", gemm.dtype, Role.INPUT, gemm.transpose_a),
        ("B", "kn", gemm.dtype, Role.INPUT, gemm.transpose_b),
        ("C", "mn", out, Role.OPTIONAL_INPUT, False),
        ("D", "mn", out, Role.OUTPUT, False),
    ):
        shape = [extents[axis] for axis in axes]
        strides = (Integer(1), shape[0]) if transposed else (shape[1], Integer(1))
        e.tensors += (Tensor(name, kind, tuple(reversed(shape) if transposed else shape), role),)
        e.coordinates.add(User(name, shape[0] * shape[1], tensor=name))
        for i, axis in enumerate(axes):
            e.coordinates.add(SubDimension(f"{name}.{i}", extents[axis], tensor=name, axis=i))
        e.coordinates.connect(Split((name,), (f"{name}.0", f"{name}.1"), strides))
        for i, axis in enumerate(axes):
            number, inside = f"{name}.tile.{i}", f"{name}.index.{i}"
            e.coordinates.add(MacroTileNumber(number, counts[axis], tensor=name, axis=i))
            e.coordinates.add(MacroTileIndex(inside, Integer(tiles[axis]), tensor=name, axis=i))
            e.coordinates.connect(Tile((f"{name}.{i}",), (number, inside)))
    e.coordinates.add(ForLoop("k_tile", counts["k"], name="K"))
    e.coordinates.connect(PassThrough(("A.tile.1",), ("k_tile",)))
    e.coordinates.connect(PassThrough(("B.tile.0",), ("k_tile",)))
    for name in ("C", "D"):
        e.coordinates.connect(PassThrough((f"{name}.tile.0",), ("A.tile.0",)))
        e.coordinates.connect(PassThrough((f"{name}.tile.1",), ("B.tile.1",)))
    e.kernel(
        InitAccumulator(),
        For(
            "k_tile",
            Integer(0),
            counts["k"],
            body=(
                LoadTile("A", ("A.tile.0", "A.tile.1")),
                LoadTile("B", ("B.tile.0", "B.tile.1")),
                MultiplyAccumulate(),
            ),
        ),
        Epilogue("C", ("C.tile.0", "C.tile.1")),
        StoreTile("D", ("D.tile.0", "D.tile.1")),
    )
