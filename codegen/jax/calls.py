"""Calls of the foreign function from traced programs: its arrays, attributes and results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from json import dumps
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from codegen.jax.launching import TARGET, register
from codegen.jax.xla_ffi import TYPES
from coordgraph import LaunchError
from coordgraph.gemm import PARTS
from coordgraph.interpreter.arguments import numpy_dtype

__all__ = ["Options", "call", "element_type", "shape_of_product"]

_NAMES = {numpy_dtype(name): name for name in TYPES.values()}
"""The names of the element types of arrays that XLA passes to kernels, by NumPy's types."""
register()  # at import, so that a program that another process exported finds the function


@dataclass(frozen=True)
class Options:
    """The options of a product that are attributes of the XLA call, in hashable form.

    Args:
        transpose_a, transpose_b: whether an array holds the transpose of each matrix.
        invariant: whether the bits of a row of D must not depend on the other rows.
        parts: where B has the columns of each sum of the epilogue; see `coordgraph.Gemm`.
    """

    transpose_a: bool = False
    transpose_b: bool = False
    invariant: bool = False
    parts: str = PARTS[0]


def element_type(array_type: Any) -> str | None:
    """The name of a JAX element type, such as `bf16`; None if XLA cannot pass it to kernels."""
    return _NAMES.get(np.dtype(array_type))


def shape_of_product(
    a: Any, b: Any, options: Options, *, sums: int = 1, rows: int | None = None
) -> tuple[int, ...]:
    """The shape (…, m, n) of D, for arrays of two or more axes.

    Args:
        a, b: A and B.
        options: whether A and B are given as their transposes.
        sums: number of sums of the epilogue; B has so many times the columns of D.
        rows: number of rows of A that a table selects; None without a table.

    Raises:
        LaunchError: the shapes do not fit.
    """
    m, k = reversed(a.shape[-2:]) if options.transpose_a else a.shape[-2:]
    of_b, n = reversed(b.shape[-2:]) if options.transpose_b else b.shape[-2:]
    shapes = f"a is {a.shape} and b is {b.shape}"
    if k != of_b:
        raise LaunchError(f"{shapes}: k would be {k} and {of_b}; pass arrays with the same k")
    if n % sums:
        raise LaunchError(
            f"{shapes}: the epilogue has {sums} sums, so b needs a multiple of {sums} columns, not "
            f"{n}; join the matrices of all sums along their columns"
        )
    try:
        batch = jnp.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    except ValueError as error:
        raise LaunchError(
            f"{shapes}, whose batch axes do not broadcast; pass arrays with equal batch axes"
        ) from error
    return (*batch, m if rows is None else rows, n // sums)


def call(
    results: Mapping[str, jax.ShapeDtypeStruct],
    inputs: Sequence[Any],
    options: Options,
    *,
    vmap_method: str,
    epilogue: str = "",
    names: Sequence[str] = (),
    numbers: Mapping[str, float] | None = None,
) -> tuple[Any, ...]:
    """The arrays that the kernel stores, computed by a foreign call of XLA.

    `codegen.jax.launching` describes the attributes of the call.

    Args:
        results: shape and type of each array that the kernel stores, by the name of the tensor.
        inputs: A, B, then one array for each of `names`.
        options: the options of the product.
        vmap_method: how JAX maps the call; see `jax.ffi.ffi_call`.
        epilogue: the text of the epilogue; '' for the product alone.
        names: arguments of `codegen.matmul` that get the further arrays: operands, or `rows`.
        numbers: numbers of the epilogue, by name.
    """
    found = jax.ffi.ffi_call(TARGET, tuple(results.values()), vmap_method=vmap_method)(
        *inputs,
        transpose_a=options.transpose_a,
        transpose_b=options.transpose_b,
        invariant=options.invariant,
        parts=options.parts,
        epilogue=epilogue,
        operands=",".join(names),
        numbers=dumps(dict(numbers or {})),
        outputs=",".join(results),
    )
    return tuple(found)
