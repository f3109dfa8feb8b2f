"""Names, letters and limits of matrix products: tensors, axes, tables, and reserved words."""

from __future__ import annotations

__all__ = [
    "ARRAYS",
    "AXES",
    "GROUP_AXES",
    "INSIDE",
    "IS_NUMBER",
    "LARGEST_PART_STRIDE",
    "LARGEST_STRIDE",
    "MOST_GROUPS",
    "MOST_PROBLEMS",
    "MOST_TOGETHER",
    "OFFSETS",
    "OFFSETS_OF",
    "PART",
    "PARTS",
    "PART_BLOCK",
    "PART_COLUMN",
    "PART_STRIDE",
    "RESERVED",
    "ROWS",
    "ROW_STEP",
    "SUM",
    "SUMS",
    "TARGETS",
    "TENSORS",
    "inside_group",
    "product_row",
]

RESERVED = frozenset(
    "a b d out m n k l stream workgroups offsets threads tune plan epilogue invariant background "
    "transpose_a transpose_b A B C D "
    "acc batch batches group groups group_axis flags partials sums maps slot workgroup workitem "
    "warp warpgroup lane stage shared buffers tile K fixup operand "
    "a_starts all_iterations all_output_tiles b_starts d_starts dp_waves elements_a elements_b "
    "elements_d for_k for_tile full_waves iterations_before k_offsets k_step k_tile k_tile_starts "
    "m_offsets m_step m_tile_starts n_offsets n_step n_tile_starts output_tiles_before part parts "
    "piece read_c rest_tiles row_tile selector share sk_iterations sk_tiles small_tiles_m "
    "small_tiles_n small_waves stride_a stride_b stride_c stride_d stride_part sum tile_starts "
    "tiles_k tiles_m "
    "tiles_n wave waves rows targets rows_a rows_d".split()
)
"""Names that operands and outputs of an epilogue must not have: arguments of kernel calls, and
dimensions of graphs."""
IS_NUMBER = {"c": False, "alpha": True, "beta": True}
"""For each epilogue operand that every kernel call accepts, whether it is a number or a tensor.

True stands for a number, False for a tensor.
"""
MOST_GROUPS = 511
"""Largest number of groups of a grouped product whose groups differ along m or along k.

Kernels keep tables with one entry more than groups in shared memory, beside the tiles. On Hopper,
four stages of 128 x 256 x 64 tiles and two buffers for parts of D per warpgroup leave 3 KiB for
the tables.
"""
MOST_TOGETHER = 2**30
"""Largest sum of the groups' extents along one axis, in elements (rows, columns or k).

The limit is half of what a 32-bit index holds, because a group's last tile may reach past the
group's end.
"""
LARGEST_PART_STRIDE = 2**46
"""Largest distance between the matrices of two parts of B, in elements. These matrices may be any
two arrays of one memory, so the limit is near that of addresses."""
LARGEST_STRIDE = 2**40
"""Largest stride from one matrix of a batch to the next, in elements: a limit of TMA
descriptors."""
MOST_PROBLEMS = 64
"""Largest number of groups that differ along all axes (`group_axis="mnk"`). Kernels for such groups
keep more tables in shared memory than kernels for groups that differ along one axis."""
ROW_STEP = 8
"""Alignment of matrix rows in a list of products (`group_axis="mnk"`), in elements.

Rows of 1-byte elements are aligned to more elements, see `row_step`.
"""
OFFSETS = "offsets"
"""Name of the table with the first element of each group along `group_axis`, and the last group's
end.

Groups that differ along all axes have one such table per axis instead, see `OFFSETS_OF`.
"""
AXES = ("m", "n", "k")
"""The axes of a matrix product: rows of D, columns of D, and the summed axis."""
ROWS, TARGETS = "rows", "targets"
"""ROWS: name of the table that maps rows of the product to rows of the array A, if A's rows are
gathered. TARGETS: name of the table that maps rows of the product to rows of the array D, if D's
rows are scattered."""
OFFSETS_OF = {axis: f"{axis}_{OFFSETS}" for axis in AXES}
"""Names of the tables of group starts, by axis, for groups that differ along all axes.

A kernel call takes these tables as the rows of one array, in the order m, n, k.
"""
TENSORS = {"A": "mk", "B": "kn", "C": "mn", "D": "mn"}
"""The axes of the matrices A, B, C and D, rows first, if none is given as its transpose."""
ARRAYS = {"A": "a", "B": "b", "C": "c", "D": "out"}
"""Parameters of a kernel call that take the arrays of A, B, C and D."""
PART, PART_COLUMN, SUM = "part", "B.column", "sum"
"""Ids of dimensions, if the epilogue has several sums.

PART: the number of a part of B's columns; each part gives one sum. PART_COLUMN: the column inside a
part, which is the column of D. SUM: the number of the epilogue's sum to which a partial sum in a
workspace slot belongs.
"""
SUMS = (1, 2, 4)
"""The allowed numbers of sums of an epilogue: they divide the extents of tiles, which are multiples
of 16."""
PARTS = ("stacked", "interleaved", "separate")
"""The allowed values of `GemmProblem.parts`: where the columns of each part of B are in memory.

`interleaved` may be followed by the number of columns of a block, as in `interleaved:16`.
"""
PART_BLOCK = "B.block"
"""Id of the dimension that numbers the blocks of each part of B, if blocks of several adjacent
columns are interleaved."""
PART_STRIDE = "stride_part"
"""Name of the launch parameter with the number of elements from one part of B to the next, if each
part of B is a matrix of its own."""
GROUP_AXES = ("m", "k", "mnk")
"""The allowed values of `GemmProblem.group_axis`: axes along which the extents of groups differ."""
INSIDE = {"m": "row", "n": "column", "k": "depth"}
"""For each axis: the last part of the id of the dimension of positions inside one group, such as
`row` in `A.row`. Such a dimension exists if the groups of a product differ in extent along the
axis."""


def inside_group(tensor: str, axis: str) -> str:
    """The id of the dimension of positions inside one group, such as `A.row`.

    Args:
        tensor: the tensor.
        axis: an axis (`m`, `n` or `k`) along which the extents of groups differ.
    """
    return f"{tensor}.{INSIDE[axis]}"


def product_row(tensor: str) -> str:
    """The id of the dimension of the product's rows, which a table maps to rows of an array.

    Args:
        tensor: the tensor of that array: `A` (rows are gathered) or `D` (rows are scattered).
    """
    return f"{tensor}.product_row"
