"""`GemmProblem`: the record that describes a matrix product `D = alpha·A@B + beta·C`.

The subclass `coordgraph.frontend.Gemm` builds kernel graphs from a `GemmProblem`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from coordgraph.epilogue import ALPHA_BETA, EpilogueFunction, Operand, Output
from coordgraph.epilogue.operation import FLOATS, QUANTIZED
from coordgraph.errors import VerifyError
from coordgraph.parameter_names import elements_of, ld_of, read_of, stride_of, tensor_of
from coordgraph.parameters import LARGEST_SIZE
from coordgraph.problem_names import (
    ARRAYS,
    AXES,
    GROUP_AXES,
    IS_NUMBER,
    LARGEST_STRIDE,
    MOST_GROUPS,
    MOST_PROBLEMS,
    MOST_TOGETHER,
    OFFSETS,
    OFFSETS_OF,
    PART,
    PART_COLUMN,
    PARTS,
    RESERVED,
    ROW_STEP,
    ROWS,
    SUM,
    SUMS,
    TARGETS,
    TENSORS,
)
from coordgraph.tensors import DTYPES, dtype
from coordgraph.validation import flag, whole

__all__ = [
    "ARRAYS",
    "AXES",
    "GROUP_AXES",
    "LARGEST_STRIDE",
    "MOST_GROUPS",
    "MOST_TOGETHER",
    "OFFSETS",
    "OFFSETS_OF",
    "PART",
    "PARTS",
    "PART_COLUMN",
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
      `ROW_STEP` elements (16 elements for i8 and u8). Elements that pad a row are not read, and the
      padding of D may be overwritten. `offsets` (3 x (g + 1)) has a row for each of m, n and k: the
      matrix A of group g has `offsets[0, g + 1] - offsets[0, g]` rows.

    Args:
        dtype: element type of A and B: bf16, f16 or f32 (sums in f32), f64 (sums in f64), or i8 or
            u8 (sums in i32, exact modulo 2^32).
        out_dtype: element type of C and D; by default `dtype`, or i32 if A and B hold integers, or
            the type to which the epilogue quantizes D (`ep.quantize`).
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
            next in memory) is a launch argument, so that their rows may have gaps. They are A, B, D
            and operands and outputs of the epilogue along m and n, such as C. The matrices of all
            other tensors have no gaps.
        transposed_operands: names of operands and outputs of the epilogue along m and n, such as
            C, that are given as their transpose, row-major n x m tensors.
        gathered_rows: read A's rows through a table: row i of the product is row `rows[i]` of the
            array A. The table `rows` and the array's number of rows, `rows_a`, are launch
            arguments. Rows may occur several times. A must not be given as its transpose.
        scattered_rows: write D's rows through a table: row i of the product is row `targets[i]` of
            the array D, which has `rows_d` rows. The entries must be distinct: of rows with equal
            targets any one may remain. Rows of D that are no target are not written. Outputs
            besides D have the rows of the product.
        parts: where B has the columns for each sum of an epilogue with s > 1 sums, such as
            `silu(gate) * up` with s = 2. D has n columns, and B has s·n: the sums of an element in
            column j of D are those of column j of each of the s parts of B. With `stacked`, column
            j of part p is column p·n + j of B, so that the parts are one after another; with
            `interleaved`, it is column s·j + p.

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

    def __post_init__(self) -> None:
        _check_function(self.epilogue)
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
        quantized = self._quantized(out.name)
        out = dtype(quantized) if quantized and self.out_dtype is None else out
        object.__setattr__(self, "out_dtype", out.name)
        if not sums.becomes(out) and quantized != out.name:
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
        if self.batched and self.grouped:
            raise VerifyError(
                "Gemm: products are batched or grouped, not both; set only one of batched=True and "
                "grouped=True"
            )
        if self.group_axis not in GROUP_AXES:
            *first, last = GROUP_AXES
            known = f"{', '.join(first)} or {last}"
            raise VerifyError(f"Gemm: group_axis={self.group_axis!r} must be {known}")
        if self.group_axis != "m" and not self.grouped:
            raise VerifyError(
                f"Gemm: group_axis={self.group_axis} has no effect without groups; set grouped=True"
            )
        if self.ragged("m") and self.transpose_a and not self.diagonal:
            raise VerifyError(
                "Gemm: with group_axis=m, groups are rows of A, so A cannot be given as its "
                "transpose; set transpose_a=False"
            )
        if self.diagonal and (fixed := [x for x in "mnk" if getattr(self, x) is not None]):
            raise VerifyError(
                f"Gemm: {', '.join(fixed)} cannot be fixed with group_axis={self.group_axis}: "
                "every group has its own extents, given by offsets at launch; leave "
                f"{', '.join(fixed)} as None"
            )

        self._check_tables_of_rows()
        self._check_epilogue()
        self._check_layouts()
        self._check_parts()

    def _check_parts(self) -> None:
        """Check how the columns of B are divided among several sums of the epilogue."""
        if self.parts not in PARTS:
            raise VerifyError(f"Gemm: parts={self.parts!r} must be {' or '.join(PARTS)}")
        if self.sums == 1 and self.parts != PARTS[0]:
            raise VerifyError(
                f"Gemm: parts={self.parts} has no effect, because the epilogue "
                f"{self.epilogue.name} has one sum; write a function of two sums, as in "
                "def swiglu(gate, up)"
            )
        if self.sums not in SUMS:
            raise VerifyError(
                f"Gemm: the epilogue {self.epilogue.name} has {self.sums} sums, but it can have "
                f"{', '.join(map(str, SUMS[:-1]))} or {SUMS[-1]}; compute others in separate "
                "products"
            )
        if self.sums > 1 and self.diagonal:
            raise VerifyError(
                f"Gemm: the epilogue {self.epilogue.name} has {self.sums} sums, which group_axis="
                "mnk does not allow; use group_axis=m, or compute the sums in separate products"
            )

    def _quantized(self, out: str) -> str:
        """The type i8 or u8 to which the epilogue quantizes D, or '' if it does not.

        Args:
            out: the element type of D.
        """
        if not isinstance(self.epilogue, EpilogueFunction):
            return ""
        kind = self.epilogue.kinds(dtype(self.dtype).accumulator, out).result
        return kind if kind in QUANTIZED else ""

    def _check_tables_of_rows(self) -> None:
        """Check that the other fields of a problem allow it to gather or scatter rows."""
        for name, given in self.tables_of_rows.items():
            field = {ROWS: "gathered_rows", TARGETS: "scattered_rows"}[name]
            if self.batched or (self.grouped and self.group_axis != "m"):
                kind = "batched=True" if self.batched else f"group_axis={self.group_axis}"
                raise VerifyError(
                    f"Gemm: {field}=True has one table of the rows of all products, which {kind} "
                    "does not allow; use a single product, or group_axis=m"
                )
            if given == "A" and self.transpose_a:
                raise VerifyError(
                    f"Gemm: {field}=True reads whole rows of A, so A cannot be given as its "
                    "transpose; set transpose_a=False"
                )

    def _check_layouts(self) -> None:
        """Check the tensors with leading dimensions, or given as transposes; sort their names."""
        others = {**self.operands, **self.outputs}
        operands = tuple(name for name in self.matrices if name in others)
        fields = {"leading_dimensions": self.matrices, "transposed_operands": operands}
        for field, known in fields.items():
            given = getattr(self, field)
            if isinstance(given, str) or not all(isinstance(name, str) for name in given):
                raise VerifyError(f"Gemm: {field}={given!r} must be names of tensors, as in ('C',)")
            for name in given:
                if name not in known:
                    raise VerifyError(
                        f"Gemm: {field} has '{name}', but only matrices can be in it; choose from "
                        f"{', '.join(known) or 'none'}"
                    )
            if given and (self.diagonal or (self.grouped and field == "transposed_operands")):
                raise VerifyError(
                    f"Gemm: {field}={given!r} cannot be used with grouped=True and group_axis="
                    f"{self.group_axis}; leave it out"
                )
            object.__setattr__(self, field, tuple(name for name in known if name in given))
        names = {of(name) for name in self.leading_dimensions for of in (ld_of, stride_of)}
        for what, name in _named(self.epilogue):
            if name in names:
                raise VerifyError(
                    f"Gemm: the epilogue's {what} '{name}' has the name of a kernel "
                    f"parameter for a leading dimension; rename the {what}"
                )

    def _check_epilogue(self) -> None:
        """Check the names and the kinds of the epilogue's operands, and the type of its result."""
        function = self.epilogue
        out = self.out_dtype or self.dtype
        self._check_names(function)
        for operand in function.operands:
            number = IS_NUMBER.get(operand.name)
            if number is not None and number != operand.is_scalar:
                kind = "a number" if number else "a tensor"
                raise VerifyError(
                    f"Gemm: the epilogue's operand '{operand.name}' is not {kind}, which kernels "
                    f"expect under this name; declare {kind}, or rename the operand"
                )
            if (
                self.diagonal
                and not operand.is_scalar
                and operand.axes not in ("mn", "lmn", "l", "")
            ):
                raise VerifyError(
                    f"Gemm: the epilogue's operand '{operand.name}' has axes '{operand.axes}', "
                    "which group_axis=mnk does not allow; use 'lmn' (stored like D), 'l' (one "
                    "element per group) or '' (one element)"
                )
        self._check_outputs(function, out)
        kind, sums = function.kinds(self.accumulator, out).result, dtype(self.accumulator)
        if kind not in (sums.name, "f32", *QUANTIZED):
            raise VerifyError(
                f"Gemm: the epilogue {function.name} returns {kind}, which cannot be computed from "
                f"sums in {sums}; convert its result with "
                f"ep.cast(value, to='{sums if sums.is_float else 'f32'}')"
            )
        if not dtype(kind).becomes(dtype(out)):
            raise VerifyError(
                f"Gemm: the epilogue {function.name} returns {kind}, which cannot be stored in D "
                f"of {out}; convert its result with ep.cast(value, to='{dtype(out).accumulator}')"
            )

    def _check_outputs(self, function: EpilogueFunction, out: str) -> None:
        """Check that each output besides D can be stored as elements of its type."""
        kinds = function.kinds(self.accumulator, out).outputs
        for output in function.outputs:
            kind, stored = kinds[output.name], dtype(self._stored_type(output, out))
            if output.reduce and (kind not in FLOATS or stored.name != kind):
                raise VerifyError(
                    f"Gemm: the epilogue {function.name} reduces {kind} for the output "
                    f"'{output.name}' of {stored}; sums and maxima are f32 or f64, of the type of "
                    "the value: convert it with ep.cast(value, to='f32'), and leave dtype out"
                )
            if output.reduce and self.diagonal:
                raise VerifyError(
                    f"Gemm: the output '{output.name}' reduces rows, which group_axis=mnk does not "
                    "allow, because each product has its own number of column tiles; reduce D "
                    "after the launch"
                )
            if kind == "bool" or not dtype(kind).becomes(stored):
                raise VerifyError(
                    f"Gemm: the epilogue {function.name} returns {kind} for the output "
                    f"'{output.name}', which cannot be stored as {stored}; convert the value with "
                    f"ep.cast(value, to='{stored.accumulator}')"
                )

    def _stored_type(self, output: Output, out: str) -> str:
        """The element type of an output besides D, where `out` is the type of D."""
        if output.dtype or not output.reduce:
            return output.dtype or out
        return self.epilogue.kinds(self.accumulator, out).outputs[output.name]

    def stored_type(self, output: str) -> str:
        """The element type of an output besides D, given by its name."""
        return self._stored_type(self.outputs[output], self.out_dtype or self.dtype)

    def _check_names(self, function: EpilogueFunction) -> None:
        """Check that no operand and no output has a name that kernels use for something else."""
        for what, name in _named(function):
            if name in RESERVED or (what == "output" and name in IS_NUMBER):
                raise VerifyError(
                    f"Gemm: the epilogue's {what} '{name}' has a name that kernels "
                    f"already use; rename the {what}"
                )
            for other in function.tensors:
                if other.optional and name == read_of(tensor_of(other.name)):
                    raise VerifyError(
                        f"Gemm: the epilogue's {what} '{name}' has the name of the "
                        f"kernel parameter that says whether '{other.name}' is read; rename the "
                        f"{what}"
                    )

    @property
    def sums(self) -> int:
        """How many sums of products the epilogue has, and parts the columns of B have."""
        return len(self.epilogue.sums)

    @property
    def parts_in_rows(self) -> bool:
        """Whether each row of B in memory holds the parts for several sums one after another."""
        return self.sums > 1 and self.parts == "stacked" and not self.transpose_b

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
        """The tensors with rows and columns: A, B, operands of the epilogue, D, other outputs."""
        axes = self.axes
        names = ("A", "B", *self.operands, "D", *self.outputs)
        return tuple(x for x in names if len(axes[x]) == len("mn") and "t" not in axes[x])

    @property
    def tables_of_rows(self) -> dict[str, str]:
        """By name of a table of rows (`rows`, `targets`), the tensor whose rows it numbers."""
        there = ((ROWS, "A", self.gathered_rows), (TARGETS, "D", self.scattered_rows))
        return {table: tensor for table, tensor, given in there if given}

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

        If groups differ in extent along `axis`, the limit is that of the sum over all groups. If
        the epilogue has several sums, it limits the columns of B, which are several times n.
        """
        most = MOST_TOGETHER if self.ragged(axis) else LARGEST_SIZE
        return most // self.sums if axis == "n" else most

    @property
    def most_groups(self) -> int:
        """The largest number of groups that a kernel call may have."""
        return MOST_PROBLEMS if self.diagonal else MOST_GROUPS

    @property
    def leading(self) -> str:
        """The id of the dimension that numbers products: `batch`, `group`, or '' for none."""
        return "batch" if self.batched else "group" if self.grouped else ""

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
        """The tensors with a matrix for each product, whose stride is a launch argument."""
        apart = self.batched_tensors if self.batched else ""
        return (
            *apart,
            *(x for x in self.leading_dimensions if self.is_apart(x) and x not in apart),
        )

    @property
    def accumulator(self) -> str:
        """The name of the element type in which products are summed.

        The scalars alpha and beta have this type, too.
        """
        return dtype(self.dtype).accumulator


def rows_of(tensor: str) -> str:
    """The name of the launch parameter for the number of rows of an array that a table numbers."""
    return f"rows_{tensor.lower()}"


def _named(function: EpilogueFunction) -> Iterator[tuple[str, str]]:
    """(`operand`, name) of each operand, then (`output`, name) of each output besides D."""
    yield from (("operand", o.name) for o in function.operands)
    yield from (("output", o.name) for o in function.outputs)


def _check_function(function: object) -> None:
    """Check that a problem's epilogue is a traced function."""
    if not isinstance(function, EpilogueFunction):
        raise VerifyError(
            f"Gemm: epilogue={function!r} is not an epilogue; decorate a Python function with "
            "@coordgraph.epilogue.epilogue(…)"
        )


def row_step(kind: str) -> int:
    """The alignment of matrix rows in a list of products (`group_axis="mnk"`), in elements.

    The alignment is `ROW_STEP` elements or 16 bytes, whichever is more.

    Args:
        kind: the name of the element type.
    """
    return max(ROW_STEP, dtype(kind).chunk)
