"""Tests of epilogue operations that users define: one class each, its names, and refusals."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import codegen
from coordgraph import CodegenError, Gemm, VerifyError
from coordgraph import epilogue as ep
from coordgraph.epilogue.operation import Array
from coordgraph.epilogue.values import OPERATIONS
from passes import DataParallel
from tests.support.sampling import quick_cases


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
    rng = np.random.default_rng(7)
    x, y = (rng.normal(scale=2, size=(9, 11)).astype(np.float32) for _ in range(2))
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
            "emit.add: 'f16' is not a known kind; choose one of f32, f64, i32, bool",
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
