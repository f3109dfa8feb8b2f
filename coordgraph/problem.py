"""Build the kernel graph of a `GemmProblem` before any schedule.

The graph has the tensors, cut into macro tiles, and the operations that compute one output tile.
Schedules decide later which workgroup computes which tile.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import prod

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
)
from coordgraph.coordinates.edges import (
    Concatenate,
    Gather,
    PassThrough,
    Ragged,
    Tile,
    row_pitch,
)
from coordgraph.epilogue import Operand
from coordgraph.gemm import (
    MOST_TOGETHER,
    TENSORS,
    GemmProblem,
    elements_of,
    row_step,
    rows_of,
)
from coordgraph.integers import ceil_div, floor_div, index_symbol, load, maximum, minimum
from coordgraph.kernel import KernelEditor
from coordgraph.problem_names import INSIDE, inside_group, product_row
from coordgraph.problem_parts import add_part_number, columns_of_b, divide_columns
from coordgraph.problem_tensors import add_tensor, element_type, starts_of
from coordgraph.tables import ANY, DISTINCT, Table, place_of
from coordgraph.tensors import Role, Tensor

__all__ = ["build"]


def build(gemm: GemmProblem, e: KernelEditor, tile: tuple[int, int, int]) -> None:
    """Add the tensors, dimensions, edges, tables and operations of a problem to an editor.

    Args:
        gemm: the problem.
        e: the editor of a graph that has only the parameters that callers of the kernel give.
        tile: extents of a macro tile in m, n and k, in elements. If the epilogue has several sums,
            the extent in n counts columns of B.
    """
    tiles = dict(zip("mnk", tile, strict=True))
    tiles["n"] //= gemm.sums
    extents = {axis: _extent(gemm, e, axis) for axis in "mnk"}
    counts = {axis: _tiles(gemm, e, axis, extents[axis], tiles[axis]) for axis in "mnk"}
    # An output that reduces rows has the axis t in place of n, with one element for each macro tile
    # along n. So its tiles have the extent 1 along t.
    tiles["t"], counts["t"] = 1, counts["n"]
    extents["t"] = ceil_div(extents["n"], Integer(tiles["n"]))
    total = counts["m"] * counts["n"] * counts["k"]
    if gemm.batched:
        batches = e.parameters["batches"].symbol
        total *= batches
        e.coordinates.add(MacroTileNumber("batch", batches, note="which product"))
    if gemm.grouped:
        # With group_axis="m", one dimension numbers the row tiles of all groups, and the group
        # follows from that number. Otherwise schedules distribute groups over workgroups, as they
        # distribute tiles.
        kind = Linear if gemm.group_axis == "m" else MacroTileNumber
        groups = e.parameters["groups"].symbol
        e.coordinates.add(kind("group", groups, note="which product"))
        # With group_axis="k", every group has an output tile at each position along m and n, and
        # the number of output tiles of all groups must fit 32 bits.
        if gemm.group_axis == "k":
            e.assume(groups * counts["m"] * counts["n"])
    if gemm.diagonal:
        _tables_of_problems(gemm, e)
    else:
        e.assume(total)
    axes_of = gemm.axes
    _matrices(gemm, e, extents, counts, tiles)
    e.tensors += tuple(
        Tensor(table.name, "i32", (table.length,), Role.TABLE)
        for table in e.parameters.tables
        if not table.derived
    )
    e.coordinates.add(ForLoop("k_tile", None if gemm.ragged("k") else counts["k"], name="K"))
    e.coordinates.connect(PassThrough(("A.tile.1",), ("k_tile",)))
    e.coordinates.connect(PassThrough(("B.tile.0",), ("k_tile",)))
    for name in (*gemm.operands, "D", *gemm.outputs):
        for i, axis in enumerate(axes_of[name]):
            e.coordinates.connect(PassThrough((f"{name}.tile.{i}",), (NUMBERS[axis],)))
    if gemm.group_axis == "m" and gemm.grouped:
        e.coordinates.add(MacroTileNumber("row_tile", counts["m"], note="tiles of all groups"))
        parts = ("group", "A.tile.0")
        e.coordinates.connect(Concatenate(parts, "row_tile", gemm.tile_starts("m")))
    else:
        # Along each axis on which groups differ, add a dimension that numbers the tiles of all
        # groups, because schedules divide the tiles of all groups together.
        for axis, number in (("m", "A.tile.0"), ("n", "B.tile.1"), ("k", "k_tile")):
            if gemm.ragged(axis):
                every = f"{axis}_step"
                e.coordinates.add(Linear(every, counts[axis], note=f"{axis} tiles of all groups"))
                parts = ("group", number)
                e.coordinates.connect(Ragged(every, parts, gemm.tile_starts(axis)))
    _control(gemm, e, counts["k"])


def _matrices(
    gemm: GemmProblem,
    e: KernelEditor,
    extents: Mapping[str, Expr],
    counts: Mapping[str, Expr],
    tiles: Mapping[str, int],
) -> None:
    """Add A, B, D, the epilogue's operands and outputs, and cut their axes into macro tiles.

    Args:
        gemm: the problem.
        e: the editor.
        extents: by axis (m, n or k), the extent of the problem in elements.
        counts: by axis, the number of macro tiles.
        tiles: by axis, the extent of a macro tile in elements.
    """
    for name, role in (
        ("A", Role.INPUT),
        ("B", Role.INPUT),
        *((name, _role(operand)) for name, operand in gemm.operands.items()),
        ("D", Role.OUTPUT if gemm.epilogue.stores_d else None),
        *((name, Role.OUTPUT) for name in gemm.outputs),
    ):
        axes, transposed = gemm.axes[name], gemm.is_transposed(name)
        table = next((t for t, of in gemm.tables_of_rows.items() if of == name), "")
        divided = gemm.sums > 1 and name == "B"
        shape = [extents[axis] for axis in axes]
        if divided:
            shape[axes.index("n")] = columns_of_b(gemm, extents["n"])
        if table:
            shape[0] = e.parameters[rows_of(name)].symbol
        if divided and gemm.parts_apart:
            add_part_number(gemm, e)
        add_tensor(gemm, e, name, shape, role, transposed)
        if table:
            _gather(e, name, table, extents["m"])
        for i, axis in enumerate(axes):
            number, inside = f"{name}.tile.{i}", f"{name}.index.{i}"
            along = f"{name}.{i}" if i or not table else product_row(name)
            if divided and axis == "n":
                along = divide_columns(gemm, e, along, extents[axis])
            whole, count = along, counts[axis]
            if gemm.ragged(axis):
                # The dimension has no size, because groups differ in their numbers of tiles along
                # this axis: the kernel reads these numbers from a table.
                whole, count = inside_group(name, axis), None
                e.coordinates.add(Linear(whole, note=f"{INSIDE[axis]} in the group"))
                parts = ("group", whole)
                e.coordinates.connect(Ragged(along, parts, gemm.offsets(axis)))
            e.coordinates.add(MacroTileNumber(number, count, tensor=name, axis=i))
            e.coordinates.add(MacroTileIndex(inside, Integer(tiles[axis]), tensor=name, axis=i))
            e.coordinates.connect(Tile((whole,), (number, inside)))


def _gather(e: KernelEditor, tensor: str, table: str, count: Expr) -> None:
    """Declare a table of rows, and the edge that maps the product's rows to rows of an array.

    Args:
        e: the editor.
        tensor: `A` or `D`, the tensor whose array rows the table numbers.
        table: the name of the table.
        count: the number of rows of the product.
    """
    whole = e.coordinates[f"{tensor}.0"].size
    assert whole is not None
    note = f"the row of the array {tensor} for each row of the product"
    rule = DISTINCT if tensor == "D" else ANY  # two rows must not be written to one place
    e.table(Table(table, count, whole - 1, note=note, rule=rule))
    row = e.coordinates.add(Linear(product_row(tensor), count, note="row of the product"))
    e.coordinates.connect(Gather(f"{tensor}.0", row.id, table))


NUMBERS = {"m": "A.tile.0", "n": "B.tile.1", "t": "B.tile.1"}
"""By axis of a tensor, the id of the dimension that numbers output tiles along the axis.

The axis t of an output that reduces rows numbers the macro tiles along n.
"""


def _extent(gemm: GemmProblem, e: KernelEditor, axis: str) -> Expr:
    """The size of the product along `axis` (m, n or k), in elements.

    If groups differ along `axis`, the result is the sum of the groups' sizes. With
    `group_axis="mnk"` that sum is no launch parameter, and the result is its upper bound,
    `MOST_TOGETHER`.
    """
    if axis in e.parameters:
        return e.parameters[axis].symbol
    return Integer(MOST_TOGETHER if gemm.diagonal else getattr(gemm, axis))


def _tiles(gemm: GemmProblem, e: KernelEditor, axis: str, extent: Expr, tile: int) -> Expr:
    """Declare the launch parameter for the number of macro tiles along `axis`; returns its symbol.

    If groups differ in extent along the axis, also declare the tables with each group's first
    element and first tile; the parameter then counts the tiles of all groups.
    """
    if not gemm.ragged(axis):
        count = ceil_div(extent, Integer(tile))
        return e.parameter(f"tiles_{axis}", count, note=f"macro tiles in {axis}")
    groups, starts = e.parameters["groups"].symbol, gemm.tile_starts(axis)
    # A group with k = 0 gets one tile of padding, so that zeros are written to its D. With
    # group_axis="mnk", index expressions divide by the number of tile columns, so a group has at
    # least one tile column.
    least = 0 if axis == "m" else 1
    elements = _rise(gemm.offsets(axis), starts)
    if gemm.diagonal and axis == "k":
        # A group without rows or without columns counts as having k = 0, so it gets one k tile of
        # padding. If all groups are empty, every output tile then has a single iteration, so no
        # tile is divided and no workgroup waits for a partial sum.
        elements *= prod(minimum(_rise(gemm.offsets(other), starts), 1) for other in "mn")
    note = f"where groups begin along {axis}, and the end"
    e.table(Table(gemm.offsets(axis), groups + 1, extent, note=note))
    e.table(
        Table(
            starts,
            groups + 1,
            # An upper bound on the sum of all groups' tiles: rounding a group's extent up to whole
            # tiles adds at most tile - 1 elements, and an empty group counts as `least` elements.
            floor_div(extent + (tile - 1 + least) * groups, Integer(tile)),
            ceil_div(maximum(elements, least), Integer(tile)),
            note=f"tiles along {axis} in the groups before",
        )
    )
    # If every group is empty, count one tile of padding, so that no dimension has size 0.
    tiles = maximum(load(index_symbol(starts), groups), 1)
    return e.parameter(f"tiles_{axis}", tiles, note=f"macro tiles in {axis}")


def _rise(table: str, at: str) -> Expr:
    """The expression `table[g + 1] - table[g]`, for the definition of the derived table `at`.

    A derived table is defined by the difference of its entries g + 1 and g, an expression in the
    symbol g (see `coordgraph.tables.Table`).
    """
    entries, place = index_symbol(table), place_of(at)
    return load(entries, place + 1) - load(entries, place)


def _tables_of_problems(gemm: GemmProblem, e: KernelEditor) -> None:
    """Declare the tables of a list of products (`group_axis="mnk"`).

    For each product the tables hold the number of output tiles and of iterations of all products
    before it, and the offsets in elements at which its matrices begin in the tensors A, B and D.
    """
    length = e.parameters["groups"].symbol + 1

    def add(name: str, axes: str, note: str) -> None:
        size = prod((_rise(gemm.tile_starts(axis), name) for axis in axes), start=Integer(1))
        e.table(Table(name, length, Integer(MOST_TOGETHER // 2), size, note))

    for what, axes in (("output tiles", "mn"), ("iterations", "mnk")):
        starts = f"{what.replace(' ', '_')}_before"
        add(starts, axes, f"{what} of the groups before")
        count = maximum(load(index_symbol(starts), length - 1), 1)
        # The prefix `all_` avoids a clash with the parameter `iterations` that schedules add.
        e.parameter(f"all_{what.replace(' ', '_')}", count, note=f"{what} of all groups")
    for tensor, turned in (("A", gemm.transpose_a), ("B", gemm.transpose_b), ("D", False)):
        rows, columns = TENSORS[tensor][::-1] if turned else TENSORS[tensor]
        name = starts_of(tensor)
        pitch = row_pitch(_rise(gemm.offsets(columns), name), row_step(element_type(gemm, tensor)))
        size = _rise(gemm.offsets(rows), name) * pitch
        most = e.parameters[elements_of(tensor)].symbol
        e.table(Table(name, length, most, size, note=f"where matrices of {tensor} begin"))


def _role(operand: Operand) -> Role:
    return Role.OPTIONAL_INPUT if operand.optional else Role.OPERAND


def _control(gemm: GemmProblem, e: KernelEditor, depth: Expr) -> None:
    """Set the control graph: the operations that compute and store one output tile.

    Args:
        gemm: the problem.
        e: the editor.
        depth: the number of k tiles.
    """
    together = gemm.grouped and gemm.group_axis == "m"
    leading = (gemm.leading,) if gemm.leading and not together else ()

    def tile(name: str) -> tuple[str, ...]:
        rows = "row_tile" if together and name != "B" else f"{name}.tile.0"
        return (*leading, rows, f"{name}.tile.1")

    def tiles_of(names: Iterable[str]) -> tuple[str, ...]:
        return tuple(f"{n}.tile.{i}" for n in names for i in range(len(gemm.axes[n])))

    group = index_symbol("group")

    def borders(table: str) -> tuple[Expr, Expr]:
        return load(index_symbol(table), group), load(index_symbol(table), group + 1)

    if gemm.ragged("k"):
        begin, end = borders(gemm.tile_starts("k"))
        depth = end - begin
    loads = (LoadTile("A", tile("A")), LoadTile("B", tile("B")))
    work = (
        InitAccumulator(),
        For("k_tile", Integer(0), depth, body=(*loads, MultiplyAccumulate())),
        Epilogue(
            "D",
            tile("D"),
            tuple(gemm.operands),
            tiles_of(gemm.operands),
            gemm.epilogue,
            stores=tuple(gemm.outputs),
            store_tiles=tiles_of(gemm.outputs),
        ),
        *((StoreTile("D", tile("D")),) if gemm.epilogue.stores_d else ()),
    )
    if gemm.grouped:
        # Load the entries of tables that indices of tile elements and the bounds of the k loop
        # need.
        tables = [gemm.offsets(axis) for axis in "mnk" if gemm.ragged(axis)]
        if gemm.ragged("k"):
            tables.append(gemm.tile_starts("k"))
        located = {"m": ("group", "A.tile.0"), "k": ("group",)}
        dims = located.get(gemm.group_axis, ("group", "A.tile.0", "B.tile.1"))
        work = (Locate(dims, tuple(x for table in tables for x in borders(table)), work),)
    e.kernel(*work)
