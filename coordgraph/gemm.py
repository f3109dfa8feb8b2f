"""`GemmProblem`: the record that describes a matrix product `D = alpha·A@B + beta·C`.

The subclass `coordgraph.frontend.Gemm` builds kernel graphs from a `GemmProblem`.
"""

from __future__ import annotations

from dataclasses import dataclass

from coordgraph.epilogue import ALPHA_BETA, EpilogueFunction, Operand, Output
from coordgraph.epilogue.operation import QUANTIZED
from coordgraph.errors import VerifyError
from coordgraph.parameter_names import elements_of, ld_of, read_of, step_of, stride_of, tensor_of
from coordgraph.parameters import LARGEST_SIZE
from coordgraph.parts_of_b import checked_parts, width_of
from coordgraph.problem_checks import (
    check_epilogue,
    check_function,
    check_groups,
    check_tables_of_rows,
    quantized,
    sorted_layouts,
)
from coordgraph.problem_names import (
    ARRAYS,
    AXES,
    GROUP_AXES,
    LARGEST_PART_STRIDE,
    LARGEST_STRIDE,
    MOST_GROUPS,
    MOST_PROBLEMS,
    MOST_TOGETHER,
    OFFSETS,
    OFFSETS_OF,
    PART,
    PART_BLOCK,
    PART_COLUMN,
    PART_STRIDE,
    PARTS,
    ROW_STEP,
    ROWS,
    SUM,
    TARGETS,
    TENSORS,
    inside_group,
    product_row,
)
from coordgraph.tensors import DTYPES, dtype
from coordgraph.validation import flag, whole

__all__ = [
    "ARRAYS",
    "AXES",
    "GROUP_AXES",
    "LARGEST_PART_STRIDE",
    "LARGEST_STRIDE",
    "MOST_GROUPS",
    "MOST_TOGETHER",
    "OFFSETS",
    "OFFSETS_OF",
    "PART",
    "PARTS",
    "PART_BLOCK",
    "PART_COLUMN",
    "PART_STRIDE",
    "ROWS",
    "ROW_STEP",
    "SUM",
    "TARGETS",
    "TENSORS",
    "GemmProblem",
    "elements_of",
    "ld_of",
    "read_of",
    "row_step",
    "rows_of",
    "step_of",
    "stride_of",
    "tensor_of",
]


@dataclass(frozen=True)
class GemmProblem:
    """`D = alpha·A@B + beta·C` with A of m x k, B of k x n, C and D of m x n, all row-major.

    With `grouped`, one kernel computes several products whose extents differ along `group_axis`.
    `offsets` (i32, in device memory, non-decreasing) then holds the start of each group along that
    axis, and the end of the last group:

    - `group_axis="m"`: groups share k and n. A (m x k) has the rows of all groups, B is g x k x n.
      Rows `offsets[g] .. offsets[g + 1] - 1` of D are the product of these rows of A and B[g]. Rows
      of D that belong to no group are not written.
    - `group_axis="k"`: groups share m and n, as for gradients of weights. A (m x k) and B (k x n)
      have the columns and rows of all groups; C and D are g x m x n. D[g] is the product of columns
      `offsets[g] .. offsets[g + 1] - 1` of A and the rows of B with these numbers; D[g] is zero for
      an empty group.
    - `group_axis="mnk"`: a list of products that share no extent. A, B, C and D are vectors that
      hold the matrices of all groups one after another, row-major. Each row begins at a multiple of
      `ROW_STEP` elements (16 elements of 8 bits). Elements that pad a row are not read, and the
      padding of D may be overwritten. `offsets` (3 x (g + 1)) has a row for each of m, n and k: the
      matrix A of group g has `offsets[0, g + 1] - offsets[0, g]` rows.

    Args:
        dtype: element type of A and B: bf16, f16, f32, e4m3 or e5m2 (sums in f32), f64 (sums in
            f64), or i8 or u8 (sums in i32, exact modulo 2^32).
        out_dtype: element type of C and D; by default `dtype`, or the type of sums if A and B hold
            8-bit elements, or the type to which the epilogue quantizes D (`ep.quantize`).
        m, n, k: extents in elements that the kernel is specialised for; an extent that is None is a
            launch argument.
        transpose_a: A is given as its transpose, a row-major k x m tensor.
        transpose_b: B is given as its transpose, a row-major n x k tensor.
        batched: compute l products of one shape: A is l x m x k, B is l x k x n, C and D are l x m
            x n. The stride from one matrix to the next is arbitrary; stride 0 lets all products
            share one matrix A, B or C.
        grouped: compute several products of different extents, as described above.
        group_axis: the axes along which groups differ in extent: `m`, `k` or `mnk`.
        epilogue: the elementwise function that is applied to the sums before they are stored as D;
            by default `alpha·acc + beta·C`. See `coordgraph.epilogue`.
        leading_dimensions: names of tensors whose leading dimension (elements from one row to the
            next in memory) is a launch argument, so that their rows may have gaps. Allowed are A,
            B, D, and operands and outputs of the epilogue along m and n, such as C. The matrices of
            all other tensors have no gaps.
        transposed_operands: names of operands and outputs of the epilogue along m and n, such as
            C, that are given as their transpose, row-major n x m tensors.
        gathered_rows: read A's rows through a table: row i of the product is row `rows[i]` of the
            array A. The table `rows` and the array's number of rows, `rows_a`, are launch
            arguments. Rows may occur several times. A must not be given as its transpose.
        scattered_rows: write D's rows through a table: row i of the product is row `targets[i]` of
            the array D, which has `rows_d` rows. The entries must be distinct: if two rows
            have equal targets, either of the two may be the one that is kept. Rows of D that are no
            target are not written. Other outputs of the epilogue are not scattered.
        parts: where B has the columns for each sum of an epilogue with s > 1 sums, such as
            `silu(gate) * up` with s = 2. D has n columns, and B has s·n: the sums of an element in
            column j of D are those of column j of each of the s parts of B. With `stacked`, column
            j of part p is column p·n + j of B, so that the parts are one after another; with
            `interleaved`, it is column s·j + p. With `interleaved:w`, blocks of w columns of each
            part alternate: column j of part p is column (s·⌊j/w⌋ + p)·w + j mod w of B, which has
            s·w·⌈n/w⌉ columns. With `separate`, each part is a k x n matrix of its own: B is s x k x
            n, or for a batch or groups l x s x k x n; the stride between parts is arbitrary.
        element_steps: names of tensors whose elements need not be adjacent: the distance from one
            element of a row, or of a vector, to the next is a launch argument, and may be 0 for
            tensors that are read. Allowed are D, and operands and outputs of the epilogue along m
            or n. Matrices must be in `leading_dimensions`, too. With one vector for each product of
            a batch, the stride between vectors is a launch argument as well.

    Raises:
        VerifyError: a field has a value that is not allowed, or fields contradict each other.
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
    epilogue: EpilogueFunction = ALPHA_BETA
    leading_dimensions: tuple[str, ...] = ()
    transposed_operands: tuple[str, ...] = ()
    gathered_rows: bool = False
    scattered_rows: bool = False
    parts: str = PARTS[0]
    element_steps: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_function(self.epilogue)
        object.__setattr__(self, "dtype", dtype(self.dtype).name)
        kind = dtype(self.dtype)
        if not kind.operand:
            operands = ", ".join(d.name for d in DTYPES.values() if d.operand)
            raise VerifyError(
                f"Gemm: dtype = {kind} is only for offsets and sums; choose one of {operands} "
                "for A and B"
            )
        out = dtype(kind.result if self.out_dtype is None else self.out_dtype)
        sums = dtype(kind.accumulator)
        narrow = quantized(self, out.name)
        out = dtype(narrow) if narrow and self.out_dtype is None else out
        object.__setattr__(self, "out_dtype", out.name)
        if not sums.becomes(out) and narrow != out.name:
            stored = ", ".join(d.name for d in DTYPES.values() if sums.becomes(d))
            hint = f", or return ep.quantize(value, to='{out}') from an epilogue"
            hint = hint if out.name in QUANTIZED else ""
            raise VerifyError(
                f"Gemm: out_dtype = {out}, but products of {kind} are summed in {sums}, which "
                f"cannot be stored as {out}; choose one of {stored}{hint}"
            )
        for name in ("m", "n", "k"):
            if getattr(self, name) is None:
                continue
            extent, most = whole(getattr(self, name), f"Gemm: {name}"), self.largest(name)
            if not 1 <= extent <= most:
                raise VerifyError(f"Gemm: {name} = {extent} must be in 1..{most}")
            object.__setattr__(self, name, extent)
        for name in (
            *("transpose_a", "transpose_b", "batched", "grouped"),
            *("gathered_rows", "scattered_rows"),
        ):
            object.__setattr__(self, name, flag(getattr(self, name), f"Gemm: {name}"))
        check_groups(self)
        check_tables_of_rows(self)
        check_epilogue(self)
        for field, names in sorted_layouts(self).items():
            object.__setattr__(self, field, names)
        object.__setattr__(self, "parts", checked_parts(self))

    def stored_type(self, output: str) -> str:
        """The element type of the epilogue output named `output`, which is not D itself."""
        written, d_type = self.outputs[output], self.out_dtype or self.dtype
        if written.dtype or not written.reduce:
            return written.dtype or d_type
        return self.epilogue.kinds(self.accumulator, d_type).outputs[output]

    @property
    def row_reductions(self) -> tuple[str, ...]:
        """The names of the epilogue's outputs that reduce the rows of D."""
        return tuple(name for name, output in self.outputs.items() if output.reduce)

    @property
    def stored(self) -> tuple[str, ...]:
        """The names of the tensors that the kernel stores: D, then the epilogue's other outputs.

        D is left out if the epilogue does not store it.
        """
        return (*("D",) * self.epilogue.stores_d, *self.outputs)

    @property
    def sums(self) -> int:
        """The number of sums from which the epilogue computes one element of D.

        If there are s sums, B has s·n columns, where n is the number of columns of D.
        """
        return len(self.epilogue.sums)

    @property
    def parts_in_rows(self) -> bool:
        """Whether adjacent elements of a row of B in memory are columns of one of several parts.

        False if single columns of all parts alternate in a row.
        """
        return self.sums > 1 and self.part_width != 1 and not self.transpose_b

    @property
    def part_width(self) -> int:
        """The number of adjacent columns of one part of B, if parts are interleaved; else 0."""
        return width_of(self.parts)

    @property
    def parts_apart(self) -> bool:
        """Whether B has a separate matrix for each sum of the epilogue (see `parts`)."""
        return self.parts == "separate"

    @property
    def operands(self) -> dict[str, Operand]:
        """The epilogue's operands that are tensors in memory, by tensor name."""
        return {tensor_of(o.name): o for o in self.epilogue.tensors}

    @property
    def outputs(self) -> dict[str, Output]:
        """The epilogue's outputs besides D, by tensor name."""
        return {o.name: o for o in self.epilogue.outputs}

    @property
    def matrices(self) -> tuple[str, ...]:
        """The names of the tensors with rows and columns: A, B, then some operands, D, outputs.

        An operand of the epilogue, or an output besides D, is left out if it is no matrix, and D is
        left out if the epilogue does not store it.
        """
        axes = self.axes
        names = ("A", "B", *self.operands, *self.stored)
        return tuple(x for x in names if len(axes[x]) == len("mn") and "t" not in axes[x])

    @property
    def tables_of_rows(self) -> dict[str, str]:
        """The name of the tensor whose rows a table of row numbers selects, by table name.

        The tables are `rows` (rows of A) and `targets` (rows of D); a kernel may read none.
        """
        there = ((ROWS, "A", self.gathered_rows), (TARGETS, "D", self.scattered_rows))
        return {table: tensor for table, tensor, given in there if given}

    def in_rows(self, tensor: str) -> bool:
        """Whether elements of a tensor for adjacent columns of D are adjacent in memory."""
        return not self.is_transposed(tensor) and tensor not in self.element_steps

    @property
    def by_elements(self) -> bool:
        """Whether the epilogue reads or writes a tensor whose elements are not adjacent."""
        return bool(self.transposed_operands or self.element_steps)

    def is_transposed(self, tensor: str) -> bool:
        """Whether a tensor is given as its transpose."""
        flags = {"A": self.transpose_a, "B": self.transpose_b}
        return flags.get(tensor, tensor in self.transposed_operands)

    @property
    def axes(self) -> dict[str, str]:
        """The axes of every tensor, such as `mk`, by tensor name.

        The axis that numbers products is left out. The axis `t` of an output that reduces rows
        numbers the macro tiles along n.
        """
        found = {t: axes for t, axes in TENSORS.items() if t != "C"}
        found |= {t: o.axes.replace("l", "") for t, o in self.operands.items()}
        return found | {t: "mt" if o.reduce else o.axes for t, o in self.outputs.items()}

    def is_apart(self, tensor: str) -> bool:
        """Whether a tensor has a separate matrix, vector or element for every product.

        False for a tensor that holds all groups in one matrix, as ranges of its rows or columns.
        """
        if tensor in self.operands:
            axes = self.operands[tensor].axes
            return "l" in axes and bool(self.leading) and not any(map(self.ragged, axes))
        return ("D" if tensor in self.outputs else tensor) in self.batched_tensors

    def ragged(self, axis: str) -> bool:
        """Whether the extents of groups differ along `axis` (`m`, `n` or `k`).

        The kernel then reads the groups' extents from tables in device memory.
        """
        return self.grouped and axis in self.group_axis

    @property
    def diagonal(self) -> bool:
        """Whether the extents of groups differ along all axes (`group_axis="mnk"`).

        Each tensor then has one matrix per group, like the blocks of a block-diagonal matrix.
        """
        return self.grouped and self.group_axis == "mnk"

    def offsets(self, axis: str) -> str:
        """Name of the table of the groups' starts along `axis`, in elements.

        Entry g is the index of the first element of group g along `axis`; a further entry is the
        end of the last group.
        """
        return OFFSETS_OF[axis] if self.diagonal else OFFSETS

    def tile_starts(self, axis: str) -> str:
        """Name of the table of the groups' starts along `axis`, in macro tiles.

        Entry g is the number of macro tiles along `axis` in all groups before group g; a further
        entry is the number in all groups.
        """
        return f"{axis}_tile_starts" if self.diagonal else "tile_starts"

    def largest(self, axis: str) -> int:
        """The largest allowed extent along `m`, `n` or `k`, in elements.

        If groups differ in extent along `axis`, the result limits the sum of the groups' extents.
        If the epilogue has s sums, the limit of n is divided by s, because B has s·n columns.
        """
        most = MOST_TOGETHER if self.ragged(axis) else LARGEST_SIZE
        if axis != "n":
            return most
        width = max(self.part_width, 1)  # B has whole blocks of columns
        return most // (self.sums * width) * width

    @property
    def most_groups(self) -> int:
        """The largest number of groups that a kernel call may have."""
        return MOST_PROBLEMS if self.diagonal else MOST_GROUPS

    @property
    def leading(self) -> str:
        """The id of the dimension that numbers products: `batch`, `group`, or '' for none."""
        return "batch" if self.batched else "group" if self.grouped else ""

    def index_of(self, axis: str) -> str:
        """The id of the dimension whose index is the position of an element of D along an axis.

        The result is '' for `l` if there is a single product: no dimension numbers products then.

        Args:
            axis: `l` for the number of the product, `m` for the row or `n` for the column in the
                element's own product.
        """
        if axis == "l":
            return self.leading
        if self.ragged(axis):
            return inside_group("D", axis)
        place = TENSORS["D"].index(axis)
        return product_row("D") if axis == "m" and self.scattered_rows else f"D.{place}"

    @property
    def batched_tensors(self) -> str:
        """The tensors among A, B, C and D with a separate matrix per product, such as `ABD`."""
        there = [
            t for t in TENSORS if t != "C" or "l" in getattr(self.operands.get("C"), "axes", "")
        ]
        if self.batched:
            return "".join(there)
        return "".join(
            t for t in there if self.grouped and not set(self.group_axis) & {*TENSORS[t]}
        )

    @property
    def strided_batches(self) -> tuple[str, ...]:
        """The names of tensors with a matrix for each product of a batch, at equal distances.

        The distance is a launch argument, the batch stride: the number of elements from the start
        of a matrix to the start of the next one.
        """
        apart = self.batched_tensors if self.batched else ""
        apart = apart if self.epilogue.stores_d else apart.replace("D", "")
        return (
            *apart,
            *(x for x in self._with_strides if self.is_apart(x) and x not in apart),
        )

    @property
    def _with_strides(self) -> tuple[str, ...]:
        """The names of tensors that have launch arguments for strides inside a matrix or vector."""
        parts = ("B",) if self.parts_apart else ()
        return tuple(dict.fromkeys((*parts, *self.leading_dimensions, *self.element_steps)))

    @property
    def accumulator(self) -> str:
        """The name of the element type in which products are summed.

        The scalars alpha and beta have this type, too.
        """
        return dtype(self.dtype).accumulator


def rows_of(tensor: str) -> str:
    """The name of a launch parameter: `rows_a` for tensor A, `rows_d` for D.

    The parameter is the number of rows of an array whose rows are gathered or scattered by a table.
    """
    return f"rows_{tensor.lower()}"


def row_step(kind: str) -> int:
    """The alignment of matrix rows in a list of products (`group_axis="mnk"`), in elements.

    The alignment is `ROW_STEP` elements or 16 bytes, whichever is more.

    Args:
        kind: the name of the element type.
    """
    return max(ROW_STEP, dtype(kind).chunk)
