"""`matmul` for JAX: `jax.numpy.matmul` by a generated kernel, with gradients."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from math import prod
from typing import Any

import jax
import jax.numpy as jnp

from codegen.jax.calls import Options, call, element_type, shape_of_product
from codegen.jax.checks import check_type
from codegen.jax.epilogues import product_with_epilogue
from coordgraph import Gemm, LaunchError
from coordgraph.elements import dtype
from coordgraph.epilogue import EpilogueFunction
from coordgraph.gemm import PARTS
from coordgraph.interpreter.arguments import numpy_dtype
from coordgraph.validation import flag

__all__ = ["matmul"]

_ELSEWHERE = {
    "out": "XLA makes the array of the result: leave out the argument",
    "stream": "XLA chooses the stream: leave out the argument",
    "targets": "scatter the rows of the result, as by y.at[targets].set(d)",
    "plan": "the cost model chooses the plan: leave out the argument",
    "tune": "measure plans by a call of codegen.matmul outside of jax.jit; its times are kept",
    "background": "the first call builds the kernel: leave out the argument",
}
"""For each argument of `codegen.matmul` that `matmul` lacks, by name: what to do instead."""


def matmul(
    a: Any,
    b: Any,
    *,
    transpose_a: bool = False,
    transpose_b: bool = False,
    preferred_element_type: Any = None,
    epilogue: EpilogueFunction | None = None,
    rows: Any = None,
    parts: str = PARTS[0],
    invariant: bool = False,
    **operands: Any,
) -> Any:
    """`jax.numpy.matmul`: the product of vectors, matrices, or batches of matrices.

    The function may be traced by `jax.jit`, `jax.grad` (in reverse mode) and `jax.vmap`. XLA stores
    arrays row-major, so `b.T` inside `jax.jit` is a copy: use `transpose_b=True` instead.

    Args:
        a: A (…, m, k), or a vector (k).
        b: B (…, k, n), or a vector (k). Axes before the last two are broadcast, without a copy.
            Unlike in `codegen.matmul`, the weights of an epilogue's sums are one array, no tuple.
        transpose_a, transpose_b: whether the array holds the transpose of each matrix: A as k x m,
            B as n x k. A vector is not transposed.
        preferred_element_type: element type of the result; by default that of A and B, or i32 for
            integers, or the type to which the epilogue quantizes D.
        epilogue: the function that computes D from A·B, traced by `coordgraph.epilogue.epilogue`;
            None is A·B. If it has s > 1 sums, B has s·n columns. Its outputs must not be reduced. A
            product with an epilogue has no gradient, and A and B have at most one batch axis. Under
            `jax.vmap`, the kernel is launched once for each example.
        rows: an int32 vector of m row numbers of A, whose row i is the row of A from which row i of
            D is computed; A is then a matrix. Kernels on GPUs do not check the numbers. The product
            has no gradient.
        parts: where B has the columns of each sum of an epilogue with several, `stacked` or
            `interleaved`; see `coordgraph.Gemm`.
        invariant: whether the bits of a row of D must not depend on m, the other rows or the plan,
            as for `codegen.matmul`.
        operands: operands of the epilogue by name: arrays, and Python numbers for its scalars.

    Returns:
        An array (…, m, n), without the axis of an argument that is a vector. If the epilogue has
        outputs besides D, a tuple of such arrays: D, or None if it is not stored, then the outputs
        in the order of their declaration.

    Raises:
        LaunchError: shapes or types of the arrays do not fit, or an argument of `codegen.matmul` is
            passed that traced programs lack.
        VerifyError: D cannot have the type `preferred_element_type`, or the tables and axes of the
            product exclude each other, as `rows` and a batch do.
        jax.errors.JaxRuntimeError: the device has no kernels for the element type. XLA raises this
            error when it runs the product. GPUs have kernels for bf16, f16 and i8. All other errors
            are raised while the product is traced.
    """
    for name in operands.keys() & _ELSEWHERE.keys():
        raise LaunchError(f"matmul of JAX has no argument {name}; {_ELSEWHERE[name]}")
    for name, given in (("a", a), ("b", b)):
        if isinstance(given, (list, tuple)):
            raise LaunchError(
                f"{name} is a {type(given).__name__}, but an array is needed; join the weights of "
                "an epilogue's sums along their columns, as by jnp.concatenate, or pass "
                "jnp.asarray(…)"
            )
    a, b = jnp.asarray(a), jnp.asarray(b)
    if a.dtype != b.dtype:
        raise LaunchError(
            f"a holds {a.dtype} and b holds {b.dtype}; convert them to one type, as by "
            f"b.astype({a.dtype!s})"
        )
    if not a.ndim or not b.ndim:
        raise LaunchError("matmul needs arrays with at least one axis; use * for scalars")
    kind = None if preferred_element_type is None else jnp.dtype(preferred_element_type)
    left = a[None, :] if a.ndim == 1 else a
    right = b[:, None] if b.ndim == 1 else b
    check_type("a", a.dtype, factor=True)
    if kind is not None:
        check_type("preferred_element_type", kind)
        Gemm(element_type(a.dtype) or "", element_type(kind))  # refuses types that D cannot have
    options = Options(
        flag(transpose_a, "transpose_a", LaunchError) and a.ndim > 1,
        flag(transpose_b, "transpose_b", LaunchError) and b.ndim > 1,
        flag(invariant, "invariant", LaunchError),
        parts,
    )
    if epilogue is None and rows is None and not operands and parts == PARTS[0]:
        found = (_product(left, right, options, kind or _default_type(a.dtype)),)
    else:
        found = product_with_epilogue(left, right, options, kind, epilogue, rows, operands)

    def without(d: Any) -> Any:
        """`d` without the axes of extent 1 that stand for vectors `a` and `b`; None stays None."""
        if d is not None and b.ndim == 1:
            d = d[..., 0]
        if d is None or a.ndim > 1:
            return d
        return d[..., 0] if b.ndim == 1 else d[..., 0, :]

    d, *others = map(without, found)
    return (d, *others) if others else d


def _default_type(factors: Any) -> Any:
    """The default element type of D, given `factors`, the element type of A and B.

    It is `factors` for floats of 16 bits or more, else that of the accumulator (i32 for integers).
    """
    return numpy_dtype(dtype(element_type(factors) or "").result)


def _rows(x: Any) -> Any:
    """One matrix with the rows of all matrices of a batch; the batch may have no elements."""
    return x.reshape(prod(x.shape[:-1]), x.shape[-1])


@partial(jax.custom_vjp, nondiff_argnums=(2, 3))
def _product(a: Any, b: Any, options: Options, kind: Any) -> Any:
    """The product of two arrays of two or more axes, of element type `kind`."""
    shape = shape_of_product(a, b, options)
    # If all matrices of a batch A are multiplied by one B, join the batch to one tall matrix.
    if b.ndim == 2 and a.ndim > 2 and not options.transpose_a:
        return _product(_rows(a), b, options, kind).reshape(shape)
    # `expand_dims` puts the mapped axis of jax.vmap in front of all other axes of each array, and
    # the call broadcasts batch axes from the last to the first. The mapped axes of A and B are
    # therefore paired only if A and B have equal numbers of axes.
    a, b = (x.reshape((1,) * (len(shape) - x.ndim) + x.shape) for x in (a, b))
    results = {"D": jax.ShapeDtypeStruct(shape, kind)}
    return call(results, (a, b), options, vmap_method="expand_dims")[0]


def _forward(a: Any, b: Any, *options: Any) -> tuple[Any, tuple[Any, Any]]:
    return _product(a, b, *options), (a, b)


def _backward(options: Options, kind: Any, factors: tuple[Any, Any], grad: Any) -> tuple[Any, Any]:
    """The gradients of A and B: products of the result's gradient with B and with A."""
    a, b = factors
    transpose_a, transpose_b = options.transpose_a, options.transpose_b
    grad = grad.astype(a.dtype)
    of_a = (
        _product(b, grad, Options(transpose_b, True), a.dtype)
        if transpose_a
        else _product(grad, b, replace(options, transpose_b=not transpose_b), a.dtype)
    )
    # One B for all matrices of A: join the batch A, and the batch grad, to one tall matrix each.
    if b.ndim == 2 and a.ndim > 2 and not transpose_a:
        a, grad = _rows(a), _rows(grad)
    of_b = (
        _product(grad, a, Options(True, transpose_a), b.dtype)
        if transpose_b
        else _product(a, grad, Options(not transpose_a, False), b.dtype)
    )
    return _summed(of_a, factors[0].shape), _summed(of_b, factors[1].shape)


_product.defvjp(_forward, _backward)


def _summed(gradient: Any, shape: tuple[int, ...]) -> Any:
    """The gradient of an array that was broadcast along batch axes: the sum along these axes."""
    added = gradient.ndim - len(shape)
    repeated = tuple(
        axis
        for axis in range(gradient.ndim)
        if axis < added or (shape[axis - added] == 1 and gradient.shape[axis] != 1)
    )
    return gradient.sum(repeated, keepdims=True).reshape(shape) if repeated else gradient
