"""Checks of a `GemmProblem`: its epilogue, names of operands and outputs, layouts and tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Protocol

from coordgraph.epilogue import EpilogueFunction, Operand, Output
from coordgraph.epilogue.operation import FLOATS, QUANTIZED
from coordgraph.errors import VerifyError
from coordgraph.parameter_names import ld_of, read_of, step_of, stride_of, tensor_of
from coordgraph.problem_names import GROUP_AXES, IS_NUMBER, RESERVED, ROWS, TARGETS
from coordgraph.tensors import dtype

__all__ = [
    "check_epilogue",
    "check_function",
    "check_groups",
    "check_tables_of_rows",
    "quantized",
    "sorted_layouts",
]


class Problem(Protocol):
    """The attributes of a `GemmProblem` that its checks read.

    A protocol avoids an import cycle: `coordgraph.gemm` imports this module.
    """

    # The fields of a frozen dataclass are read-only, hence properties.
    @property
    def dtype(self) -> str: ...
    @property
    def out_dtype(self) -> str | None: ...
    @property
    def n(self) -> int | None: ...
    @property
    def transpose_a(self) -> bool: ...
    @property
    def batched(self) -> bool: ...
    @property
    def grouped(self) -> bool: ...
    @property
    def group_axis(self) -> str: ...
    @property
    def parts(self) -> str: ...
    @property
    def epilogue(self) -> EpilogueFunction: ...
    @property
    def sums(self) -> int: ...
    @property
    def diagonal(self) -> bool: ...
    @property
    def accumulator(self) -> str: ...
    @property
    def operands(self) -> Mapping[str, Operand]: ...
    @property
    def outputs(self) -> Mapping[str, Output]: ...
    @property
    def axes(self) -> Mapping[str, str]: ...
    @property
    def matrices(self) -> tuple[str, ...]: ...
    @property
    def tables_of_rows(self) -> Mapping[str, str]: ...
    def ragged(self, axis: str) -> bool: ...
    def stored_type(self, output: str) -> str: ...


def check_function(function: object) -> None:
    """Check that a problem's epilogue is a function that the decorator `epilogue` has traced."""
    if not isinstance(function, EpilogueFunction):
        raise VerifyError(
            f"Gemm: epilogue={function!r} is not an epilogue; decorate a Python function with "
            "@coordgraph.epilogue.epilogue(…)"
        )


def quantized(gemm: Problem, out: str) -> str:
    """The 8-bit type to which the epilogue quantizes D, or '' if D is not quantized.

    Args:
        out: the element type of D.
    """
    if not isinstance(gemm.epilogue, EpilogueFunction):
        return ""
    kind = gemm.epilogue.kinds(dtype(gemm.dtype).accumulator, out).result
    return kind if kind in QUANTIZED else ""


def check_groups(gemm: Problem) -> None:
    """Check that the fields about batches and groups fit each other and A's layout."""
    if gemm.batched and gemm.grouped:
        raise VerifyError(
            "Gemm: products are batched or grouped, not both; set only one of batched=True and "
            "grouped=True"
        )
    if gemm.group_axis not in GROUP_AXES:
        *first, last = GROUP_AXES
        known = f"{', '.join(first)} or {last}"
        raise VerifyError(f"Gemm: group_axis={gemm.group_axis!r} must be {known}")
    if gemm.group_axis != "m" and not gemm.grouped:
        raise VerifyError(
            f"Gemm: group_axis={gemm.group_axis} has no effect without groups; set grouped=True"
        )
    if gemm.ragged("m") and gemm.transpose_a and not gemm.diagonal:
        raise VerifyError(
            "Gemm: with group_axis=m, groups are rows of A, so A cannot be given as its "
            "transpose; set transpose_a=False"
        )
    if gemm.diagonal and (fixed := [x for x in "mnk" if getattr(gemm, x) is not None]):
        raise VerifyError(
            f"Gemm: {', '.join(fixed)} cannot be fixed with group_axis={gemm.group_axis}: "
            "every group has its own extents, given by offsets at launch; leave "
            f"{', '.join(fixed)} as None"
        )


def check_tables_of_rows(gemm: Problem) -> None:
    """Check that the other fields of a problem allow it to gather or scatter rows."""
    for name, given in gemm.tables_of_rows.items():
        field = {ROWS: "gathered_rows", TARGETS: "scattered_rows"}[name]
        if gemm.batched or (gemm.grouped and gemm.group_axis != "m"):
            kind = "batched=True" if gemm.batched else f"group_axis={gemm.group_axis}"
            raise VerifyError(
                f"Gemm: {field}=True has one table of the rows of all products, which {kind} "
                "does not allow; use a single product, or group_axis=m"
            )
        if given == "A" and gemm.transpose_a:
            raise VerifyError(
                f"Gemm: {field}=True reads whole rows of A, so A cannot be given as its "
                "transpose; set transpose_a=False"
            )


def sorted_layouts(gemm: Problem) -> dict[str, tuple[str, ...]]:
    """Check the fields that name tensors, such as `leading_dimensions`, and sort their names.

    Returns:
        For each field, its names in the order in which the problem lists its tensors.

    Raises:
        VerifyError: a field has a value that it does not allow, a field cannot be combined with the
            problem's groups, or the epilogue has an operand or output with the name of the launch
            parameter of a leading dimension.
    """
    others = {**gemm.operands, **gemm.outputs}
    operands = tuple(name for name in gemm.matrices if name in others)
    stepped = ("D",) * gemm.epilogue.stores_d + tuple(
        name
        for name, each in others.items()
        if set(gemm.axes[name]) & set("mn") and not (isinstance(each, Output) and each.reduce)
    )
    fields = {
        "leading_dimensions": gemm.matrices,
        "transposed_operands": operands,
        "element_steps": stepped,
    }
    found = dict[str, tuple[str, ...]]()
    for field, known in fields.items():
        kinds = "D, operands and outputs" if field == "element_steps" else "matrices"
        given = getattr(gemm, field)
        if isinstance(given, str) or not all(isinstance(name, str) for name in given):
            raise VerifyError(f"Gemm: {field}={given!r} must be names of tensors, as in ('C',)")
        for name in given:
            if name not in known:
                raise VerifyError(
                    f"Gemm: {field} has '{name}', but only {kinds} can be in it; choose from "
                    f"{', '.join(known) or 'none'}"
                )
        if given and (gemm.diagonal or (gemm.grouped and field == "transposed_operands")):
            raise VerifyError(
                f"Gemm: {field}={given!r} cannot be used with grouped=True and group_axis="
                f"{gemm.group_axis}; leave {field} out"
            )
        found[field] = tuple(name for name in known if name in given)
    for name in found["element_steps"]:
        if name in gemm.matrices and name not in found["leading_dimensions"]:
            raise VerifyError(
                f"Gemm: element_steps has '{name}', whose rows are then apart as well; add "
                f"'{name}' to leading_dimensions"
            )
    names = {of(name) for name in found["leading_dimensions"] for of in (ld_of, stride_of)}
    names |= {of(name) for name in found["element_steps"] for of in (step_of, stride_of)}
    for what, name in _named(gemm.epilogue):
        if name in names:
            raise VerifyError(
                f"Gemm: the epilogue's {what} '{name}' has the name of a kernel "
                f"parameter for a stride; rename the {what}"
            )
    return found


def check_epilogue(gemm: Problem) -> None:
    """Check the names and the kinds of the epilogue's operands, and the type of its result."""
    function = gemm.epilogue
    out = gemm.out_dtype or gemm.dtype
    _check_names(function)
    for operand in function.operands:
        number = IS_NUMBER.get(operand.name)
        if number is not None and (number != operand.is_scalar or operand.index):
            kind = "a number" if number else "a tensor"
            raise VerifyError(
                f"Gemm: the epilogue's operand '{operand.name}' is not {kind}, which kernels "
                f"expect under this name; declare {kind}, or rename the operand"
            )
        stored = not operand.is_scalar and not operand.index
        if gemm.diagonal and stored and operand.axes not in ("mn", "lmn", "l", ""):
            raise VerifyError(
                f"Gemm: the epilogue's operand '{operand.name}' has axes '{operand.axes}', "
                "which group_axis=mnk does not allow; use 'lmn' (stored like D), 'l' (one "
                "element per group) or '' (one element)"
            )
    _check_outputs(gemm, function, out)
    if not function.stores_d:
        _check_unstored(gemm)
        return
    kind, sums = function.kinds(gemm.accumulator, out).result, dtype(gemm.accumulator)
    if kind not in (sums.name, "f32", *QUANTIZED):
        raise VerifyError(
            f"Gemm: the epilogue {function.name} returns {kind}, which cannot be computed from "
            f"sums in {sums}; convert its result with "
            f"ep.cast(value, to='{sums if sums.is_float else 'f32'}')"
        )
    if not dtype(kind).becomes(dtype(out)):
        other = f", or store D as {kind}: pass codegen.matmul an array 'out' of that type, "
        other += f"or set Gemm(out_dtype='{kind}')"
        other = "" if kind in QUANTIZED else other
        raise VerifyError(
            f"Gemm: the epilogue {function.name} returns {kind}, which cannot be stored in D "
            f"of {out}; convert its result with ep.cast(value, to='{dtype(out).accumulator}')"
            f"{other}"
        )


def _check_outputs(gemm: Problem, function: EpilogueFunction, out: str) -> None:
    """Check that each output besides D can be stored as elements of its type."""
    kinds = function.kinds(gemm.accumulator, out).outputs
    for output in function.outputs:
        kind, stored = kinds[output.name], dtype(gemm.stored_type(output.name))
        if output.reduce and (kind not in FLOATS or stored.name != kind):
            raise VerifyError(
                f"Gemm: the epilogue {function.name} reduces {kind} for the output "
                f"'{output.name}' of {stored}, but a reduced value must be f32 or f64, and its "
                "output must have the same type; convert the value with ep.cast(value, to='f32'), "
                "and declare the output without dtype"
            )
        if output.reduce and gemm.diagonal:
            raise VerifyError(
                f"Gemm: the output '{output.name}' reduces rows, which group_axis=mnk does not "
                "allow, because each product has its own number of column tiles; reduce D "
                "after the launch"
            )
        if output.reduce and not output.axes and gemm.ragged("m"):
            raise VerifyError(
                f"Gemm: the output '{output.name}' reduces all rows, which group_axis="
                f"{gemm.group_axis} does not allow, because rows that belong to no group have no "
                f"value; declare {output.name}=ep.output('m', reduce='{output.reduce}'), "
                "and reduce the rows of groups"
            )
        if kind == "bool" or not dtype(kind).becomes(stored):
            raise VerifyError(
                f"Gemm: the epilogue {function.name} returns {kind} for the output "
                f"'{output.name}', which cannot be stored as {stored}; convert the value with "
                f"ep.cast(value, to='{stored.accumulator}')"
            )


def _check_unstored(gemm: Problem) -> None:
    """Refuse a problem that says where rows of D are stored, if its epilogue does not store D."""
    for field, given in (
        ("scattered_rows=True", TARGETS in gemm.tables_of_rows),
        ("group_axis=mnk", gemm.diagonal),
    ):
        if given:
            raise VerifyError(
                f"Gemm: the epilogue {gemm.epilogue.name} does not store D, which {field} does not "
                f"allow, because {field} says where rows of D are stored; return a value for D, or "
                f"leave {field} out"
            )


def _check_names(function: EpilogueFunction) -> None:
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


def _named(function: EpilogueFunction) -> Iterator[tuple[str, str]]:
    """(`operand`, name) of each operand, then (`output`, name) of each output besides D."""
    yield from (("operand", o.name) for o in function.operands)
    yield from (("output", o.name) for o in function.outputs)
