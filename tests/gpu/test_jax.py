"""`codegen.jax` on the GPU: values, gradients and epilogues in traced programs, without copies."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import codegen
from coordgraph import LaunchError
from coordgraph import epilogue as ep

jax = pytest.importorskip("jax")
pytestmark = pytest.mark.usefixtures("gpu")

BOUND = 2e-2
"""Largest error of 16-bit results (sums are in f32), relative to the largest element."""
SHAPES = [(256, 384, 512), (264, 136, 72), (130, 70, 50)]
"""Problems (m, n, k): a multiple of the tile; partial tiles, with rows that TMA can load; and rows
that TMA cannot load.
"""


@ep.epilogue(bias="n")
def bias_relu(acc: Any, bias: Any) -> Any:
    return ep.relu(acc + bias)


@pytest.fixture(autouse=True)
def on_gpu() -> None:
    """Skip where JAX has no GPU, as with a build for CPUs."""
    if all(device.platform != "gpu" for device in jax.devices()):
        pytest.skip("JAX has no GPU here")


def normal(seed: int, *shape: int) -> Any:
    """A random bf16 array on the GPU."""
    return jax.random.normal(jax.random.key(seed), shape, "bfloat16")


def check(ours: Any, exact: Any) -> None:
    """Compare a 16-bit result with that of the same product in f32."""
    assert ours.shape == exact.shape
    ours, exact = np.asarray(ours, "f4"), np.asarray(exact, "f4")
    assert np.abs(ours - exact).max() <= BOUND * np.abs(exact).max()


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("transpose_b", [False, True])
def test_products_and_gradients_in_a_program(shape: tuple[int, int, int], transpose_b: bool):
    from codegen.jax import matmul

    m, n, k = shape
    a, b = normal(0, m, k), normal(1, *((n, k) if transpose_b else (k, n)))
    weight = normal(2, m, n)

    def loss(product: Any) -> Any:
        return lambda a, b: (product(a, b) * weight.astype("float32")).sum()

    def wide(a: Any, b: Any) -> Any:
        a, b = a.astype("float32"), b.astype("float32")
        return jax.numpy.matmul(a, b.T if transpose_b else b, precision="highest")

    def ours(a: Any, b: Any) -> Any:
        return matmul(a, b, transpose_b=transpose_b)

    check(jax.jit(ours)(a, b), wide(a, b))
    found = jax.jit(jax.grad(loss(ours), (0, 1)))(a, b)
    for one, other in zip(found, jax.grad(loss(wide), (0, 1))(a, b), strict=True):
        check(one, other)


def test_many_calls_on_the_stream_of_the_program():
    """In a chain of products and XLA's kernels, each kernel reads the previous kernel's result."""
    from codegen.jax import matmul

    a, b = normal(0, 512, 512), normal(1, 512, 512) / 23

    def chain(product: Any, x: Any) -> Any:
        for _ in range(20):
            x = jax.nn.relu(product(x, b.astype(x.dtype))) + x
        return x

    program = jax.jit(lambda x: chain(matmul, x))
    exact = chain(lambda x, y: jax.numpy.matmul(x, y, precision="highest"), a.astype("float32"))
    for _ in range(5):
        check(program(a), exact)


def test_epilogues_and_batches():
    from codegen.jax import matmul

    a, b, bias = normal(0, 3, 200, 256), normal(1, 3, 256, 136), normal(2, 136)
    exact = jax.numpy.matmul(a.astype("float32"), b.astype("float32"), precision="highest")
    check(jax.jit(matmul)(a, b), exact)
    check(jax.jit(jax.vmap(matmul))(a, b), exact)
    layer = jax.jit(lambda a, b, bias: matmul(a, b, epilogue=bias_relu, bias=bias))
    check(layer(a[0], b[0], bias), jax.nn.relu(exact[0] + bias.astype("float32")))


def wide(a: Any, b: Any) -> Any:
    """The product in f32."""
    a, b = a.astype("float32"), b.astype("float32")
    return jax.numpy.matmul(a, b, precision="highest")


def gradients(product: Any, axes: Any, a: Any, b: Any) -> Any:
    """The gradients of the sum of all elements of `product`, mapped along `axes`."""
    mapped = jax.vmap(product, axes)
    return jax.grad(lambda a, b: mapped(a, b).astype("float32").sum(), (0, 1))(a, b)


@pytest.mark.parametrize("axes", [(0, 0), (0, None), (None, 0)], ids=str)
def test_vmap_pairs_examples_of_factors_with_unequal_numbers_of_axes(axes: Any):
    from codegen.jax import matmul

    shapes = ((2, 1, 64, 72), (6, 72, 40)), ((64, 72), (2, 72, 40))
    for place, (of_a, of_b) in enumerate(shapes):
        a = normal(place, *(() if axes[0] is None else (2,)), *of_a)
        b = normal(5 + place, *(() if axes[1] is None else (2,)), *of_b)
        exact = jax.vmap(wide, axes)(a, b)
        check(jax.jit(jax.vmap(matmul, axes))(a, b), exact)
        for one, other in zip(*(gradients(x, axes, a, b) for x in (matmul, wide)), strict=True):
            check(one, other)


def test_wrong_operands_are_refused_while_the_program_is_traced():
    from codegen.jax import matmul

    a, b, bias = normal(0, 64, 64), normal(1, 64, 64), normal(2, 63)
    with pytest.raises(LaunchError, match="bias has the shape"):
        jax.jit(lambda a, b: matmul(a, b, epilogue=bias_relu, bias=bias))(a, b)


@ep.epilogue(pre=ep.output(), wide=ep.output(dtype="f32"))
def relu_and_inputs(acc: Any) -> Any:
    return ep.relu(acc), acc, acc


@ep.epilogue()
def relu_gated(gate: Any, up: Any) -> Any:
    return ep.relu(gate) * up


def test_outputs_sums_rows_and_invariance():
    from codegen.jax import matmul

    a, b = normal(0, 200, 256), normal(1, 256, 272)
    exact = jax.numpy.matmul(a.astype("float32"), b.astype("float32"), precision="highest")
    d, pre, wide = jax.jit(lambda a, b: matmul(a, b, epilogue=relu_and_inputs))(a, b)
    assert (pre.dtype, wide.dtype) == ("bfloat16", "float32")
    for found, wanted in ((d, jax.nn.relu(exact)), (pre, exact), (wide, exact)):
        check(found, wanted)
    gated = jax.jit(lambda a, b: matmul(a, b, epilogue=relu_gated))(a, b)
    check(gated, jax.nn.relu(exact[:, :136]) * exact[:, 136:])
    rows = jax.numpy.asarray([5, 199, 0, 5], dtype="int32")
    check(jax.jit(lambda a, b, rows: matmul(a, b, rows=rows))(a, b, rows), exact[rows])
    product = jax.jit(lambda a, b: matmul(a, b, invariant=True))
    every = np.asarray(product(a, b), "f4")
    assert np.array_equal(np.asarray(product(a[:7], b), "f4"), every[:7])
    whole = jax.numpy.arange(64 * 64, dtype="int8").reshape(64, 64)
    found = jax.jit(lambda x: matmul(x, x, transpose_b=True))(whole)
    wide = np.asarray(whole, "i4")
    assert np.array_equal(np.asarray(found), wide @ wide.T)


def test_a_type_without_kernels_is_an_error_of_the_program():
    from codegen.jax import matmul

    a = jax.numpy.ones((64, 64), "float32")
    with pytest.raises(jax.errors.JaxRuntimeError, match="f32"):
        matmul(a, a).block_until_ready()


def test_calls_outside_of_programs_take_jax_arrays():
    a, b = normal(0, 256, 512), normal(1, 512, 384)
    exact = jax.numpy.matmul(a.astype("float32"), b.astype("float32"), precision="highest")
    check(codegen.matmul(a, b), exact)
