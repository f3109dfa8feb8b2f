"""Invalid arguments of public functions are refused with the message `NAME = VALUE is not …`."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sympy import Float, Integer, Rational, pi

from coordgraph import Gemm, LaunchError, VerifyError
from coordgraph.integers import size_symbol
from coordgraph.tensors import dtype
from coordgraph.validation import flag, integer, integers, whole


@pytest.mark.parametrize("value", [5, np.int64(5), np.uint8(5)])
def test_whole_numbers(value: Any):
    assert whole(value, "m") == 5
    assert type(whole(value, "m")) is int


@pytest.mark.parametrize("value", ["5", 5.0, None, [5], np.float32(5), True, np.True_])
def test_what_is_no_whole_number(value: Any):
    with pytest.raises(LaunchError, match=r"m = .* is not a whole number"):
        whole(value, "m", LaunchError)


@pytest.mark.parametrize("value", [Integer(5), size_symbol("m"), size_symbol("m") + 3])
def test_expressions(value: Any):
    assert integer(value, "size", least=4) is value
    assert integers([value, np.int64(5)], "sizes") == (value, Integer(5))


def test_what_is_least():
    assert whole(1, "m", least=1) == 1
    for check in (whole, integer):
        with pytest.raises(LaunchError, match="m = 0 must be at least 1"):
            check(0, "m", LaunchError, least=1)


@pytest.mark.parametrize("value", [5.0, "m", True, None, Float(5), Rational(1, 2), pi])
def test_what_is_no_expression(value: Any):
    with pytest.raises(LaunchError, match=r"size = .* whole number"):
        integer(value, "size", LaunchError)


@pytest.mark.parametrize("value", [True, 1, np.True_, np.int32(1)])
def test_flags(value: Any):
    assert flag(value, "tune") is True
    assert flag(type(value)(0), "tune") is False


@pytest.mark.parametrize("value", ["no", "", None, 2, 0.0, [], np.zeros(1)])
def test_what_is_no_flag(value: Any):
    with pytest.raises(VerifyError, match=r"tune = .* is neither True nor False"):
        flag(value, "tune")


@pytest.mark.parametrize("value", [["bf16"], 5, None, np.float32])
def test_what_is_no_name_of_a_type(value: Any):
    with pytest.raises(
        VerifyError, match=r"dtype = .* is not the name of an element type; use bf16"
    ):
        dtype(value)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"dtype": ["bf16"]}, "not the name of an element type"),
        ({"out_dtype": 0}, "dtype = 0 is not the name of an element type"),
        ({"transpose_a": "no"}, "Gemm: transpose_a = 'no' is neither"),
        ({"grouped": "no"}, "Gemm: grouped = 'no' is neither"),
        ({"m": "64"}, "Gemm: m = '64' is not a whole number"),
        ({"n": 64.0}, "Gemm: n = 64.0 is not a whole number"),
        ({"k": 0}, r"Gemm: k = 0 must be in 1\.\."),
    ],
)
def test_problems(options: dict[str, Any], words: str):
    with pytest.raises(VerifyError, match=words):
        Gemm(**options)


def test_numbers_of_numpy_make_the_same_problem():
    found = Gemm(m=np.int64(64), transpose_b=np.True_)
    assert found == Gemm(m=64, transpose_b=True)
    assert (type(found.m), type(found.transpose_b)) == (int, bool)
    tile = tuple(np.array([16, 16, 16]))
    assert Gemm().graph(tile) == Gemm().graph((16, 16, 16))


@pytest.mark.parametrize("tile", [5, "128x128x32", (16, 16), (16, 16, 0), (16, 16, 1.0)])
def test_tiles(tile: Any):
    with pytest.raises(VerifyError, match="must be three positive integers"):
        Gemm().graph(tile)
