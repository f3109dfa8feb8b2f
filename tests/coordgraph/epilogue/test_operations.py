"""Tests of epilogue operations on CPU and GPU against NumPy in f64."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import codegen
from coordgraph import Gemm
from coordgraph import epilogue as ep
from coordgraph.epilogue.operation import NUMPY_KINDS, Array
from coordgraph.epilogue.values import OPERATIONS
from passes import DataParallel
from tests.support.sampling import chosen, quick_cases

_ERF = np.vectorize(math.erf, otypes=[np.float64])


def sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


def tanh_gelu(x: Array) -> Array:
    return x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))) / 2


EXACT: dict[str, tuple[Any, Any]] = {
    "add": (lambda x, y: x + y, lambda x, y: x + y),
    "sub": (lambda x, y: x - y, lambda x, y: x - y),
    "mul": (lambda x, y: x * y, lambda x, y: x * y),
    "div": (lambda x, y: x / y, lambda x, y: x / y),
    "neg": (lambda x, y: -x, lambda x, y: -x),
    "abs": (lambda x, y: ep.abs(x), lambda x, y: np.abs(x)),
    "fma": (lambda x, y: ep.fma(x, y, 0.5), lambda x, y: x * y + 0.5),
    "minimum": (ep.minimum, np.minimum),
    "maximum": (ep.maximum, np.maximum),
    "clamp": (lambda x, y: ep.clamp(x, -0.5, y), lambda x, y: np.minimum(np.maximum(x, -0.5), y)),
    "where": (lambda x, y: ep.where(x > y, x, 2.0), lambda x, y: np.where(x > y, x, 2.0)),
    "compare": (
        lambda x, y: ep.cast(x <= y, to="f32") + ep.where(x != y, 2.0, x),
        lambda x, y: (x <= y) + np.where(x != y, 2.0, x),
    ),
    "cast": (
        lambda x, y: ep.cast(ep.cast(x * 7, to="i32"), to="f32"),
        lambda x, y: np.trunc(x * 7),
    ),
    "quantize": (
        lambda x, y: ep.cast(ep.quantize(x * 4), to="f32"),
        lambda x, y: np.clip(np.rint(x * 4), -128, 127),
    ),
    "exp": (lambda x, y: ep.exp(x), lambda x, y: np.exp(x)),
    "log": (lambda x, y: ep.log(ep.abs(x) + 0.01), lambda x, y: np.log(np.abs(x) + 0.01)),
    "sqrt": (lambda x, y: ep.sqrt(ep.abs(x)), lambda x, y: np.sqrt(np.abs(x))),
    "rsqrt": (lambda x, y: ep.rsqrt(ep.abs(x) + 0.1), lambda x, y: (np.abs(x) + 0.1) ** -0.5),
    "tanh": (lambda x, y: ep.tanh(x), lambda x, y: np.tanh(x)),
    "erf": (lambda x, y: ep.erf(x), lambda x, y: _ERF(x)),
    "sigmoid": (lambda x, y: ep.sigmoid(x), lambda x, y: sigmoid(x)),
    "relu": (lambda x, y: ep.relu(x), lambda x, y: np.maximum(x, 0)),
    "leaky_relu": (
        lambda x, y: ep.leaky_relu(x, slope=0.25),
        lambda x, y: np.where(x > 0, x, x / 4),
    ),
    "silu": (lambda x, y: ep.silu(x), lambda x, y: x * sigmoid(x)),
    "gelu": (
        lambda x, y: ep.gelu(x) + ep.gelu(y, approximate="tanh"),
        lambda x, y: x * (1 + _ERF(x / np.sqrt(2))) / 2 + tanh_gelu(y),
    ),
}
"""For each operation: an epilogue of the product x and an operand y, and the same in NumPy."""
BOUND = 2.0**-21
"""Error bound of an f32 operation, relative to the largest of 1, its result and |x| + |y|."""


def function(name: str) -> ep.EpilogueFunction:
    def body(acc: Any, y: Any) -> Any:
        made = EXACT[name][0](acc, y)
        return made + (y - y)  # an epilogue must use all its operands

    return ep.epilogue(y="mn")(body)


def samples(m: int, n: int) -> tuple[Array, Array]:
    rng = np.random.default_rng(7)
    x, y = (rng.normal(scale=2, size=(m, n)).astype(np.float32) for _ in range(2))
    return x, y


def test_every_operation_has_an_exact_meaning_here():
    assert {*EXACT} >= {name for name in OPERATIONS if not name.startswith("test_")}


def near(name: str, x: Array, y: Array, found: Array) -> bool:
    """Whether an f32 result differs from the f64 result by at most the error that BOUND allows."""
    exact = EXACT[name][1](x.astype(np.float64), y.astype(np.float64))
    room = BOUND * np.maximum(1, np.maximum(np.abs(exact), np.abs(x) + np.abs(y)))
    return bool((np.abs(found - exact) <= room).all())


@pytest.mark.parametrize("name", EXACT)
def test_the_meaning(name: str):
    x, y = samples(13, 21)
    assert near(name, x, y, function(name).evaluate({"acc": x, "y": y}, "f32", "f32"))


QUICK = {
    "sub",
    "quantize",
    "div",
    "fma",
    "clamp",
    "compare",
    "cast",
    "exp",
    "log",
    "rsqrt",
    "silu",
    "gelu",
}


@quick_cases(5)
@pytest.mark.parametrize("name", chosen(QUICK, EXACT))
def test_the_host_s_code(name: str):
    """Epilogue operations on the CPU, some of which call C functions, have small errors."""
    x, y = samples(13, 21)
    graph = DataParallel()(Gemm("f32", epilogue=function(name)).graph((8, 8, 8)))
    found = codegen.compile(graph, "cpu")(x, np.eye(21, dtype=np.float32), y=y)
    assert near(name, x, y, found)


@pytest.mark.parametrize(
    "name",
    chosen({"log", "sqrt", "gelu"}, ["exp", "log", "tanh", "erf", "sqrt", "gelu", "sigmoid"]),
)
def test_f64_on_the_host(name: str):
    x, y = (v.astype(np.float64) for v in samples(9, 17))
    graph = DataParallel()(
        Gemm(
            "f64",
            epilogue=ep.parse_function(
                ep.function_text(function(name)).replace("to='f32'", "to='f64'")
            ),
        ).graph((8, 8, 8))
    )
    made = codegen.compile(graph, "cpu")(x, np.eye(17), y=y)
    np.testing.assert_allclose(made, EXACT[name][1](x, y), rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("name", ["minimum", "maximum", "relu", "clamp"])
def test_nan_stays_nan(name: str):
    x, y = np.full((4, 4), np.nan, np.float32), np.ones((4, 4), np.float32)
    traced = function(name)
    assert np.isnan(traced.evaluate({"acc": x, "y": y}, "f32", "f32")).all()
    graph = DataParallel()(Gemm("f32", epilogue=traced).graph((8, 8, 8)))
    assert np.isnan(codegen.compile(graph, "cpu")(x, np.eye(4, dtype=np.float32), y=y)).all()


def emulated(instruction: str, *arguments: Array) -> Array:
    """The correctly rounded f32 result of a PTX instruction; a GPU's may be less exact."""
    meaning: dict[str, Any] = {
        "ex2.approx.ftz.f32": np.exp2,
        "lg2.approx.f32": np.log2,
        "rcp.approx.ftz.f32": lambda x: 1 / x,
        "rsqrt.approx.f32": lambda x: x**-0.5,
        "sqrt.approx.f32": np.sqrt,
        "tanh.approx.f32": np.tanh,
        "div.full.f32": np.divide,
    }
    return meaning[instruction](*(a.astype(np.float64) for a in arguments)).astype(np.float32)


class ByHand:
    """An `Emitter` whose methods do not emit a GPU instruction, but compute its result in NumPy."""

    gpu = True

    def __init__(self, *, fast: bool) -> None:
        self.fast = fast

    def constant(self, value: float, kind: str) -> Array:
        return np.asarray(value, NUMPY_KINDS[kind])

    def add(self, kind: str, a: Array, b: Array) -> Array:
        return a + b

    def sub(self, kind: str, a: Array, b: Array) -> Array:
        return a - b

    def mul(self, kind: str, a: Array, b: Array) -> Array:
        return a * b

    def div(self, kind: str, a: Array, b: Array) -> Array:
        return a / b

    def neg(self, kind: str, a: Array) -> Array:
        return -a

    def compare(self, kind: str, relation: str, a: Array, b: Array) -> Array:
        return OPERATIONS["compare"].numpy(a, b, relation=relation)

    def select(self, condition: Array, yes: Array, no: Array) -> Array:
        return np.where(condition, yes, no)

    def convert(self, value: Array, source: str, target: str) -> Array:
        return value.astype(NUMPY_KINDS[target])

    def saturate(self, value: Array, kind: str, target: str) -> Array:
        return OPERATIONS["quantize"].numpy(value, to=target)

    def intrinsic(self, name: str, kind: str, *arguments: Array) -> Array:
        if name == "llvm.fma":
            return OPERATIONS["fma"].numpy(*np.broadcast_arrays(*arguments))
        known: dict[str, Any] = {
            "llvm.fabs": np.abs,
            "llvm.sqrt": np.sqrt,
            "llvm.copysign": np.copysign,
            "llvm.maximum": np.maximum,
            "llvm.minimum": np.minimum,
        }
        return known[name](*arguments)

    def library(self, name: str, kind: str, *arguments: Array) -> Array:
        raise AssertionError("a GPU has no C library")

    def asm(self, instruction: str, *arguments: Array) -> Array:
        return emulated(instruction, *arguments)


@pytest.mark.parametrize("fast", [True, False])
@pytest.mark.parametrize("name", EXACT)
def test_the_gpu_s_way_is_as_exact_as_its_instructions(name: str, fast: bool):
    """GPU formulas are as exact as the f32 instructions that they use, if these round correctly.

    This tests polynomials, argument ranges and selections.
    """
    x = np.concatenate([np.linspace(-12, 12, 4001), np.logspace(-8, 1.9, 999)]).astype(np.float32)
    y = np.roll(x, 17)
    y[y == 0] = 1
    exact = EXACT[name][1](x.astype(np.float64), y.astype(np.float64))
    with np.errstate(all="ignore"):
        _, made = function(name).emit(ByHand(fast=fast), {"acc": x, "y": y}, "f32", "f32")
    # A fast exponential computes 2**(x / ln 2), so it also has the rounding error of the quotient.
    bound = 2.0**-16 if fast and name in ("exp", "sigmoid", "silu") else 2.0**-20
    least = {"gelu": np.abs(x) + np.abs(y), "log": 1}.get(name, 1e-3)
    room = bound * np.maximum(np.abs(exact), least)
    # Some f32 instructions of PTX flush results below the smallest normal number to 0.
    small = np.abs(exact) < 1e-36
    assert ((np.abs(made - exact) <= room) | small | (np.abs(x) + np.abs(y) > 60)).all()
