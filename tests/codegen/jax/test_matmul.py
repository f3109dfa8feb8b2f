"""`codegen.jax.matmul` against `jax.numpy.matmul`: values, gradients, vmap, epilogues, errors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import codegen
from coordgraph import LaunchError
from coordgraph import epilogue as ep
from tests.codegen.jax.conftest import Make
from tests.support.sampling import quick_cases

SHAPES = [
    ((20, 24), (24, 16)),
    ((3, 20, 24), (24, 16)),
    ((20, 24), (3, 24, 16)),
    ((5, 1, 20, 24), (3, 24, 16)),
    ((24,), (24, 16)),
    ((20, 24), (24,)),
    ((24,), (24,)),
    ((3, 20, 24), (24,)),
    ((0, 24), (24, 16)),
    ((20, 0), (0, 16)),
    ((3, 20, 0), (0, 16)),
    ((3, 20, 24), (24, 0)),
]
"""Pairs of shapes of A and B: matrices, batches that are broadcast, vectors, extents of 0."""


@ep.epilogue(bias="n", scale="")
def scaled(acc: Any, bias: Any, scale: Any) -> Any:
    return ep.relu(acc + bias) * scale


def same(ours: Any, theirs: Any) -> None:
    """Assert that two arrays have equal values, shapes and types."""
    assert (ours.shape, ours.dtype) == (theirs.shape, theirs.dtype)
    assert np.array_equal(np.asarray(ours, "f4"), np.asarray(theirs, "f4"))


@quick_cases(1)
@pytest.mark.parametrize("shapes", SHAPES, ids=str)
def test_values_and_gradients_are_those_of_jax(jax: Any, make: Make, shapes: Any):
    from codegen.jax import matmul

    a, b = (make(*shape) for shape in shapes)
    same(jax.jit(matmul)(a, b), a @ b)
    weight = make(*(a @ b).shape)

    def loss(product: Any) -> Any:
        return lambda a, b: (product(a, b) * weight).sum()

    ours = jax.grad(loss(matmul), (0, 1))(a, b)
    theirs = jax.grad(loss(jax.numpy.matmul), (0, 1))(a, b)
    for one, other in zip(ours, theirs, strict=True):
        same(one, other)


@quick_cases(4)
@pytest.mark.parametrize("transpose_a", [False, True])
@pytest.mark.parametrize("transpose_b", [False, True])
@pytest.mark.parametrize("batch", [(), (3,)])
def test_transposes_and_their_gradients(
    jax: Any, make: Make, transpose_a: bool, transpose_b: bool, batch: tuple[int, ...]
):
    from codegen.jax import matmul

    a = make(*batch, *((24, 20) if transpose_a else (20, 24)))
    b = make(*((16, 24) if transpose_b else (24, 16)))
    weight = make(*batch, 20, 16)

    def ours(a: Any, b: Any) -> Any:
        d = matmul(a, b, transpose_a=transpose_a, transpose_b=transpose_b)
        return (d * weight).sum(), d

    def theirs(a: Any, b: Any) -> Any:
        d = (a.mT if transpose_a else a) @ (b.mT if transpose_b else b)
        return (d * weight).sum(), d

    found, d = jax.grad(ours, (0, 1), has_aux=True)(a, b)
    exact, product = jax.grad(theirs, (0, 1), has_aux=True)(a, b)
    same(d, product)
    for one, other in zip(found, exact, strict=True):
        same(one, other)


@quick_cases(2)
@pytest.mark.parametrize("axes", [(0, None), (None, 0), (0, 0), (1, 0)], ids=str)
def test_vmap_is_one_product(jax: Any, make: Make, axes: Any):
    from codegen.jax import matmul

    a = make(*((20, 7, 24) if axes[0] == 1 else (7, 20, 24) if axes[0] == 0 else (20, 24)))
    b = make(*((7, 24, 16) if axes[1] == 0 else (24, 16)))
    same(jax.vmap(matmul, axes)(a, b), jax.vmap(jax.numpy.matmul, axes)(a, b))
    assert str(jax.make_jaxpr(jax.vmap(matmul, axes))(a, b)).count("coordgraph_matmul") == 1


UNEQUAL = [
    ((3, 4), (2, 4, 5)),
    ((4,), (2, 4, 5)),
    ((2, 1, 3, 4), (6, 4, 5)),
    ((6, 3, 4), (2, 1, 4, 5)),
    ((2, 2, 3, 4), (2, 4, 5)),
    ((2, 3, 4), (4,)),
]
"""Pairs of shapes of A and B, of one example, that have unequal numbers of axes."""


@quick_cases(6)
@pytest.mark.parametrize("axes", [(0, 0), (0, None), (None, 0)], ids=str)
@pytest.mark.parametrize("shapes", UNEQUAL, ids=str)
def test_vmap_pairs_examples_of_factors_with_unequal_numbers_of_axes(
    jax: Any, make: Make, shapes: Any, axes: Any
):
    """Values and gradients under `jax.vmap` are those of `jax.numpy.matmul`, for two examples."""
    from codegen.jax import matmul

    a, b = (
        make(*((2,) if axis == 0 else ()), *shape) for shape, axis in zip(shapes, axes, strict=True)
    )

    def of_sum(product: Any) -> Any:
        """The gradients of the sum over all examples."""
        return jax.grad(lambda a, b: (jax.vmap(product, axes)(a, b) ** 2).sum(), (0, 1))

    def of_each(product: Any) -> Any:
        """For each example, its gradients."""
        return jax.vmap(jax.grad(lambda a, b: (product(a, b) ** 2).sum(), (0, 1)), axes)

    same(jax.vmap(matmul, axes)(a, b), jax.vmap(jax.numpy.matmul, axes)(a, b))
    for gradients in (of_sum, of_each):
        ours, theirs = (gradients(product)(a, b) for product in (matmul, jax.numpy.matmul))
        for one, other in zip(ours, theirs, strict=True):
            same(one, other)


@pytest.mark.slow
def test_second_derivatives(jax: Any, make: Make):
    from codegen.jax import matmul

    a, b = make(6, 5), make(5, 4)

    def of_gradient(product: Any) -> Any:
        gradient = jax.grad(lambda a, b: (product(a, b) ** 2).sum())
        return jax.grad(lambda a, b: (gradient(a, b) ** 2).sum(), 1)(a, b)

    same(of_gradient(matmul), of_gradient(jax.numpy.matmul))


@pytest.mark.slow
def test_the_result_may_have_another_type(jax: Any, make: Make):
    from codegen.jax import matmul

    a, b = make(20, 24, dtype="bfloat16"), make(24, 16, dtype="bfloat16")
    wide = jax.numpy.matmul(a, b, preferred_element_type="float32")
    same(matmul(a, b, preferred_element_type="float32"), wide)
    same(matmul(a, b), a @ b)
    gradient = jax.grad(lambda a: matmul(a, b, preferred_element_type="float32").sum())(a)
    assert gradient.dtype == a.dtype


@pytest.mark.slow
def test_an_epilogue_is_part_of_the_traced_program(jax: Any, make: Make):
    from codegen.jax import matmul

    a, b, bias = make(3, 20, 24), make(24, 16), make(16)
    exact = jax.nn.relu(a @ b + bias) * 2

    def layer(a: Any, b: Any, bias: Any) -> Any:
        return matmul(a, b, epilogue=scaled, bias=bias, scale=2.0)

    same(jax.jit(layer)(a[0], b, bias), exact[0])
    same(jax.vmap(layer, (0, None, None))(a, b, bias), exact)
    with pytest.raises(LaunchError, match="has no gradient"):
        jax.grad(lambda a: layer(a, b, bias).sum())(a[0])


def test_refusals_say_what_to_pass(jax: Any, make: Make):
    from codegen.jax import matmul

    a, b, bias = make(20, 24), make(24, 16), make(16)
    cases: list[tuple[str, Any, dict[str, Any]]] = [
        ("k would be 24 and 16", (a, b.T), {}),
        ("b.astype(float32)", (a, b.astype("bfloat16")), {}),
        ("batch axes do not broadcast", (make(2, 20, 24), make(3, 24, 16)), {}),
        ("at least one axis", (a, make()), {}),
        ("pass epilogue=", (a, b), {"bias": bias}),
        ("no argument transpose; for an operand", (a, b), {"transpose": True}),
        ("b is a tuple, but an array is needed; join the weights", (a, (b, b)), {}),
        ("a is a list, but an array is needed", ([[1.0]], b), {}),
        ("bais is no operand", (a, b), {"epilogue": scaled, "bais": bias, "scale": 1.0}),
        ("scale is missing", (a, b), {"epilogue": scaled, "bias": bias}),
        ("is not a traced epilogue", (a, b), {"epilogue": len, "bias": bias}),
        ("pass a Python number", (a, b), {"epilogue": scaled, "bias": bias, "scale": make()}),
        ("as by y.at[targets].set(d)", (a, b), {"targets": make(20)}),
        ("has no argument plan; the cost model", (a, b), {"plan": "128x128x64 data-parallel"}),
        ("invariant = 'no'", (a, b), {"invariant": "no"}),
        ("transpose_a = 'no'", (a, b), {"transpose_a": "no"}),
        ("transpose_b = 'no'", (a, b.T), {"transpose_b": "no"}),
    ]
    for text, arrays, options in cases:
        with pytest.raises(LaunchError) as error:
            matmul(*arrays, **options)
        assert text in str(error.value)


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_products_of_integers_are_i32(jax: Any, make: Make, dtype: str):
    from codegen.jax import matmul

    a, b = (abs(make(*shape)).astype(dtype) for shape in ((4, 32), (32, 16)))
    same(matmul(a, b), jax.numpy.matmul(a, b, preferred_element_type="int32"))
    same(matmul(a, b, preferred_element_type="float32"), (a.astype("float32") @ b))


def test_a_program_asks_for_batch_invariant_kernels(
    jax: Any, make: Make, monkeypatch: pytest.MonkeyPatch
):
    """`invariant` reaches the kernels of the product and of the gradient of A, whose rows are those
    of the product; the gradient of B sums over rows.
    """
    from codegen.jax import launching, matmul

    asked = list[bool]()

    def multiply(*arrays: Any, invariant: bool, **options: Any) -> Any:
        asked.append(invariant)
        return codegen.matmul(*arrays, invariant=invariant, **options)

    monkeypatch.setattr(launching, "matmul", multiply)
    a, b = make(20, 24), make(24, 16)
    gradients = jax.grad(lambda a, b: matmul(a, b, invariant=True).sum(), (0, 1))
    jax.block_until_ready(gradients(a, b))
    assert sorted(asked) == [False, True, True]
    asked.clear()
    matmul(a, b, epilogue=scaled, bias=make(16), scale=1.0, invariant=True).block_until_ready()
    assert asked == [True]


def test_an_error_of_a_kernel_is_the_error_of_the_program(jax: Any, make: Make):
    """What only the kernel can refuse, such as a row that A lacks, is an error of XLA's program,
    with coordgraph's message.
    """
    from codegen.jax import matmul

    a, b = make(20, 24), make(24, 16)
    rows = jax.numpy.asarray([0, 20], dtype="int32")
    with pytest.raises(jax.errors.JaxRuntimeError, match="rows"):
        matmul(a, b, rows=rows).block_until_ready()
    same(matmul(a, b), a @ b)  # a call after the failed one works


def test_no_array_is_copied(jax: Any, make: Make, monkeypatch: pytest.MonkeyPatch):
    """The kernel reads and writes XLA's own buffers."""
    from codegen.jax import launching, matmul

    addresses = list[int]()

    def multiply(a: Any, b: Any, out: Any, **options: Any) -> None:
        addresses.extend(x.ctypes.data for x in (a, b, out))
        out[...] = 7

    monkeypatch.setattr(launching, "matmul", multiply)
    a, b = make(64, 64), make(64, 64)
    d = matmul(a, b)
    d.block_until_ready()
    assert addresses[:2] == [a.unsafe_buffer_pointer(), b.unsafe_buffer_pointer()]
    assert addresses[2] == d.unsafe_buffer_pointer()
    assert (np.asarray(d) == 7).all()


def test_a_call_with_traced_arrays_names_the_function_for_them(jax: Any, make: Make):
    a = make(8, 8)
    with pytest.raises(LaunchError, match=r"use codegen\.jax\.matmul"):
        jax.jit(codegen.matmul)(a, a)
