"""`matmul` for JAX: `jax.numpy.matmul` by a generated kernel, with gradients."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from json import dumps
from typing import Any

import jax
import jax.numpy as jnp

from codegen.jax.launching import TARGET, register
from coordgraph import LaunchError
from coordgraph.epilogue import EpilogueFunction, function_text

__all__ = ["matmul"]


def matmul(
    a: Any,
    b: Any,
    *,
    transpose_a: bool = False,
    transpose_b: bool = False,
    preferred_element_type: Any = None,
    epilogue: EpilogueFunction | None = None,
    **operands: Any,
) -> Any:
    """`jax.numpy.matmul`: the product of vectors, matrices, or batches of matrices.

    The function may be traced by `jax.jit`, `jax.grad` (in reverse mode) and `jax.vmap`. XLA stores
    arrays row-major, so `b.T` inside `jax.jit` is a copy: use `transpose_b=True` instead.

    Args:
        a: A (…, m, k), or a vector (k).
        b: B (…, k, n), or a vector (k). Axes before the last two are broadcast, without a copy.
        transpose_a, transpose_b: whether the array holds the transpose of each matrix: A as k x m,
            B as n x k. A vector is not transposed.
        preferred_element_type: element type of the result; by default that of A and B.
        epilogue: the function that computes D from A·B, traced by `coordgraph.epilogue.epilogue`;
            None is A·B. A product with an epilogue has no gradient. Under `jax.vmap`, the
            kernel is launched once for each example.
        operands: operands of the epilogue by name: arrays, and Python numbers for its scalars.

    Returns:
        An array (…, m, n), without the axis of an argument that is a vector.

    Raises:
        LaunchError: shapes or types of the arrays do not fit.
        jax.errors.JaxRuntimeError: the device has no kernels for the element type. XLA raises this
            error when it runs the product. GPUs have kernels for bf16, f16 and i8.
    """
    a, b = jnp.asarray(a), jnp.asarray(b)
    if a.dtype != b.dtype:
        raise LaunchError(
            f"a holds {a.dtype} and b holds {b.dtype}; convert them to one type, as by "
            f"b.astype({a.dtype!s})"
        )
    if not a.ndim or not b.ndim:
        raise LaunchError("matmul needs arrays with at least one axis; use * for scalars")
    kind = jnp.dtype(a.dtype if preferred_element_type is None else preferred_element_type)
    left = a[None, :] if a.ndim == 1 else a
    right = b[:, None] if b.ndim == 1 else b
    transposes = (transpose_a and a.ndim > 1, transpose_b and b.ndim > 1)
    if epilogue is None and not operands:
        d = _product(left, right, *transposes, kind)
    else:
        d = _with_epilogue(left, right, *transposes, kind, epilogue, operands)
    if b.ndim == 1:
        d = d[..., 0]
    return (d[..., 0] if b.ndim == 1 else d[..., 0, :]) if a.ndim == 1 else d


@partial(jax.custom_vjp, nondiff_argnums=(2, 3, 4))
def _product(a: Any, b: Any, transpose_a: bool, transpose_b: bool, kind: Any) -> Any:
    """The product of two arrays of two or more axes, of element type `kind`."""
    # If all matrices of a batch A are multiplied by one B, join the batch to one tall matrix.
    if b.ndim == 2 and a.ndim > 2 and not transpose_a:
        rows = a.reshape(-1, a.shape[-1])
        return _product(rows, b, False, transpose_b, kind).reshape(*a.shape[:-1], -1)
    shape = _shape(a, b, transpose_a, transpose_b)
    return _call(shape, kind, (a, b), transpose_a, transpose_b, vmap_method="expand_dims")


def _forward(a: Any, b: Any, *options: Any) -> tuple[Any, tuple[Any, Any]]:
    return _product(a, b, *options), (a, b)


def _backward(
    transpose_a: bool, transpose_b: bool, kind: Any, factors: tuple[Any, Any], grad: Any
) -> tuple[Any, Any]:
    """The gradients of A and B: products of the result's gradient with B and with A."""
    a, b = factors
    grad = grad.astype(a.dtype)
    of_a = (
        _product(b, grad, transpose_b, True, a.dtype)
        if transpose_a
        else _product(grad, b, False, not transpose_b, a.dtype)
    )
    # One B for all matrices of A: join the batch A, and the batch grad, to one tall matrix each.
    if b.ndim == 2 and a.ndim > 2 and not transpose_a:
        a, grad = a.reshape(-1, a.shape[-1]), grad.reshape(-1, grad.shape[-1])
    of_b = (
        _product(grad, a, True, transpose_a, b.dtype)
        if transpose_b
        else _product(a, grad, not transpose_a, False, b.dtype)
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


def _with_epilogue(
    a: Any,
    b: Any,
    transpose_a: bool,
    transpose_b: bool,
    kind: Any,
    epilogue: EpilogueFunction | None,
    operands: Mapping[str, Any],
) -> Any:
    """Return D, computed from A and B by one kernel with the function `epilogue`.

    `operands` holds the operands of the epilogue, by name.
    """
    if epilogue is None:
        raise LaunchError(
            f"{', '.join(operands)} can only be passed with an epilogue; pass epilogue="
        )
    if not isinstance(epilogue, EpilogueFunction):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise LaunchError(
            f"epilogue = {epilogue!r} is not a traced epilogue; make one from a function with "
            "@coordgraph.epilogue.epilogue(…)"
        )
    if not epilogue.stores_d:
        raise LaunchError(
            f"the epilogue {epilogue.name} does not store D, which matmul of JAX returns; return a "
            "value for D"
        )
    scalars = {operand.name for operand in epilogue.scalars}
    numbers = {name: value for name, value in operands.items() if name in scalars}
    for name, value in numbers.items():
        if not isinstance(value, (int, float)):
            raise LaunchError(
                f"{name} is {type(value).__name__}, but a number of the epilogue is part of the "
                "traced program; pass a Python number, or declare the operand with "
                "ep.operand(in_memory=True) and pass an array"
            )
    arrays = {name: value for name, value in operands.items() if name not in scalars}
    inputs = (a, b, *map(jnp.asarray, arrays.values()))
    shape = _shape(a, b, transpose_a, transpose_b)
    text = function_text(epilogue)
    rest: dict[str, Any] = {"vmap_method": "sequential", "epilogue": text, "numbers": numbers}
    call = partial(_call, shape, kind, names=tuple(arrays), **rest)
    product = jax.custom_jvp(lambda *inputs: call(inputs, transpose_a, transpose_b))
    product.defjvp(_no_gradient)
    return product(*inputs)


def _no_gradient(primals: Any, tangents: Any) -> Any:
    raise LaunchError(
        "a product with an epilogue has no gradient; apply the function to matmul's result, or use "
        "jax.lax.stop_gradient"
    )


def _shape(a: Any, b: Any, transpose_a: bool, transpose_b: bool) -> tuple[int, ...]:
    """The shape of the product of two arrays of two or more axes.

    Raises:
        LaunchError: the shapes do not fit.
    """
    m, k = reversed(a.shape[-2:]) if transpose_a else a.shape[-2:]
    of_b, n = reversed(b.shape[-2:]) if transpose_b else b.shape[-2:]
    shapes = f"a is {a.shape} and b is {b.shape}"
    if k != of_b:
        raise LaunchError(f"{shapes}: k would be {k} and {of_b}; pass arrays with the same k")
    try:
        batch = jnp.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    except ValueError as error:
        raise LaunchError(
            f"{shapes}, whose batch axes do not broadcast; pass arrays with equal batch axes"
        ) from error
    return (*batch, m, n)


def _call(
    shape: tuple[int, ...],
    kind: Any,
    inputs: tuple[Any, ...],
    transpose_a: bool,
    transpose_b: bool,
    *,
    vmap_method: str,
    epilogue: str = "",
    names: tuple[str, ...] = (),
    numbers: Mapping[str, float] | None = None,
) -> Any:
    """The product of `inputs`, an array of shape `shape` and element type `kind`.

    A foreign call of XLA computes the product. `codegen.jax.launching` describes its attributes.
    """
    register()
    call = jax.ffi.ffi_call(TARGET, jax.ShapeDtypeStruct(shape, kind), vmap_method=vmap_method)
    return call(
        *inputs,
        transpose_a=transpose_a,
        transpose_b=transpose_b,
        epilogue=epilogue,
        operands=",".join(names),
        numbers=dumps(dict(numbers or {})),
    )
