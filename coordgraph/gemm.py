"""The problem `D = alpha·A@B + beta·C` as a record; `coordgraph.frontend` makes graphs of it."""

from __future__ import annotations

from dataclasses import dataclass

from coordgraph.epilogue import ALPHA_BETA, EpilogueFunction, Operand
from coordgraph.errors import VerifyError
from coordgraph.parameters import LARGEST_SIZE
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
    "ROW_STEP",
    "TENSORS",
    "GemmProblem",
    "elements_of",
    "read_of",
    "row_step",
    "stride_of",
    "tensor_of",
]

RESERVED = frozenset(
    "a b d out m n k l stream workgroups offsets threads tune plan transpose_a transpose_b A B C D "
    "acc batch batches group groups group_axis flags partials sums maps slot workgroup workitem "
    "warp warpgroup lane stage shared buffers tile K "
    "a_starts all_iterations all_output_tiles b_starts d_starts dp_waves elements_a elements_b "
    "elements_d for_k for_tile full_waves iterations_before k_offsets k_step k_tile k_tile_starts "
    "m_offsets m_step m_tile_starts n_offsets n_step n_tile_starts output_tiles_before piece "
    "read_c rest_tiles row_tile selector share sk_iterations sk_tiles small_tiles_m small_tiles_n "
    "small_waves stride_a stride_b stride_c stride_d tile_starts tiles_k tiles_m tiles_n wave "
    "waves".split()
)
"""What an operand of an epilogue cannot be called: arguments of calls, and names in graphs."""
NAMED = {"c": False, "alpha": True, "beta": True}
"""Operands that every call has a parameter for, and whether it is a number."""
MOST_GROUPS = 511
"""Largest number of groups: shared memory holds their tables, of one entry more, beside the tiles.

On Hopper four stages of 128 x 256 x 64 and two slots of D for each warpgroup leave 3 KiB."""
MOST_TOGETHER = 2**30
"""Rows (or k) of all groups: half of what an index holds, since a group's last tile may reach
over."""
LARGEST_STRIDE = 2**40
"""Elements from one matrix of a batch to the next: what TMA takes."""
MOST_PROBLEMS = 64
"""The same of groups that share no extent, which have eight tables."""
ROW_STEP = 8
"""Elements: where groups share no extent, rows of their matrices begin at multiples of it, or of 16
bytes where these are more elements; see `row_step`."""
OFFSETS = "offsets"
"""Where groups begin along the axis that they part, and where the last one ends: a table, or of
groups that share no extent three."""
AXES = ("m", "n", "k")
OFFSETS_OF = {axis: f"{axis}_{OFFSETS}" for axis in AXES}
"""These three: rows of the array that a call is given."""
TENSORS = {"A": "mk", "B": "kn", "C": "mn", "D": "mn"}
"""The axes of each matrix of the default problem."""
ARRAYS = {"A": "a", "B": "b", "C": "c", "D": "out"}
"""What a call has for each of them."""
GROUP_AXES = ("m", "k", "mnk")
"""The axes that groups may part."""


@dataclass(frozen=True)
class GemmProblem:
    """`D = alpha·A@B + beta·C` with A of m x k, B of k x n, C and D of m x n, all row-major.

    Args:
        dtype: of A and B: bf16, f16, f32 or f64, summed in f32 (f64 in f64); or i8 or u8, summed
            in i32, exactly modulo 2^32.
        out_dtype: of C and D; by default `dtype`, or i32 where A and B hold integers.
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
            another, row-major, each row beginning at a multiple of `ROW_STEP` elements (16 of i8
            and u8): what fills a row up is not read, and in D it may be overwritten. `offsets`
            (3 x (g + 1)) says for m, n and k where groups begin: group g has
            `offsets[0, g + 1] - offsets[0, g]` rows of A, and so on.
        epilogue: what becomes of the sums before they are stored as D: by default
            `alpha·acc + beta·C`; see `coordgraph.epilogue`.
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

    def __post_init__(self) -> None:
        object.__setattr__(self, "dtype", dtype(self.dtype).name)
        kind = dtype(self.dtype)
        if not kind.operand:
            operands = ", ".join(d.name for d in DTYPES.values() if d.operand)
            raise VerifyError(
                f"Gemm: dtype = {kind} is for offsets and sums; A and B hold {operands}"
            )
        out = dtype(kind.result if self.out_dtype is None else self.out_dtype)
        sums = dtype(kind.accumulator)
        object.__setattr__(self, "out_dtype", out.name)
        if not sums.becomes(out):
            stored = ", ".join(d.name for d in DTYPES.values() if sums.becomes(d))
            raise VerifyError(
                f"Gemm: out_dtype = {out}, but products of {kind} are summed in {sums}, and D may "
                f"hold {stored}"
            )
        for name in ("m", "n", "k"):
            if getattr(self, name) is None:
                continue
            extent, most = whole(getattr(self, name), f"Gemm: {name}"), self.largest(name)
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

        self._check_epilogue()

    def _check_epilogue(self) -> None:
        """Names are free, types go together, and the result can be stored."""
        function = self.epilogue
        if not isinstance(function, EpilogueFunction):
            raise VerifyError(
                f"Gemm: epilogue={function!r} is none; make one of a function with "
                "@coordgraph.epilogue.epilogue(…)"
            )
        out = self.out_dtype or self.dtype
        self._check_names(function)
        for operand in function.operands:
            wanted = NAMED.get(operand.name)
            if wanted is not None and wanted != operand.is_scalar:
                kind = "a number" if wanted else "a tensor"
                raise VerifyError(f"Gemm: the epilogue's operand '{operand.name}' must be {kind}")
            if (
                self.diagonal
                and not operand.is_scalar
                and operand.axes not in ("mn", "lmn", "l", "")
            ):
                raise VerifyError(
                    f"Gemm: operand {operand.name}: {operand.axes}: groups that share no extent "
                    "have operands of lmn (laid out as D), l (one element a group) or none"
                )
        kind, sums = function.kinds(self.accumulator, out).result, dtype(self.accumulator)
        if kind not in (sums.name, "f32"):
            raise VerifyError(
                f"Gemm: the epilogue {function.name} makes {kind} of sums in {sums}: convert it "
                f"with ep.cast(value, to='{sums if sums.is_float else 'f32'}')"
            )
        if not dtype(kind).becomes(dtype(out)):
            raise VerifyError(
                f"Gemm: the epilogue {function.name} makes {kind} and D holds {out}: convert it "
                f"with ep.cast(value, to='{dtype(out).accumulator}')"
            )

    def _check_names(self, function: EpilogueFunction) -> None:
        """No operand has the name of something else in a kernel."""
        for operand in function.operands:
            if operand.name in RESERVED:
                raise VerifyError(
                    f"Gemm: the epilogue's operand '{operand.name}' has a name that means "
                    "something else in a kernel; rename it"
                )
            for other in function.tensors:
                if other.optional and operand.name == read_of(tensor_of(other.name)):
                    raise VerifyError(
                        f"Gemm: the epilogue's operand '{operand.name}' has the name of the "
                        f"parameter that says whether '{other.name}' is read; rename it"
                    )

    @property
    def operands(self) -> dict[str, Operand]:
        """The epilogue's operands in memory, by the names of their tensors."""
        return {tensor_of(o.name): o for o in self.epilogue.tensors}

    @property
    def axes(self) -> dict[str, str]:
        """The axes of every tensor, but the one that tells products apart."""
        found = {t: axes for t, axes in TENSORS.items() if t != "C"}
        return found | {t: o.axes.replace("l", "") for t, o in self.operands.items()}

    def is_apart(self, tensor: str) -> bool:
        """Whether a tensor has a matrix, a vector or an element of its own for every product."""
        if tensor in self.operands:
            axes = self.operands[tensor].axes
            return "l" in axes and bool(self.leading) and not any(map(self.ragged, axes))
        return tensor in self.batched_tensors

    def ragged(self, axis: str) -> bool:
        """Whether groups part the axis `m`, `n` or `k`: how long it is in each is data."""
        return self.grouped and axis in self.group_axis

    @property
    def diagonal(self) -> bool:
        """Whether groups share no extent: all tensors are block-diagonal matrices, so to speak."""
        return self.grouped and self.group_axis == "mnk"

    def offsets(self, axis: str) -> str:
        """The table with the start of each group along an axis, and the end of the last group."""
        return OFFSETS_OF[axis] if self.diagonal else OFFSETS

    def tile_starts(self, axis: str) -> str:
        """The table of how many tiles along such an axis the groups before have."""
        return f"{axis}_tile_starts" if self.diagonal else "tile_starts"

    def largest(self, axis: str) -> int:
        """The largest extent along `m`, `n` or `k`: of all groups, where they part that axis."""
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
        there = [
            t for t in TENSORS if t != "C" or "l" in getattr(self.operands.get("C"), "axes", "")
        ]
        if self.batched:
            return "".join(there)
        return "".join(
            t for t in there if self.grouped and not set(self.group_axis) & {*TENSORS[t]}
        )

    @property
    def accumulator(self) -> str:
        """The type in which products are summed, and of alpha and beta."""
        return dtype(self.dtype).accumulator


def tensor_of(operand: str) -> str:
    """The tensor of an epilogue's operand: `C` of `c`, like A and B, else of the same name."""
    return "C" if operand == "c" else operand


def read_of(tensor: str) -> str:
    """The parameter that says whether an optional operand of the epilogue is read."""
    return f"read_{'c' if tensor == 'C' else tensor}"


def stride_of(tensor: str) -> str:
    """The parameter that says how far one matrix of a batch is from the next, in elements."""
    return f"stride_{tensor.lower()}"


def row_step(kind: str) -> int:
    """Elements of a type of which rows begin at multiples, where groups share no extent."""
    return max(ROW_STEP, dtype(kind).chunk)


def elements_of(tensor: str) -> str:
    """The parameter that says how many elements a vector of matrices has; operands' are D's."""
    return f"elements_{tensor.lower() if tensor in ('A', 'B') else 'd'}"
