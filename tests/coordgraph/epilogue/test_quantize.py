"""Tests of the epilogue operation `quantize`: its meaning, its kinds, and the outputs it allows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from coordgraph import Gemm, VerifyError
from coordgraph import epilogue as ep
from coordgraph.interpreter.arguments import Array, numpy_dtype


def quantized(values: list[float], to: str) -> list[int]:
    function = ep.parse_function(f"f() {{ %0 = quantize(acc, to='{to}'); %0 }}")
    found: Array = function.evaluate({"acc": np.array(values, np.float32)}, "f32", to)
    assert found.dtype == {"i8": np.int8, "u8": np.uint8}[to]
    return found.tolist()


def test_ties_go_to_the_even_number():
    assert quantized([0.5, 1.5, 2.5, -0.5, -1.5, 2.4999998], "i8") == [0, 2, 2, 0, -2, 2]


def test_numbers_outside_the_range_saturate():
    values = [127.4, 127.5, 1e30, np.inf, -128.5, -128.6, -np.inf, np.nan]
    assert quantized(values, "i8") == [127, 127, 127, 127, -128, -128, -128, 0]
    assert quantized([-0.5, -0.6, -7, 254.5, 255.5, np.nan], "u8") == [0, 0, 0, 254, 255, 0]


@pytest.mark.parametrize("to", ["e4m3", "e5m2"])
def test_floats_are_rounded_to_8_bits(to: str):
    """Ties go to the even number, numbers out of range to the largest one, and NaN stays NaN."""
    kind = numpy_dtype(to)
    small = np.arange(256, dtype=np.uint8).view(kind)
    known = np.unique(small[np.isfinite(small)].astype(np.float32))
    function = ep.parse_function(f"f() {{ %0 = quantize(acc, to='{to}'); %0 }}")

    def found(values: Array) -> Array:
        made = function.evaluate({"acc": values}, "f32", to)
        assert made.dtype == kind
        return made.astype(np.float32)

    assert np.array_equal(found(known), known)
    middle = (known[1:] + known[:-1]) / 2
    up, down = np.nextafter(middle, np.float32(np.inf)), np.nextafter(middle, np.float32(-np.inf))
    assert np.array_equal(found(up), known[1:])
    assert np.array_equal(found(down), known[:-1])
    even = (np.arange(len(known)) + len(known) // 2) % 2 == 0  # 0 is in the middle
    assert np.array_equal(found(middle), np.where(even[1:], known[1:], known[:-1]))
    assert found(np.array([1e9, np.inf, -1e9, -np.inf])).tolist() == [
        *(known[-1], known[-1], known[0], known[0])
    ]
    assert np.isnan(found(np.array([np.nan, -np.nan]))).all()


def test_d_has_the_type_to_which_it_is_quantized():
    @ep.epilogue(scale="", more=ep.output(dtype="u8"))
    def scaled(acc: Any, scale: Any) -> Any:
        return ep.quantize(acc * scale), ep.quantize(acc, to="u8")

    graph = Gemm("bf16", epilogue=scaled).graph()
    assert (graph.tensor("D").dtype, graph.tensor("more").dtype) == ("i8", "u8")
    assert Gemm("bf16", out_dtype="f32", epilogue=scaled).graph().tensor("D").dtype == "f32"


def test_a_quantized_value_is_cast_back():
    function = ep.parse_function("f() { %0 = quantize(acc); %1 = cast(%0); %2 = mul(%1, 0.5); %2 }")
    assert function.kinds("f32", "f32").result == "f32"
    assert function.evaluate({"acc": np.float32(300)}, "f32", "f32") == 63.5


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        ("f() { %0 = quantize(acc); %1 = add(%0, 1.0); %1 }", {}, "add takes no quantized value"),
        ("f() { %0 = quantize(acc); %0 }", {"dtype": "i8"}, "quantize takes f32 and f64, not i32"),
        ("f() { %0 = quantize(acc); %0 }", {"out_dtype": "u8"}, "return ep.quantize.*to='u8'"),
        (
            "f() -> x: mn i8 { %0 = quantize(acc, to='u8'); acc, %0 }",
            {},
            "returns u8.*stored as i8",
        ),
    ],
)
def test_wrong_uses_are_refused(text: str, options: Any, message: str):
    with pytest.raises(VerifyError, match=message):
        Gemm(epilogue=ep.parse_function(text), **options)


def test_other_types_are_refused():
    with pytest.raises(VerifyError, match="to='i32' is none of i8, u8, e4m3, e5m2"):
        ep.parse_function("f() { %0 = quantize(acc, to='i32'); %0 }")
