"""Products with an epilogue, or with a table of rows, in programs that JAX traces."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from codegen.jax.calls import Options, call, element_type, shape_of_product
from codegen.jax.checks import check_product, check_type
from coordgraph import Gemm, LaunchError
from coordgraph.epilogue import ALPHA_BETA, EpilogueFunction, function_text
from coordgraph.gemm import ROWS
from coordgraph.interpreter.arguments import numpy_dtype, with_defaults

__all__ = ["product_with_epilogue"]


def product_with_epilogue(
    a: Any,
    b: Any,
    options: Options,
    kind: Any,
    epilogue: EpilogueFunction | None,
    rows: Any,
    operands: Mapping[str, Any],
) -> tuple[Any, ...]:
    """D and the other outputs of the epilogue, computed from A and B by one kernel.

    Args:
        a, b: A and B, of two or more axes.
        options: the options of the product.
        kind: the element type of D; None for the default type.
        epilogue: the epilogue; None is A·B.
        rows: the table of the rows of A to read, or None.
        operands: the operands of the epilogue, by name.

    Returns:
        D (None if the epilogue does not store it), then the outputs in the order of declaration.

    Raises:
        LaunchError: shapes or types do not fit, or the arguments need what traced programs do not
            have, such as an output that reduces rows.
    """
    function = _checked(ALPHA_BETA if epilogue is None else epilogue, operands, given=epilogue)
    scalars = {operand.name for operand in function.scalars}
    numbers = {name: value for name, value in operands.items() if name in scalars}
    for name, value in numbers.items():
        if not isinstance(value, (int, float)):
            raise LaunchError(
                f"{name} is {type(value).__name__}, but a number of the epilogue is part of the "
                "traced program; pass a Python number, or declare the operand with "
                "ep.operand(in_memory=True) and pass an array"
            )
    arrays = {name: jnp.asarray(x) for name, x in operands.items() if name not in scalars}
    if rows is not None:
        arrays[ROWS] = _table(rows)
    height = None if rows is None else arrays[ROWS].shape[0]
    shape = shape_of_product(a, b, options, sums=len(function.sums), rows=height)
    results = {
        name: jax.ShapeDtypeStruct(shape, stored)
        for name, stored in _stored(function, a.dtype, kind, options).items()
    }
    check_product(function, {"a": a, "b": b, **arrays}, results, options, numbers)
    product = jax.custom_jvp(
        partial(
            _call,
            results=results,
            options=options,
            vmap_method="sequential",
            epilogue=function_text(function),
            names=tuple(arrays),
            numbers=numbers,
        )
    )
    product.defjvp(_no_gradient)
    found = product(a, b, *arrays.values())
    return found if function.stores_d else (None, *found)


def _call(*inputs: Any, results: Any, options: Options, **rest: Any) -> tuple[Any, ...]:
    return call(results, inputs, options, **rest)


def _checked(
    function: EpilogueFunction, operands: Mapping[str, Any], given: EpilogueFunction | None
) -> EpilogueFunction:
    """The epilogue, if traced programs can apply it.

    Raises:
        LaunchError: there are operands but no epilogue; the epilogue is not traced, or reduces rows
            or all of D; an operand is missing or unknown; or a call passes an array for an output.
    """
    if given is None and operands:
        raise LaunchError(
            f"matmul of JAX has no argument {', '.join(operands)}; for an operand of an epilogue, "
            "also pass epilogue=…"
        )
    if not isinstance(function, EpilogueFunction):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise LaunchError(
            f"epilogue = {function!r} is not a traced epilogue; make one from a function with "
            "@coordgraph.epilogue.epilogue(…)"
        )
    for output in function.outputs:
        if output.reduce:
            raise LaunchError(
                f"the output {output.name} of the epilogue {function.name} is reduced by "
                f"'{output.reduce}', which kernels in traced programs do not do: the number of "
                "partial results depends on the kernel, which is chosen at launch, but XLA needs "
                "the number when it compiles. Declare "
                f"{output.name}=ep.output('mn'), and reduce the returned array by jax.numpy; or "
                "call codegen.matmul outside of jax.jit"
            )
        if output.name in operands:
            raise LaunchError(
                f"{output.name} is an output of the epilogue, for which XLA makes the array; leave "
                f"out the argument {output.name}"
            )
    with_defaults(function, operands)
    return function


def _table(rows: Any) -> Any:
    """The table of row numbers as an array.

    Raises:
        LaunchError: the table is not a vector of i32.
    """
    table = jnp.asarray(rows)
    if table.ndim != 1 or table.dtype != np.int32:
        raise LaunchError(
            f"rows is {table.dtype} of shape {table.shape}, but must be an int32 vector of the "
            "row numbers of a; convert it, as by rows.astype('int32')"
        )
    return table


def _stored(
    function: EpilogueFunction, factors: Any, kind: Any, options: Options
) -> dict[str, np.dtype[Any]]:
    """The element types of the tensors that the kernel stores, by name, D first.

    Args:
        function: the epilogue.
        factors: the element type of A and B.
        kind: the element type of D; None for the default type.
        options: the options of the product.

    Raises:
        LaunchError: XLA passes no kernel arrays of one of the types, or D is not stored but has a
            type.
        VerifyError: D cannot have the type `kind`.
    """
    if kind is not None and not function.stores_d:
        raise LaunchError(
            f"preferred_element_type is the type of D, but the epilogue {function.name} does not "
            "store D; leave it out, and declare the types of outputs, as in ep.output('mn', 'f32')"
        )
    gemm = Gemm(
        element_type(factors) or "",
        None if kind is None else element_type(kind),
        epilogue=function,
        parts=options.parts,
    )
    types = {"D": gemm.out_dtype or gemm.dtype} if function.stores_d else {}
    types |= {name: gemm.stored_type(name) for name in gemm.outputs}
    found = {name: numpy_dtype(stored) for name, stored in types.items()}
    for name, stored in found.items():
        check_type(f"the result {name} of the epilogue {function.name}", stored)
    return found


def _no_gradient(primals: Any, tangents: Any) -> Any:
    raise LaunchError(
        "a product with an epilogue or with rows has no gradient; apply the function to matmul's "
        "result and select rows before matmul, or use jax.lax.stop_gradient"
    )
