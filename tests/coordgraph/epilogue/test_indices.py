"""Tests of indices of epilogues: declaration, kinds, text, graphs, checks, and errors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import numpy as np
import pytest

from coordgraph import Gemm, LaunchError, VerifyError, parse
from coordgraph import epilogue as ep
from coordgraph.epilogue.operand import Operand
from coordgraph.interpreter.arguments import with_defaults
from passes import Pipeline
from tests.support.indices import causal, positions, unstored


def test_the_text_form_parses_back():
    assert ep.function_text(causal) == (
        "causal(row: m index, column: n index) { %0 = compare(column, row, relation='<='); "
        "%1 = where(%0, acc, -inf); %1 }"
    )
    for function in (causal, positions, unstored):
        assert ep.parse_function(ep.function_text(function)) == function


def test_an_index_is_neither_a_tensor_nor_a_scalar():
    assert [o.name for o in positions.indices] == ["product", "row", "column"]
    assert positions.tensors == positions.scalars == ()
    assert not any(o.is_scalar for o in positions.operands)
    gemm = Gemm("bf16", epilogue=positions)
    assert gemm.operands == {}
    assert [t.name for t in gemm.graph((64, 64, 32)).tensors] == ["A", "B", "D"]


def test_an_index_is_an_i32_of_every_accumulator():
    for accumulator in ("f32", "f64", "i32"):
        assert positions.kinds(accumulator, "f32").operands["row"] == "i32"


def test_the_epilogue_of_the_transpose_exchanges_rows_and_columns():
    axes = {o.name: o.axes for o in positions.exchanged.indices}
    assert axes == {"product": "l", "row": "n", "column": "m"}
    assert positions.exchanged.exchanged == positions


@pytest.mark.parametrize(
    ("options", "dims"),
    [
        ({}, ("", "D.0", "D.1")),
        ({"transpose_a": True, "transpose_b": True}, ("", "D.0", "D.1")),
        ({"batched": True}, ("batch", "D.0", "D.1")),
        ({"grouped": True}, ("group", "D.row", "D.1")),
        ({"grouped": True, "group_axis": "k", "transpose_a": True}, ("group", "D.0", "D.1")),
        ({"grouped": True, "group_axis": "mnk"}, ("group", "D.row", "D.column")),
        ({"gathered_rows": True}, ("", "D.0", "D.1")),
        ({"scattered_rows": True}, ("", "D.product_row", "D.1")),
        ({"grouped": True, "scattered_rows": True}, ("group", "D.row", "D.1")),
    ],
    ids=str,
)
def test_an_index_is_that_of_a_dimension_of_d(options: dict[str, Any], dims: tuple[str, ...]):
    """Rows and columns count from the first of the element's own product, before a scatter.

    A single product has no dimension that numbers products.
    """
    gemm = Gemm("bf16", epilogue=positions, **options)
    assert tuple(map(gemm.index_of, "lmn")) == dims
    graph = gemm.graph((64, 64, 32))
    assert {dim for dim in dims if dim} <= {*graph.coordinates.dimensions}


@pytest.mark.parametrize(
    "options", [{}, {"batched": True}, {"grouped": True}, {"scattered_rows": True}], ids=str
)
@pytest.mark.parametrize("function", [positions, unstored], ids=lambda f: f.name)
def test_the_checks_hold(function: ep.EpilogueFunction, options: dict[str, Any]):
    if "scattered_rows" in options and not function.stores_d:
        pytest.skip("rows of a D that is not stored cannot be scattered")
    gemm = Gemm("f32", epilogue=function, **options)
    graph = Pipeline.parse("stream-k{workgroups=5}")(gemm.graph((16, 16, 16)))
    assert not graph.check().refuted
    assert parse(graph.text()) == graph


def test_the_pseudo_code_names_the_indices():
    graph = Pipeline.parse("data-parallel")(Gemm(epilogue=positions).graph((64, 64, 32)))
    text = graph.pseudocode()
    assert "product * 262144 + row * 512 + column" in text.replace("(", "").replace(")", "")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ep.index("mn"), "'mn' is not the axis of an index; give one of l"),
        (lambda: ep.index(""), "'' is not the axis of an index; give one of l"),
        (lambda: ep.index("k"), "'k' is not the axis of an index; give one of l"),
        (lambda: ep.index(cast(Any, 0)), "coordinates 0 is not text; .* as in column=index"),
        (lambda: Operand("x", "n", "i32", index=True), "operand x: an index .* has no dtype"),
        (lambda: Operand("x", "n", optional=True, index=True), "neither optional nor in_memory"),
        (lambda: Operand("x", "n", summed=True, index=True), "neither optional nor in_memory"),
        (lambda: Operand.parse("x: scalar index"), "'' is not the axis of an index"),
        (lambda: Operand.parse("x: n i32 index"), "an index .* has no dtype"),
    ],
)
def test_wrong_declarations_are_refused(make: Callable[[], Any], message: str):
    with pytest.raises(VerifyError, match=message):
        make()


@pytest.mark.parametrize("name", ["c", "alpha", "beta"])
def test_names_of_numbers_and_of_c_are_refused(name: str):
    function = ep.parse_function(f"f({name}: n index) {{ %0 = cast({name}); %0 }}")
    with pytest.raises(VerifyError, match=f"the epilogue's operand '{name}' is not a "):
        Gemm("f32", epilogue=function)


def test_names_of_arguments_are_refused():
    function = ep.parse_function("f(rows: m index) { %0 = cast(rows); %0 }")
    with pytest.raises(VerifyError, match="'rows' has a name that kernels already use"):
        Gemm("f32", epilogue=function)


def test_a_call_cannot_pass_an_index():
    assert with_defaults(causal, {}) == {}
    with pytest.raises(LaunchError, match=r"row is an index .* and the kernel computes it; leave"):
        with_defaults(causal, {"row": np.arange(3)})
    with pytest.raises(LaunchError, match=r"bias is no operand .* its operands are: none"):
        with_defaults(causal, {"bias": np.arange(3)})
