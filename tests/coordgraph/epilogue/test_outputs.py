"""Tests of epilogues with outputs besides D: declaration, text, stages, and errors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from coordgraph import Gemm, VerifyError
from coordgraph import epilogue as ep
from coordgraph.epilogue.stages import stages_of
from coordgraph.text import parse_graph
from passes import Pipeline


@ep.epilogue(bias="n", residual=ep.operand("mn", optional=True), pre=ep.output("mn", "bf16"))
def gelu_residual(acc: Any, bias: Any, residual: Any) -> Any:
    x = acc + bias
    return ep.gelu(x) + residual, x


@ep.epilogue(residual=ep.operand("mn", optional=True), copy=ep.output(dtype="f32"))
def copied(acc: Any, residual: Any) -> Any:
    y = acc + residual
    return y, y


def test_a_function_has_its_outputs_in_the_order_of_their_declaration():
    @ep.epilogue(one=ep.output(dtype="f32"), two=ep.output("mn", "bfloat16"))
    def several(acc: Any) -> Any:
        return acc, acc * 2, acc * 3

    assert [(o.name, o.axes, o.dtype) for o in several.outputs] == [
        ("one", "mn", "f32"),
        ("two", "mn", "bf16"),
    ]
    d, more = several.evaluate_all({"acc": np.float32(5)}, "f32", "f32")
    assert (d, more) == (5, {"one": 10, "two": 15})


@pytest.mark.parametrize("function", [gelu_residual, copied], ids=lambda f: f.name)
def test_the_text_form_parses_back(function: ep.EpilogueFunction):
    assert ep.parse_function(ep.function_text(function)) == function
    graph = Gemm(epilogue=function).graph((64, 64, 32))
    assert parse_graph(graph.text()) == graph


def test_the_text_form_of_outputs():
    assert ep.function_text(gelu_residual) == (
        "gelu_residual(bias: n, residual: mn optional) -> pre: mn bf16 "
        "{ %0 = add(acc, bias); %1 = gelu(%0); %2 = add(%1, residual); %2, %0 }"
    )


def test_the_first_stage_computes_the_outputs():
    """The first stage of an epilogue computes all outputs that need no optional operand.

    A launch without the operand then skips only the second stage, which reads it.
    """
    first, second = stages_of(gelu_residual, "f32", "bf16")
    assert [o.value for o in first.function.outputs] == ["%0"]
    assert second.optional == "residual"
    assert not second.function.outputs


def test_an_output_that_reads_an_optional_operand_is_always_computed():
    (only,) = stages_of(copied, "f32", "bf16")
    assert only.optional == ""
    assert [o.name for o in only.function.outputs] == ["copy"]


def test_a_stage_of_outputs_remains_where_d_is_the_plain_sum():
    @ep.epilogue(c=ep.operand("mn", optional=True), plain=ep.output(dtype="f32"))
    def added(acc: Any, c: Any) -> Any:
        return acc + c, acc

    first, second = stages_of(added, "f32", "bf16")
    assert first.function.outputs
    assert first.function.result == "acc"
    assert second.optional == "c"


def test_the_graph_has_a_tensor_and_tiles_for_each_output():
    graph = Gemm(epilogue=gelu_residual).graph((64, 128, 32))
    pre, d = graph.tensor("pre"), graph.tensor("D")
    assert (pre.dtype, pre.role, pre.shape) == ("bf16", d.role, d.shape)
    (op,) = (op for op in graph.control.operations if op.kind == "Epilogue")
    assert op.bindings["store_tiles"] == ("pre.tile.0", "pre.tile.1")
    assert [t.index("pre", axis) for t in graph.tilings for axis in (0, 1)] == [
        "pre.index.0",
        "pre.index.1",
    ]


def test_pseudocode_shows_what_is_stored():
    text = Pipeline.parse("data-parallel")(Gemm(epilogue=copied).graph((64, 64, 32))).pseudocode()
    assert text.startswith("// D, copy = copied(A * B, residual), bf16 to bf16")
    assert "// copy[m, n] = t0;\n" in text
    batch = Gemm(epilogue=gelu_residual, batched=True).graph((64, 64, 32))
    assert "// pre[batch, m, n] = t0;\n" in batch.pseudocode()


def declared(**outputs: ep.Output) -> Any:
    return ep.epilogue(**outputs)


@pytest.mark.parametrize(
    ("outputs", "function", "message"),
    [
        ({"pre": ep.output()}, lambda acc: acc, "returns one value, but its outputs are D, pre"),
        ({}, lambda acc: (acc, acc), r"returns 2 values.*outputs are D;.*declare further"),
        ({"pre": ep.output()}, lambda acc: (acc, 1.0), r"returns 1\.0.*traced value"),
        ({"pre": ep.output()}, lambda acc, pre: (acc, pre), "pre is an output.*remove"),
        ({"acc": ep.output()}, lambda acc: (acc, acc), "acc is an output"),
    ],
)
def test_wrong_functions_are_refused(outputs: Any, function: Any, message: str):
    with pytest.raises(VerifyError, match=message):
        declared(**outputs)(function)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ep.output("nm"), "'nm' are not coordinates of an output; give 'mn'"),
        (lambda: ep.output(dtype="f33"), "unknown dtype 'f33'"),
        (lambda: ep.output("m", reduce="mean"), "^output: reduce='mean' is unknown"),
        (lambda: ep.operand("nm"), "^operand: 'nm' are not coordinates"),
        (lambda: ep.epilogue(x="nm")(lambda acc, x: acc + x), "^operand x: 'nm' are not"),
        (lambda: ep.output(3), "coordinates 3 is not text"),  # pyright: ignore[reportArgumentType]
        (lambda: ep.Output("two words"), "cannot be the name of an output"),
        (lambda: ep.parse_function("f() -> x: mn { acc }"), "declares 1 outputs.*gives 0 values"),
        (lambda: ep.parse_function("f() { acc, acc }"), "declares 0 outputs.*gives 1 values"),
        (lambda: ep.parse_function("f() -> x { acc, acc }"), "output 'x'.*write it as in 'pre: mn"),
        (lambda: ep.parse_function("f() -> x: mn { acc, %1 }"), "returns '%1'"),
        (lambda: ep.parse_function("f(x: n) -> x: mn { acc, x }"), "contain a name twice"),
        (lambda: ep.parse_function("f(x: n) -> y: mn { acc, acc }"), "no output depends on.* x"),
    ],
)
def test_wrong_declarations_are_refused(make: Any, message: str):
    with pytest.raises(VerifyError, match=message):
        make()


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        ("f() -> out: mn { acc, acc }", {}, "output 'out' has a name that kernels already use"),
        ("f() -> alpha: mn { acc, acc }", {}, "output 'alpha' has a name"),
        ("f() -> x: mn i8 { acc, acc }", {}, r"returns f32 for the output 'x'.*stored as i8"),
        ("f() -> x: mn { %0 = compare(acc, 1, relation='<'); acc, %0 }", {}, "returns bool"),
        (
            "f() -> ld_a: mn { acc, acc }",
            {"leading_dimensions": ("A",)},
            "output 'ld_a' has the name of a kernel parameter",
        ),
    ],
)
def test_outputs_that_kernels_cannot_store_are_refused(text: str, options: Any, message: str):
    with pytest.raises(VerifyError, match=message):
        Gemm(epilogue=ep.parse_function(text), **options)
