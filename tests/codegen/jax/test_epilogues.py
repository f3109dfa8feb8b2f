"""Epilogues of `codegen.jax.matmul`: outputs besides D, several sums, tables of rows, refusals."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from coordgraph import LaunchError, VerifyError
from coordgraph import epilogue as ep
from tests.codegen.jax.conftest import Make
from tests.support.indices import positions, positions_of


@ep.epilogue(bias="n", pre=ep.output(), wide=ep.output(dtype="f64"))
def with_outputs(acc: Any, bias: Any) -> Any:
    x = acc + bias
    return ep.relu(x), x, 2 * x


@ep.epilogue(half=ep.output())
def without_d(acc: Any) -> Any:
    return None, acc / 2


@ep.epilogue(pre=ep.output())
def without_bias(acc: Any) -> Any:
    return ep.relu(acc), acc


@ep.epilogue()
def relu_gated(gate: Any, up: Any) -> Any:
    return ep.relu(gate) * up


@ep.epilogue(scale=ep.operand("n", "f32"))
def quantized(acc: Any, scale: Any) -> Any:
    return ep.quantize(acc * scale)


@ep.epilogue(bias="n")
def with_bias(acc: Any, bias: Any) -> Any:
    return acc + bias


@ep.epilogue()
def as_e4m3(acc: Any) -> Any:
    return ep.quantize(acc, to="e4m3")


@ep.epilogue(top=ep.output("m", reduce="max"))
def with_maximum(acc: Any) -> Any:
    return acc, acc


def equal(ours: Any, theirs: Any) -> None:
    """Assert that two arrays have equal values and shapes."""
    assert ours.shape == theirs.shape
    assert np.array_equal(np.asarray(ours, "f8"), np.asarray(theirs, "f8"))


@pytest.mark.parametrize("mapped", [False, True])
def test_a_product_returns_every_output(jax: Any, make: Make, mapped: bool):
    """One call returns D and the outputs, in their types; under `vmap`, for every example."""
    from codegen.jax import matmul

    a, b, bias = make(3, 20, 24), make(24, 16), make(16)

    def layer(a: Any) -> Any:
        return matmul(a, b, epilogue=with_outputs, bias=bias)

    x = a @ b + bias
    d, pre, wide = jax.vmap(layer)(a) if mapped else jax.jit(layer)(a[0])
    x = x if mapped else x[0]
    equal(d, jax.nn.relu(x))
    equal(pre, x)
    equal(wide, 2 * x)
    assert (d.dtype, pre.dtype) == ("float32", "float32")


@pytest.mark.parametrize("shape", [(24, 16), (3, 24, 16)], ids=str)
def test_rows_of_a_batch_are_those_of_each_product(jax: Any, make: Make, shape: tuple[int, ...]):
    """Rows count from 0 in each product of a batch, and in each example of `vmap`."""
    from codegen.jax import matmul

    def of(a: Any, b: Any) -> Any:
        return matmul(a, b, epilogue=positions)

    a, b = make(3, 20, 24), make(*shape)
    equal(jax.jit(of)(a, b), np.stack([positions_of(20, 16, product) for product in range(3)]))
    mapped = jax.vmap(of, (0, 0 if len(shape) == 3 else None))(a, b)
    equal(mapped, np.stack([positions_of(20, 16)] * 3))


def test_an_index_is_no_argument(make: Make):
    from codegen.jax import matmul

    a, b = make(20, 24), make(24, 16)
    with pytest.raises(LaunchError, match=r"row is an index .* and the kernel computes it"):
        matmul(a, b, epilogue=positions, row=np.arange(20))


def test_a_product_without_d_returns_none_for_it(jax: Any, make: Make):
    from codegen.jax import matmul

    a, b = make(20, 24), make(24, 16)
    d, half = jax.jit(lambda a, b: matmul(a, b, epilogue=without_d))(a, b)
    assert d is None
    equal(half, a @ b / 2)


@pytest.mark.parametrize("parts", ["stacked", "interleaved"])
def test_a_product_of_several_sums_has_their_columns(jax: Any, make: Make, parts: str):
    from codegen.jax import matmul

    a, gate, up = make(20, 24), make(16, 24), make(16, 24)
    stacked = parts == "stacked"
    weight = (
        jax.numpy.concatenate([gate, up])
        if stacked
        else (jax.numpy.stack([gate, up], 1).reshape(32, 24))
    )

    @jax.jit
    def layer(a: Any, weight: Any) -> Any:
        return matmul(a, weight, transpose_b=True, epilogue=relu_gated, parts=parts)

    exact = jax.nn.relu(a @ gate.T) * (a @ up.T)
    equal(layer(a, weight), exact)
    equal(layer(a[0], weight), exact[0])


def test_rows_of_a_are_gathered(jax: Any, make: Make):
    from codegen.jax import matmul

    a, b, bias = make(20, 24), make(24, 16), make(16)
    rows = jax.numpy.asarray([3, 3, 19, 0, 7], dtype="int32")
    equal(jax.jit(lambda a, b, rows: matmul(a, b, rows=rows))(a, b, rows), a[rows] @ b)
    d, pre, _ = matmul(a, b, rows=rows, epilogue=with_outputs, bias=bias)
    equal(d, jax.nn.relu(a[rows] @ b + bias))
    equal(pre, a[rows] @ b + bias)
    with pytest.raises(LaunchError, match="has no gradient"):
        jax.grad(lambda a: matmul(a, b, rows=rows).sum())(a)


def test_a_quantized_d_has_the_type_of_its_values(jax: Any, make: Make):
    from codegen.jax import matmul

    a, b, scale = make(20, 24), make(24, 16), make(16)
    d = jax.jit(lambda a, b: matmul(a, b, epilogue=quantized, scale=scale))(a, b)
    assert d.dtype == "int8"
    equal(d, jax.numpy.clip(a @ b * scale, -128, 127))


def test_refusals_say_what_to_do(jax: Any, make: Make):
    from codegen.jax import matmul

    a, b, bias = make(20, 24), make(24, 15), make(15)
    cases: list[tuple[str, dict[str, Any]]] = [
        ("Declare top=ep.output('mn')", {"epilogue": with_maximum}),
        ("leave out the argument pre", {"epilogue": with_outputs, "bias": bias, "pre": a}),
        ("needs a multiple of 2 columns, not 15", {"epilogue": relu_gated}),
        ("leave it out", {"epilogue": without_d, "preferred_element_type": "float32"}),
        ("kernels do not read", {"epilogue": without_bias, "preferred_element_type": "int16"}),
        ("rows.astype('int32')", {"rows": bias}),
    ]
    for text, options in cases:
        with pytest.raises(LaunchError) as error:
            matmul(a, b, **options)
        assert text in str(error.value)


def test_operands_are_checked_while_a_program_is_traced(jax: Any, make: Make):
    """Shapes and types of operands and results are refused before XLA compiles the program, and
    the error names the type.
    """
    from codegen.jax import matmul

    a, b, bias = make(20, 24), make(24, 16), make(16)
    biased: dict[str, Any] = {"epilogue": with_bias}
    bits, small = ((a.astype(kind), b.astype(kind)) for kind in ("bool", "float8_e4m3fn"))
    cases: list[tuple[str, Any, dict[str, Any]]] = [
        ("bias has the shape (15,), but (n,) = (16,)", (a, b), {**biased, "bias": make(15)}),
        ("bias has the shape (1, 16)", (a, b), {**biased, "bias": bias[None]}),
        ("bias holds i32", (a, b), {**biased, "bias": bias.astype("int32")}),
        ("bias has the type bool", (a, b), {**biased, "bias": bias.astype(bool)}),
        ("a has 4 axes", (make(2, 3, 20, 24), b), {**biased, "bias": bias}),
        ("flatten all axes", (a, make(2, 3, 24, 16)), {**biased, "bias": bias}),
        ("a has the type bool", bits, {}),
        ("a has the type float8_e4m3fn", small, {}),
        ("a has the type int32", (a.astype("int32"), b.astype("int32")), {}),
        ("the result D of the epilogue as_e4m3 has the type", (a, b), {"epilogue": as_e4m3}),
    ]
    for text, arrays, options in cases:
        with pytest.raises(LaunchError) as error:
            jax.make_jaxpr(lambda x, options=options: matmul(*x, **options))(arrays)
        assert text in str(error.value)
    rows = jax.numpy.arange(3, dtype="int32")
    with pytest.raises(VerifyError, match="which batched=True does not allow"):
        jax.make_jaxpr(lambda a: matmul(a, b, rows=rows))(make(2, 20, 24))
    with pytest.raises(VerifyError, match="out_dtype = i32"):
        jax.make_jaxpr(lambda a: matmul(a, b, preferred_element_type="int32"))(a)


def test_programs_with_an_epilogue_are_exported_for_any_number_of_rows(jax: Any, make: Make):
    """An extent that is a symbol while the program is traced is not compared with numbers."""
    from jax import export

    from codegen.jax import export_checks, matmul

    a, b, bias = make(20, 24), make(24, 16), make(16)
    (m,) = export.symbolic_shape("m")
    program = jax.jit(lambda a: matmul(a, b, epilogue=with_bias, bias=bias))
    rows = jax.ShapeDtypeStruct((m, 24), a.dtype)
    exported = export.export(program, disabled_checks=export_checks())(rows)
    equal(exported.call(a), a @ b + bias)


def test_exported_programs_run(jax: Any, make: Make):
    """`export_checks` lets `jax.export` export a program, also for any number of rows."""
    from jax import export

    from codegen.jax import export_checks, matmul

    a, b = make(20, 24), make(24, 16)
    (m,) = export.symbolic_shape("m")
    program = jax.jit(matmul)
    rows = jax.ShapeDtypeStruct((m, 24), a.dtype)
    exported = export.export(program, disabled_checks=export_checks())(rows, b)
    equal(exported.call(a, b), a @ b)
