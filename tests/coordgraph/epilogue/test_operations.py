"""Tests of epilogue operations on CPU and GPU against NumPy in f64, and of user-defined ones."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import codegen
from coordgraph import CodegenError, Gemm, VerifyError
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


@pytest.fixture
def cube() -> Iterator[ep.Elementwise]:
    class Cube(ep.Elementwise):
        """The epilogue operation `a * a * a`."""

        name = "test_cube"

        def numpy(self, *arguments: Array, **constants: Any) -> Array:
            """Compute a · a · a with NumPy."""
            (a,) = arguments
            return a * a * a

        def llvm(self, emit: ep.Emitter, kind: str, *arguments: Any, **constants: Any) -> Any:
            """Emit two multiplications: (a · a) · a."""
            (a,) = arguments
            return emit.mul(kind, emit.mul(kind, a, a), a)

    yield Cube()
    del OPERATIONS["test_cube"]


def test_an_operation_from_outside_is_one_class(cube: ep.Elementwise):
    """A user adds an epilogue operation by defining one class.

    The operation can be traced, printed and parsed, runs in the interpreter and on the CPU, and
    compiles to PTX.
    """

    @ep.epilogue(bias="n")
    def cubed(acc: Any, bias: Any) -> Any:
        return cube(acc + bias)

    assert ep.parse_function(ep.function_text(cubed)) == cubed
    graph = DataParallel()(Gemm("f32", epilogue=cubed).graph((8, 8, 8)))
    x, y = samples(9, 11)
    b = np.eye(11, dtype=np.float32)
    for target in ("interpreter", "cpu"):
        made = codegen.compile(graph, target)(x, b, bias=y[0])
        np.testing.assert_allclose(made, (x + y[0]) ** 3, rtol=1e-5, atol=1e-6)
    assert "test_cube((acc + bias[n]))" in graph.pseudocode()
    ptx = codegen.compile(DataParallel()(Gemm("bf16", epilogue=cubed).graph()), "sm_80").ptx
    assert "mul" in ptx


@quick_cases(6)
@pytest.mark.parametrize(
    ("call", "why"),
    [
        (lambda emit, kind, a: emit.library("misspelt", kind, a), "no C function 'misspeltf'"),
        (
            lambda emit, kind, a: emit.library("exp", "i32", a),
            "calls functions of f32 and f64, not i32",
        ),
        (lambda emit, kind, a: emit.asm("ex2.approx.f32", a), "'ex2.approx.f32'.* if emit.gpu"),
        (
            lambda emit, kind, a: None,
            r"test_wrong: its method llvm\(emit, …\) returned None; return the value",
        ),
        (
            lambda emit, kind, a: emit.minimum(kind, a, a),
            r"raised AttributeError: .*'minimum'; .* of emit are add\(kind, a, b\), asm\(",
        ),
        (lambda emit, kind, a: emit.add(a, a), r"raised TypeError: .*; .* of emit are add\(kind"),
        (
            lambda emit, kind, a: emit.select(emit.compare(kind, a, a, "<"), a, a),
            r"write compare\(kind, relation, a, b\), with a kind of f32, .* of < <= > >= == !=",
        ),
        (
            lambda emit, kind, a: emit.select(emit.compare("<", kind, a, a), a, a),
            r"emit.compare\(<, f32, …\) is not possible; write compare\(kind, relation",
        ),
        (
            lambda emit, kind, a: emit.intrinsic("llvm.misspelt", kind, a),
            r"emit.intrinsic\('llvm.misspelt', f32, …\): LLVM has no intrinsic of this name",
        ),
        (
            lambda emit, kind, a: emit.intrinsic("llvm.fma", kind, a),
            "that takes 1 of f32 and returns f32",
        ),
        (
            lambda emit, kind, a: emit.add("f16", a, a),
            "emit.add: 'f16' is no kind; choose one of f32, f64, i32, bool",
        ),
        (
            lambda emit, kind, a: emit.mul("f64", a, a),
            r"emit.mul\(f64, …\): an argument is of f32; write emit.convert\(value, 'f32', 'f64'\)",
        ),
        (
            lambda emit, kind, a: 3.0,
            r"test_wrong: its method llvm\(emit, …\) must return a value of f32; .* emitted value",
        ),
        (
            lambda emit, kind, a: emit.compare(kind, "<", a, a),
            r"must return a value of f32; .*: an argument is of bool; write emit.convert",
        ),
        (
            lambda emit, kind, a: emit.library("exp", kind, 3.0),
            r"emit.library\(f32, …\): 3.0 is no emitted value; write emit.constant\(3.0, 'f32'\)",
        ),
    ],
)
def test_what_a_host_s_code_cannot_call(call: Any, why: str):
    """A C function that does not exist is refused by name before the code is linked.

    To link a missing symbol would end the process.
    """

    class Wrong(ep.Elementwise):
        name = "test_wrong"

        def numpy(self, *arguments: Array, **constants: Any) -> Array:
            return arguments[0]

        def llvm(self, emit: ep.Emitter, kind: str, *arguments: Any, **constants: Any) -> Any:
            return call(emit, kind, *arguments)

    try:
        traced = ep.epilogue()(lambda acc: Wrong()(acc))
        graph = DataParallel()(Gemm("f32", epilogue=traced).graph((8, 8, 8)))
        with pytest.raises(CodegenError, match=why):
            codegen.compile(graph, "cpu")
    finally:
        del OPERATIONS["test_wrong"]


@pytest.mark.parametrize(
    ("bases", "members", "why"),
    [
        ((ep.Elementwise,), {"numpy": abs, "llvm": abs}, "Made has no name; set one, as in name ="),
        ((ep.Composed,), {"compose": abs}, "or declare a base class of operations by class Made"),
        ((ep.Elementwise,), {"name": "made", "llvm": abs}, "Made lacks the method numpy; an op"),
        ((ep.Elementwise,), {"name": "made", "numpy": abs}, "Made lacks the method llvm; an op"),
        ((ep.Elementwise,), {"name": "made"}, "lacks the method numpy and the method llvm"),
        ((ep.Composed,), {"name": "made"}, "Made lacks the method compose; an operation has"),
    ],
)
def test_a_class_that_lacks_something_is_no_operation(
    bases: tuple[type, ...], members: dict[str, Any], why: str
):
    with pytest.raises(VerifyError, match=why):
        type("Made", bases, members)
    assert "made" not in OPERATIONS


def test_base_classes_of_operations_are_not_registered():
    class Base(ep.Composed, abstract=True):
        name = "test_base"

    assert Base.name not in OPERATIONS


def test_compose_takes_values_by_position_and_options_by_name():
    on = ep.Algebra("f32")
    x = np.float32([-2.0, 0.5])
    np.testing.assert_array_equal(on("clamp", x, -1, 1), np.float32([-1.0, 0.5]))
    assert on("gelu", x, approximate="tanh").dtype == np.float32
    with pytest.raises(VerifyError, match=r'on\("clamp", …\) takes 3 values, not 1; give values'):
        on("clamp", x, low=-1, high=1)
    with pytest.raises(VerifyError, match="clamp has no option 'low'"):
        on("clamp", x, -1, 1, low=3)
    with pytest.raises(VerifyError, match="approximate='fast' must be 'none' or 'tanh'"):
        on("gelu", x, approximate="fast")


def test_names_of_operations():
    """A class with the name of another operation is refused, unless the same module defines both
    classes.

    Names that the text form cannot express are refused.
    """
    relu = OPERATIONS["relu"]
    with pytest.raises(VerifyError, match=r"has the name 'relu', .* by .*operations.relu.Relu"):
        type("Mine", (ep.Elementwise,), {"name": "relu"})
    with pytest.raises(VerifyError, match="has the name 'relu', which is taken"):
        type("Derived", (type(relu),), {})
    assert OPERATIONS["relu"] is relu
    for name in ("soft-plus", "2x", "größer", "a b"):
        with pytest.raises(VerifyError, match="use ASCII letters, digits"):
            type("Mine", (ep.Elementwise,), {"name": name})
    try:
        members = {"name": "test_mine", "numpy": abs, "llvm": abs}
        first, second = (type("Mine", (ep.Elementwise,), members) for _ in range(2))
        assert isinstance(OPERATIONS["test_mine"], second)
        assert not isinstance(OPERATIONS["test_mine"], first)
    finally:
        del OPERATIONS["test_mine"]


def test_bounds_of_clamp_may_be_passed_by_name():
    by_place = ep.epilogue()(lambda acc: ep.clamp(acc, -1, 6))
    for call in (
        lambda acc: ep.clamp(acc, min=-1, max=6),
        lambda acc: ep.clamp(acc, -1, max=6),
        lambda acc: ep.clamp(acc, max=6, min=-1),
    ):
        assert ep.epilogue()(call).steps == by_place.steps
    with pytest.raises(VerifyError, match=r"clamp takes 3 values \(a, min, max\), not 2"):
        ep.epilogue()(lambda acc: ep.clamp(acc, min=-1))
    with pytest.raises(VerifyError, match="clamp has no option 'low'"):
        ep.epilogue()(lambda acc: ep.clamp(acc, min=-1, max=6, low=3))
