"""Check the arguments of a call against a graph's tensors, and read sizes from array shapes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import ml_dtypes
import numpy as np
import numpy.typing as npt
from sympy import Integer, Symbol

from coordgraph.elements import DType, dtype
from coordgraph.epilogue import ALPHA_BETA, EpilogueFunction
from coordgraph.errors import LaunchError, VerifyError
from coordgraph.gemm import GemmProblem, read_of
from coordgraph.integers import evaluate, to_text
from coordgraph.interpreter.layout import read_strides
from coordgraph.kernel import KernelGraph
from coordgraph.tensors import Role, Tensor
from coordgraph.validation import a_type, whole

__all__ = [
    "DEFAULTS",
    "Array",
    "as_numpy",
    "bind",
    "check_scaled",
    "factor_of_c",
    "host_array",
    "numpy_dtype",
    "reads",
    "scalar",
    "scalars",
    "unwritten",
    "with_defaults",
]

Array: TypeAlias = npt.NDArray[Any]


def numpy_dtype(name: str) -> np.dtype[Any]:
    """The numpy dtype of the element type `name`, from ml_dtypes if numpy lacks it (bf16)."""
    library = dtype(name).library
    return np.dtype(getattr(np, library, None) or getattr(ml_dtypes, library))


def unwritten(name: str) -> Any:
    """The value that fills unwritten elements of the type `name`: NaN, or the least integer."""
    kind = dtype(name)
    return np.nan if kind.is_float else kind.least


def scalars(gemm: GemmProblem, alpha: Any, beta: Any) -> tuple[float, float]:
    """Convert alpha and beta: to int if the accumulator has an integer type, else to float.

    Raises:
        LaunchError: alpha or beta is not a number; or the accumulator has an integer type, and
            alpha or beta is not a whole number in the type's range; or the accumulator has an
            integer type, C has another type, and beta is not 0.
    """
    sums = dtype(gemm.accumulator)
    found = scalar(alpha, "alpha", sums), scalar(beta, "beta", sums)
    if found[1] and not sums.is_float and gemm.out_dtype != sums.name:
        raise LaunchError(
            f"beta = {beta} would add C, whose type is {gemm.out_dtype}, to sums of type {sums}, "
            f"and kernels add equal types only; make the kernel with Gemm(out_dtype='{sums}'), or "
            "add C to D afterwards"
        )
    return found


def scalar(value: Any, what: str, sums: DType) -> float:
    """A scalar operand of the epilogue: int if `sums` is an integer type, else float.

    Args:
        value: the number that the caller passed.
        what: the operand's name, for error messages.
        sums: the element type in which the epilogue computes with the operand.

    Raises:
        LaunchError: `value` is not a number; or `sums` is an integer type, and `value` is not a
            whole number in its range.
    """
    try:
        if isinstance(value, str | bytes):  # refuse text: float("2") below would accept it
            raise TypeError
        found = float(value)
    except (TypeError, ValueError, OverflowError):
        raise LaunchError(f"{what} = {value!r} is not a number; give an int or a float") from None
    if sums.is_float:
        return found
    if not found.is_integer() or not sums.least <= found <= sums.largest:
        whole = f"it must be a whole number from {sums.least} to {sums.largest}"
        if what in DEFAULTS:
            raise LaunchError(
                f"{what} = {value} scales sums of type {sums}, so {whole}; to use another factor, "
                "scale D after the launch"
            )
        raise LaunchError(
            f"{what} = {value} is an operand of type {sums}, so {whole}; for other numbers declare "
            f'{what}=ep.operand("", "f32"), and convert the sums with ep.cast(acc, to="f32")'
        )
    return int(found)


def host_array(value: object, what: str) -> Array:
    """Convert `value` to a plain `numpy.ndarray`; subclasses like `matrix` may index differently.

    Args:
        value: the array that the caller passed.
        what: the array's name, for error messages.

    Raises:
        LaunchError: `value` is not a numpy array, or is a masked array.
    """
    if isinstance(value, np.ma.MaskedArray):
        raise LaunchError(
            f"{what} is a masked array, and kernels read every element; pass {what}.filled(0) to "
            f"replace masked elements, or {what}.data to ignore the mask"
        )
    if not isinstance(value, np.ndarray):
        raise LaunchError(
            f"{what} is {a_type(value)}, not a numpy array; convert it with {as_numpy(value, what)}"
        )
    return value.view(np.ndarray)


def as_numpy(value: object, what: str) -> str:
    """The expression, for an error message, that makes a numpy array of another library's array.

    For a PyTorch tensor the array shares the memory. PyTorch converts no tensor that requires a
    gradient, and none of a type that only `ml_dtypes` adds to numpy.

    Args:
        value: the array.
        what: the array's name.
    """
    if not hasattr(value, "detach"):
        return f"numpy.asarray({what})"
    tensor: Any = value
    found = f"{what}.detach()" + ("" if tensor.device.type == "cpu" else ".cpu()")
    kind = str(tensor.dtype).removeprefix("torch.")
    if kind.startswith(("bfloat16", "float8")):
        integers = "uint8" if kind.startswith("float8") else "int16"
        return f"{found}.view(torch.{integers}).numpy().view(ml_dtypes.{kind})"
    return f"{found}.numpy()"


DEFAULTS = {"c": None, "alpha": 1.0, "beta": 0.0}
"""Default values of the epilogue operands that every call accepts.

`alpha` scales the product A·B, `beta` scales the matrix C; None means that C is not passed.
"""


def factor_of_c(beta: Any, c: Any, function: EpilogueFunction) -> Any:
    """The factor of C that a call passes, or its default if the argument `beta` is None.

    The default is 1 if the call passes C to the default epilogue, and 0 otherwise.
    """
    if beta is not None:
        return beta
    return 1.0 if c is not None and function == ALPHA_BETA else 0.0


def with_defaults(function: EpilogueFunction, given: Mapping[str, Any]) -> dict[str, Any]:
    """Values of an epilogue's operands by name: the caller's value, else the operand's default.

    Indices, which the kernel computes, are left out.

    Args:
        function: the epilogue.
        given: the values that the caller passed, by operand name.

    Raises:
        LaunchError: the epilogue lacks an operand in `given` (c, alpha and beta are always accepted
            with their default values), an operand in `given` is an index, or an operand without a
            default is missing.
    """
    found: dict[str, Any] = {}
    for name, value in given.items():
        operand = function.operand(name)
        if operand is not None and operand.index:
            raise LaunchError(
                f"{name} is an index of the epilogue {function.name}, and the kernel computes it; "
                f"leave out {name}=…"
            )
        if operand is not None:
            found[name] = value
        elif name not in DEFAULTS or not _is_default(name, value):
            names = ", ".join(o.name for o in function.operands if not o.index) or "none"
            hint = "; give out=, an array of that type" if name == "out_dtype" else ""
            raise LaunchError(
                f"{name} is no operand of the epilogue {function.name}; its operands are: {names}"
                f"{hint}"
            )
    for operand in function.operands:
        if operand.index:
            continue
        if operand.name in DEFAULTS:
            found.setdefault(operand.name, DEFAULTS[operand.name])
        if found.get(operand.name) is None and not operand.optional:
            kind = "a number" if operand.is_scalar else "an array"
            raise LaunchError(
                f"{operand.name} is missing: the epilogue {function.name} needs {kind} of this "
                f"name; pass {operand.name}=…"
            )
    return found


def _is_default(name: str, value: Any) -> bool:
    default = DEFAULTS[name]
    return value is default or (default is not None and value == default)


def reads(
    gemm: GemmProblem, given: Mapping[str, bool], scalars: Mapping[str, Any]
) -> dict[str, int]:
    """The launch parameters `read_NAME`: 1 if the kernel must read an optional operand, else 0.

    The kernel does not read an operand that was not passed, or that the epilogue only uses
    multiplied by a scalar whose value is 0.

    Args:
        gemm: the problem, whose epilogue declares the operands.
        given: by tensor name, whether the caller passed the operand.
        scalars: the numbers that the caller passed, by operand name.
    """
    found: dict[str, int] = {}
    for tensor, operand in gemm.operands.items():
        if operand.optional:
            scale = gemm.epilogue.scale_of(operand.name)
            counts = not scale or bool(scalars.get(scale, 1) != 0)
            found[read_of(tensor)] = int(given.get(tensor, False) and counts)
    return found


def check_scaled(gemm: GemmProblem, given: Mapping[str, bool], scalars: Mapping[str, Any]) -> None:
    """Check that the caller passed C if beta, the factor of C, is not 0.

    Other optional operands may be left out, whatever the value of their factor: they are read as 0.

    Raises:
        LaunchError: beta is not 0, and C, which is optional, was not passed.
    """
    for tensor, operand in gemm.operands.items():
        counts = operand.optional and operand.name in DEFAULTS
        scale = gemm.epilogue.scale_of(operand.name) if counts else ""
        if scale and scalars.get(scale, 0) != 0 and not given.get(tensor, False):
            raise LaunchError(
                f"{scale} = {scalars[scale]} needs {operand.name}; pass {operand.name}, or "
                f"{scale}=0"
            )


def bind(
    graph: KernelGraph,
    inputs: tuple[Array, ...],
    operands: Mapping[str, Any],
    parameters: Mapping[str, int],
    tables: Mapping[str, Array],
) -> tuple[dict[str, Array], dict[str, float], dict[str, Any]]:
    """Check the arguments of a call and derive the values of all launch parameters.

    Args:
        graph: the kernel graph.
        inputs: the arrays A and B.
        operands: values of the epilogue's operands by operand name, as `with_defaults` returns
            them.
        parameters: values of launch parameters that the arrays do not determine.
        tables: entries of the graph's tables by table name.

    Returns:
        A tuple of three dictionaries: the arrays by tensor name; the scalar operands of the
            epilogue by operand name; and the values of all parameters and entries of all tables, by
            name.

    Raises:
        LaunchError: an array, number, parameter or table does not fit the graph.
    """
    gemm = graph.gemm
    arrays = _arrays(graph, inputs, operands, tables)
    kinds = gemm.epilogue.kinds(gemm.accumulator, gemm.out_dtype or gemm.dtype).operands
    numbers = {
        o.name: scalar(operands[o.name], o.name, dtype(kinds[o.name]))
        for o in gemm.epilogue.scalars
    }
    if gemm.epilogue == ALPHA_BETA:
        # Call `scalars` only for the error that it raises if C cannot be added to the sums.
        scalars(gemm, operands["alpha"], operands["beta"])
    given = {name: whole(value, name, LaunchError) for name, value in parameters.items()}
    for tensor in graph.tensors:
        if tensor.name in arrays and not tensor.role.finishes:
            _read_sizes(tensor, arrays[tensor.name], given)
    # Operands of the epilogue come last: A and B determine the sizes that operands must have.
    for tensor in graph.tensors:
        if tensor.name in arrays and tensor.role.finishes:
            _read_sizes(tensor, arrays[tensor.name], given)
    if gemm.part_width > 1 and gemm.n is None:
        # B has whole blocks of columns, so its shape gives an upper bound of n.
        columns = arrays["B"].shape[-2 if gemm.transpose_b else -1]
        given.setdefault("n", columns // gemm.sums)
    there = dict.fromkeys(arrays, True)
    check_scaled(gemm, there, numbers)
    given |= {n: r for n, r in reads(gemm, there, numbers).items() if n in graph.parameters}
    for tensor in graph.tensors:
        read_strides(tensor, arrays.get(tensor.name), given)
    entries = {t.name: [int(entry) for entry in arrays[t.name]] for t in _tables(graph)}
    values = graph.parameters.launch(given, entries)
    for name, array in arrays.items():
        shape = tuple(int(evaluate(extent, values)) for extent in graph.tensor(name).shape)
        if array.shape != shape:
            raise LaunchError(
                f"{name} has the shape {array.shape}, but the graph needs {shape}; pass an array "
                "of that shape"
            )
    return arrays, numbers, values


def _tables(graph: KernelGraph) -> list[Tensor]:
    return [t for t in graph.tensors if t.role is Role.TABLE]


def _arrays(
    graph: KernelGraph,
    inputs: tuple[Array, ...],
    operands: Mapping[str, Any],
    tables: Mapping[str, Array],
) -> dict[str, Array]:
    """The arrays of a call by tensor name: inputs, operands of the epilogue, and tables.

    Raises:
        LaunchError: an array is missing, the graph has no tensor for an array, or an array has
            another element type or number of axes than its tensor.
    """
    wanted = [t for t in graph.tensors if t.role is Role.INPUT]
    if len(wanted) != len(inputs):
        names = ", ".join(t.name for t in wanted)
        raise LaunchError(
            f"{len(inputs)} inputs are given, but the graph has {len(wanted)}; pass {names}"
        )
    arrays = {t.name: _typed(t, x) for t, x in zip(wanted, inputs, strict=True)}
    for name, operand in graph.gemm.operands.items():
        if (value := operands.get(operand.name)) is not None:
            if operand.in_memory and isinstance(value, np.ndarray) and not value.ndim:
                value = value.reshape(1)
            arrays[name] = _typed(graph.tensor(name), value)
    known = {t.name: t for t in _tables(graph)}
    if wrong := sorted(tables.keys() ^ known.keys()):
        what = "not a table of this graph; leave it out"
        if wrong[0] not in tables:
            what = f"a table of this graph, and is missing; pass it as tables={{'{wrong[0]}': …}}"
        raise LaunchError(f"the argument 'tables' does not fit the graph: {wrong[0]} is {what}")
    return arrays | {name: _typed(t, tables[name]) for name, t in known.items()}


def _typed(tensor: Tensor, value: object) -> Array:
    value = host_array(value, tensor.name)
    try:
        found = dtype(value.dtype.name).name
    except VerifyError:
        found = value.dtype.name
    if found != tensor.dtype:
        raise LaunchError(
            f"{tensor.name} has elements of type {found}; the graph needs {tensor.dtype}, so "
            "convert the array"
        )
    if value.ndim != len(tensor.shape):
        raise LaunchError(
            f"{tensor.name} has {value.ndim} axes, but the graph needs {len(tensor.shape)}; "
            "reshape the array"
        )
    return value


def _read_sizes(tensor: Tensor, array: Array, given: dict[str, int]) -> None:
    """Set launch parameters, such as m, that are extents of `tensor` to the extents of `array`.

    Args:
        tensor: the graph's tensor.
        array: the array that the caller passed for the tensor.
        given: values of launch parameters by name, to which the function adds.

    Raises:
        LaunchError: an extent of the array differs from the tensor's, or from the value in `given`.
    """
    for axis, (extent, found) in enumerate(zip(tensor.shape, array.shape, strict=True)):
        more, rest = extent.as_coeff_Add()
        times, symbol = rest.as_coeff_Mul()
        # The extent is a parameter (n), or a linear function of one: g + 1 entries of `offsets`,
        # or 2·n columns of B if the epilogue has two sums.
        if isinstance(symbol, Symbol):
            least = (found - int(more)) // int(times)
            expected = int(times) * given.setdefault(symbol.name, least) + int(more)
        elif isinstance(extent, Integer):
            expected = int(extent)
        else:
            continue
        if expected != found:
            shape = ", ".join(map(to_text, tensor.shape))
            raise LaunchError(
                f"{tensor.name} has the shape {array.shape}: axis {axis} of ({shape}) must be "
                f"{expected}; pass an array of that extent"
            )
