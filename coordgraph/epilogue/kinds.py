"""Kinds (f32, f64, i32 or bool) of the values of an epilogue function."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from coordgraph.epilogue.operand import Operand
from coordgraph.epilogue.operation import FLOATS, QUANTIZED
from coordgraph.epilogue.output import Output
from coordgraph.epilogue.values import Argument, Step, fits_float, known
from coordgraph.errors import VerifyError
from coordgraph.tensors import dtype

__all__ = ["Kinds", "kinds_of", "value_kind"]


@dataclass(frozen=True)
class Kinds:
    """The kinds (f32, f64, i32, bool) of all values of an epilogue function.

    Args:
        operands: the kind of each operand, by operand name.
        steps: the kind of each step's value, in the order of steps.
        result: the kind of the function's result.
        outputs: the kind of the value of each output besides D, by output name.
    """

    operands: Mapping[str, str]
    steps: tuple[str, ...]
    result: str
    outputs: Mapping[str, str]


def value_kind(name: str, accumulator: str) -> str:
    """The kind (f32, f64 or i32) to which an epilogue converts elements of type `name`.

    The kind is the type in which products of such elements are summed; f32 becomes f64 if
    `accumulator` is f64.
    """
    kind = dtype(name).accumulator
    return "f64" if kind == "f32" and accumulator == "f64" else kind


def _operand_kind(operand: Operand, accumulator: str, default: str) -> str:
    """The kind (f32, f64 or i32) to which an epilogue converts the elements of an operand.

    An index is an i32. An operand without a declared type has the accumulator's kind if it is a
    scalar, or if both D's type and the accumulator's are floats; otherwise it has the kind of D's
    type, `default`.
    """
    if operand.index:
        return "i32"
    if operand.summed:
        return accumulator
    if operand.dtype:
        return value_kind(operand.dtype, accumulator)
    kind = value_kind(default, accumulator)
    if not operand.axes or (kind in FLOATS and accumulator in FLOATS):
        return accumulator
    return kind


def _unfit(number: bool | int | float, kind: str) -> str:
    """The end of an error message: why `number` cannot have the kind `kind`, and what to do.

    '' if `number` can have this kind.
    """
    if kind in FLOATS:
        return "" if fits_float(number) else f"it is too large for {kind}; use a smaller number"
    if kind != "i32":
        return ""
    if isinstance(number, float) and not number.is_integer():
        return "use ep.cast(value, to='f32') first"
    kept = dtype("i32")
    if kept.least <= number <= kept.largest:
        return ""
    return f"i32 holds {kept.least} to {kept.largest}; use ep.cast(value, to='f32') first"


@lru_cache(maxsize=256)
def kinds_of(
    name: str,
    sums: tuple[str, ...],
    declared: tuple[Operand, ...],
    every: tuple[Step, ...],
    result: Argument,
    outputs: tuple[Output, ...],
    accumulator: str,
    default: str,
) -> Kinds:
    """The kinds (f32, f64, i32 or bool) of all values of an epilogue function.

    Args:
        name: the name of the function, for error messages.
        sums: the names of the sums of products.
        declared: the operands.
        every: the steps in order.
        result: the name of the function's result.
        outputs: the outputs besides D.
        accumulator: the element type of the sums.
        default: the element type of D, and of operands with axes but without a declared type.

    Raises:
        VerifyError: the arguments of a step differ in kind, or have a kind that the step's
            operation does not support.
    """
    operands = {o.name: _operand_kind(o, accumulator, default) for o in declared}
    found, steps = {**dict.fromkeys(sums, accumulator), **operands}, list[str]()
    for number, step in enumerate(every):
        operation = known(step.operation)
        options = {**operation.options, **dict(step.constants)}
        given = [found[a] if isinstance(a, str) else "" for a in step.arguments]
        if step.operation != "cast" and (whole := next((k for k in given if k in QUANTIZED), "")):
            raise VerifyError(
                f"epilogue {name}: {step.operation} takes no quantized value ({whole}); quantize "
                "the last value of an output, or convert it by ep.cast(value, to='f32')"
            )
        plain = next((k for k in given if k not in ("", "bool")), "")
        default_kind = plain or next(filter(None, given), accumulator)
        if step.operation == "where" and not plain:
            default_kind = accumulator
        filled = tuple(kind or default_kind for kind in given)
        for argument, kind in zip(step.arguments, filled, strict=True):
            if not isinstance(argument, str) and (why := _unfit(argument, kind)):
                raise VerifyError(
                    f"epilogue {name}: {step.operation} combines a value of type {kind} "
                    f"with {argument}, which is no value of {kind}: {why}"
                )
        try:
            kind = operation.kind(filled, **options)
        except VerifyError as error:
            raise VerifyError(f"epilogue {name}: {error}") from error
        steps.append(kind)
        found[f"%{number}"] = kind
    stored = {o.name: found[str(o.value)] for o in outputs}
    return Kinds(operands, tuple(steps), found[str(result)], stored)
