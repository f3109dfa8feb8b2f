"""Checks of products while JAX traces a program, before XLA compiles and runs it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from codegen.call.arrays import row_major
from codegen.call.checks import check_call
from codegen.call.describe import describe
from codegen.call.views import TensorView
from codegen.jax.calls import Options, element_type
from coordgraph import LaunchError
from coordgraph.elements import DTYPES
from coordgraph.epilogue import EpilogueFunction
from coordgraph.gemm import ROWS, tensor_of
from coordgraph.interpreter.arguments import numpy_dtype

__all__ = ["check_product", "check_type"]

APART = 1 << 62
"""Distance in bytes between the addresses that `check_product` gives two arrays. Traced arrays have
no addresses; with these, no two arrays share memory."""


def check_type(name: str, given: Any, *, factor: bool = False) -> None:
    """Check that kernels that XLA calls read and write an element type.

    Args:
        name: the argument or result that has the type, for the message.
        given: the element type, as JAX names it.
        factor: whether the type is that of A and B, which cannot be i32.

    Raises:
        LaunchError: kernels do not have the type.
    """
    known = [x for x in DTYPES.values() if x.operand or not factor]
    known = [x for x in known if element_type(numpy_dtype(x.name)) is not None]
    if element_type(given) not in [x.name for x in known]:
        names = ", ".join(str(numpy_dtype(x.name)) for x in known)
        raise LaunchError(
            f"{name} has the type {np.dtype(given)}, which kernels do not read or write in "
            f"programs of JAX; convert it to one of {names}"
        )


def check_product(
    function: EpilogueFunction,
    inputs: Mapping[str, Any],
    results: Mapping[str, Any],
    options: Options,
    numbers: Mapping[str, float],
) -> None:
    """Check a product with an epilogue by the rules of `codegen.matmul`, which XLA will call.

    A product with an extent that is a symbol, as in `jax.export`, is not checked here.

    Args:
        function: the epilogue.
        inputs: A, B, the operands and the table of rows, by the names of `codegen.matmul`'s
            arguments. Only shapes and element types are read.
        results: shape and type of each array that the kernel stores, by the name of the tensor.
        options: the options of the product.
        numbers: the values of the epilogue's numbers, by name.

    Raises:
        LaunchError, VerifyError: shapes or types do not fit, as for `codegen.matmul`.
    """
    for name, array in inputs.items():
        check_type(name, array.dtype, factor=name in ("a", "b"))
    arrays = {"A": inputs["a"], "B": inputs["b"], "C": None, "D": None, **results}
    arrays |= {tensor_of(name): x for name, x in inputs.items() if name not in ("a", "b")}
    given = {name: x for name, x in arrays.items() if x is not None}
    if not all(isinstance(extent, int) for x in given.values() for extent in x.shape):
        return
    views = {
        name: TensorView(
            place * APART, tuple(x.shape), row_major(x.shape), str(element_type(x.dtype))
        )
        for place, (name, x) in enumerate(given.items())
    }
    beta = float(numbers.get("beta", 0.0))
    call = describe(
        {name: views.get(name) for name in arrays},
        beta=beta,
        transpose_a=options.transpose_a,
        transpose_b=options.transpose_b,
        parts=options.parts,
        epilogue=function,
        gathered_rows=ROWS in inputs,
    )
    graph = call.request.any_size.graph()
    check_call(graph, call.views, scalars={**numbers, "beta": beta})
