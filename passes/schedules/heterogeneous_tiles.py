"""`HeterogeneousTiles`: a schedule with smaller output tiles in the last, partial wave."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from sympy import Expr, Integer

from coordgraph import KernelGraph, PassError
from coordgraph.control.operations import Body, For, Operation, Scope, SetCoordinate
from coordgraph.coordinates.dimensions import (
    Linear,
    MacroTileIndex,
    MacroTileNumber,
    Selector,
)
from coordgraph.coordinates.edges import Flatten, PassThrough, Sunder, Tile
from coordgraph.integers import ceil_div, floor_div
from coordgraph.kernel import KernelEditor
from coordgraph.parameters import LARGEST_INDEX
from coordgraph.tilings import Tiling, macro_tile
from passes.base import Pass, option
from passes.kit import (
    MOST_WORKGROUPS,
    TileWork,
    add_waves,
    flatten_into,
    number_of,
    workgroup_count,
)

__all__ = ["HeterogeneousTiles"]

SMALL = "small"
"""The name of the accumulator of small tiles (parts of the macro tiles of the last wave), and the
prefix of the names of their coordinates."""
AXES = "mn"
"""Axes of an output tile along which macro tiles are divided into small tiles."""


@dataclass(frozen=True)
class HeterogeneousTiles(Pass):
    """Run full waves on whole macro tiles, and divide the last wave's tiles into small tiles.

    With T macro tiles and W workgroups, the first `T div W` waves compute whole macro tiles. The
    remaining `T mod W` macro tiles are divided into p small tiles each, and all workgroups compute
    the small tiles in `⌈(T mod W)·p / W⌉` waves, each of which takes about 1/p of the time of a
    full wave. No tile is divided along k, so workgroups exchange no partial sums and need no
    workspace. With few tiles and large k, most workgroups stay idle; Stream-K or split-K suits such
    problems. Before: dimensions of kind `MacroTileNumber` for m and n that no edge computes.
    After::

        m, n --Flatten--> tile --Sunder--> full.tiles, rest.tiles, selector
        full.tiles --Tile--> full.wave, workgroup
        A.0 --Tile--> small.A.tile.0, small.A.index.0   (likewise B.1, and both axes of C and D)
        small.A.tile.0 --Tile--> m, small.m; small.B.tile.1 --Tile--> n, small.n
        rest.tiles, small.m, small.n --Flatten--> small.tiles --Tile--> small.wave, workgroup

    Args:
        workgroups: number of workgroups W; None makes it a launch argument.
        small_m, small_n: extents of a small tile in elements. Each must divide the extent of the
            macro tile. None means half of the macro tile's extent, or the whole extent if that is
            an odd number. If the epilogue has s > 1 sums, small_n counts the columns of B for all
            sums, as the n of `Gemm.graph(tile)` does.
    """

    workgroups: int | None = option(None, least=1, most=MOST_WORKGROUPS)
    small_m: int | None = option(None, least=1, most=LARGEST_INDEX)
    small_n: int | None = option(None, least=1, most=LARGEST_INDEX)

    name = "heterogeneous-tiles"
    establishes = ("scheduled",)

    def small(self, tile: tuple[int, ...]) -> tuple[int, int]:
        """Extents of a small tile in m and n, in elements.

        Args:
            tile: extents of the macro tile in m and n, in elements; a third entry is ignored.
        """
        given = (self.small_m, self.small_n)
        halves = (extent // 2 if extent % 2 == 0 else extent for extent in tile[:2])
        m, n = (half if own is None else own for own, half in zip(given, halves, strict=True))
        return m, n

    @classmethod
    def variants(cls, tile: tuple[int, int, int]) -> tuple[Pass, ...]:
        return (cls(small_n=tile[1]), cls(small_m=tile[0]), cls())

    def suits(self, tiles: Any, depth: Any, workgroups: Any) -> Any:
        return (tiles > workgroups) & (tiles % workgroups != 0)

    def scaled(self, tile: tuple[int, int, int], to: tuple[int, int, int]) -> Pass:
        sides = tuple(zip(self.small(tile), tile[:2], to[:2], strict=True))
        if any(part * new % old for part, old, new in sides):
            raise PassError(
                f"{self} has no small tiles of whole elements for macro tiles of {to[0]}x{to[1]}; "
                "set small_m and small_n for these tiles"
            )
        parts = [part * new // old for part, old, new in sides]
        usual = replace(self, small_m=None, small_n=None).small(to)
        m, n = (None if part == half else part for part, half in zip(parts, usual, strict=True))
        return replace(self, small_m=m, small_n=n)

    def why_not(self, graph: KernelGraph) -> str | None:
        if graph.gemm.grouped:
            rows = graph.gemm.ragged("m")
            return (
                "each group begins at its own row, so macro tiles and small tiles would divide "
                "groups at different rows; use hybrid-stream-k, which divides the last wave too"
                if rows
                else "groups have their own k, so the tiles of a wave do not end together; use "
                "stream-k, which divides the iterations of all groups evenly"
            )
        if reducing := [name for name, o in graph.gemm.outputs.items() if o.reduce]:
            return (
                f"the output {reducing[0]} has one element for each row and macro tile along n, "
                "and small tiles would need more; use hybrid-stream-k"
            )
        tile, sums = self._macro_tile(graph), graph.gemm.sums
        small = self.small(tile)
        for axis, part, extent in zip(AXES, small, tile[:2], strict=True):
            if extent % part:
                return (
                    f"small_{axis}={part} does not divide the macro tile's {extent}; use a divisor"
                )
        if small[1] % sums:
            return (
                f"small_n={small[1]} has columns of B for {sums} sums of the epilogue; use a "
                f"multiple of {sums}"
            )
        if small == tile[:2]:
            return (
                f"small tiles of {small[0]}x{small[1]} are whole macro tiles: nothing is divided; "
                "set a smaller small_m or small_n, or use data-parallel{persistent=true}"
            )
        return None

    @staticmethod
    def _macro_tile(graph: KernelGraph) -> tuple[int, int, int]:
        """The extents of a macro tile, where n counts the columns of B for all sums."""
        m, n, k = macro_tile(graph.coordinates)
        return m, n * graph.gemm.sums, k

    def apply(self, graph: KernelGraph) -> KernelGraph:
        work, numbers = TileWork.of(graph), graph.dangling
        (large,) = graph.tilings
        m, n = self.small(self._macro_tile(graph))
        small = m, n // graph.gemm.sums
        counts = [Integer(whole // part) for whole, part in zip(large.shape, small, strict=False)]
        pieces = counts[0] * counts[1]
        tiles = number_of(graph, numbers)
        with graph.edit(str(self)) as e:
            e.level = "scheduled"
            count = workgroup_count(e, self.workgroups)
            waves = e.parameter(
                "full_waves", floor_div(tiles, count), minimum=0, note="macro tiles per workgroup"
            )
            rest = e.parameter(
                "rest_tiles",
                tiles - waves * count,
                minimum=0,
                note="macro tiles of the ragged wave",
            )
            small_waves = e.parameter(
                "small_waves",
                ceil_div(rest * pieces, count),
                minimum=0,
                note="small tiles per workgroup",
            )
            e.assume(waves * count + rest)
            e.assume(small_waves * count)
            c = e.coordinates
            tile = c.add(Linear(c.fresh("tile"), tiles, note="macro tiles"))
            flatten_into(e, numbers, tile.id)
            c.add(Linear("full.tiles", waves * count, note="macro tiles of the full waves"))
            c.add(Linear("rest.tiles", rest, note="macro tiles of the ragged wave"))
            c.add(Selector("selector", Integer(2), note="full waves or the rest"))
            c.connect(Sunder(tile.id, ("full.tiles", "rest.tiles", "selector")))
            c.add(Linear("small.tiles", rest * pieces, note="small tiles of the ragged wave"))
            names = _divide(e, large, small, counts)
            c.connect(Flatten(("rest.tiles", "small.m", "small.n"), "small.tiles"))
            full = add_waves(e, "full", "full.tiles", waves, count)
            few = add_waves(e, SMALL, "small.tiles", small_waves, count)
            # All workgroups compute equally many macro tiles. If the number of workgroups does not
            # divide the number of small tiles, some workgroups compute one small tile more than
            # others.
            mine = ceil_div(rest * pieces - c["workgroup"].symbol, count)
            e.kernel(
                SetCoordinate("selector", Integer(0), (_walk("full waves", full, waves, work),)),
                SetCoordinate(
                    "selector", Integer(1), (_walk("rest", few, mine, _renamed(work, names)),)
                ),
                workgroup="workgroup",
            )
        return e.graph


def _divide(
    e: KernelEditor, large: Tiling, small: tuple[int, int], counts: list[Integer]
) -> dict[str, str]:
    """Add coordinates for small tiles below the tensors' axes, in addition to those of macro tiles.

    Args:
        e: the kernel under construction.
        large: the macro tiles and their coordinates.
        small: extents of a small tile in m and n, in elements.
        counts: numbers of small tiles in a macro tile, along m and along n.

    Returns:
        The coordinate of each small tile's number, by the coordinate of the macro tile's number.
    """
    c, names = e.coordinates, dict[str, str]()
    before = c.finish()
    for axis, count in zip(AXES, counts, strict=True):
        c.add(Linear(f"small.{axis}", count, note=f"small tiles of a macro tile in {axis}"))
    for (tensor, place), number in large.numbers.items():
        along = e.graph.gemm.axes[tensor][place]
        if along not in AXES:
            continue  # small tiles have the same extent along k as macro tiles
        axis = AXES.index(along)
        (edge,) = before.edges_above(large.index(tensor, place))
        (whole,) = edge.upstream
        extent = before[whole].size
        assert extent is not None
        name, part = f"{SMALL}.{number}", Integer(small[axis])
        size = e.parameter(
            f"small_tiles_{AXES[axis]}",
            ceil_div(extent, part),
            note=f"small tiles in {AXES[axis]}",
        )
        inside = f"{SMALL}.{large.index(tensor, place)}"
        c.add(MacroTileNumber(name, size, tensor=tensor, axis=place))
        c.add(MacroTileIndex(inside, part, tensor=tensor, axis=place))
        c.connect(Tile(whole, (name, inside)))
        names[number] = name
        if tensor in ("A", "B"):
            c.connect(Tile(name, (number, f"small.{AXES[axis]}")))
    for place, tensor in enumerate("AB"):
        for output, axes in e.graph.gemm.axes.items():
            if output not in ("A", "B") and AXES[place] in axes:
                above = large.number(output, axes.index(AXES[place]))
                c.connect(PassThrough(names[above], names[large.number(tensor, place)]))
    return names


def _walk(name: str, wave: str, waves: Expr, work: TileWork) -> Scope:
    """A scope named `name`: a loop over waves, in each of which a workgroup computes one tile."""
    return Scope(name, (For(wave, Integer(0), waves, body=work.whole()),))


def _renamed(work: TileWork, names: dict[str, str]) -> TileWork:
    """A copy of `work` whose operations are on small tiles and their accumulator.

    Args:
        work: the operations on a macro tile.
        names: maps the coordinate of a macro tile's number to the coordinate of a small tile's
            number.
    """

    def change(op: Operation) -> Operation:
        changes: dict[str, Any] = {
            name: tuple(change(inner) for inner in getattr(op, name)) for name in op.BODIES
        }
        if hasattr(op, "accumulator"):
            changes["accumulator"] = SMALL
        for role in ("tile", "operand_tiles", "store_tiles"):
            if tile := op.bindings.get(role):
                changes[role] = tuple(names.get(number, number) for number in tile)
        return replace(op, **changes)

    def all_of(body: Body) -> Body:
        return tuple(change(op) for op in body)

    loop = change(work.loop)
    assert isinstance(loop, For)
    return TileWork(all_of(work.before), loop, all_of(work.after), work.around)
