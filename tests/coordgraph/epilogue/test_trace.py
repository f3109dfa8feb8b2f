"""Tracing an epilogue function records its operations as steps; text forms keep the steps."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from keyword import iskeyword
from typing import Any

import numpy as np
import pytest

from coordgraph import Gemm, PassError, VerifyError, from_json, parse
from coordgraph import epilogue as ep
from coordgraph.epilogue.operand import Operand
from coordgraph.epilogue.stages import stages_of
from coordgraph.problem_names import RESERVED
from passes import Pipeline
from tests.support.sampling import quick_cases


@ep.epilogue(bias="n", residual="mn")
def bias_gelu_residual(acc: Any, bias: Any, residual: Any) -> Any:
    return ep.gelu(acc + bias, approximate="tanh") + residual


def test_a_function_becomes_steps():
    text = ep.function_text(bias_gelu_residual)
    assert text == (
        "bias_gelu_residual(bias: n, residual: mn) { %0 = add(acc, bias); "
        "%1 = gelu(%0, approximate='tanh'); %2 = add(%1, residual); %2 }"
    )
    assert ep.parse_function(text) == bias_gelu_residual
    assert hash(ep.parse_function(text)) == hash(bias_gelu_residual)


def test_the_same_step_is_recorded_once_and_a_dead_one_not_at_all():
    @ep.epilogue(bias="n")
    def twice(acc: Any, bias: Any) -> Any:
        ep.exp(acc)  # no result uses this value, so its step is not recorded
        return ep.relu(acc + bias) * (acc + bias)

    assert [step.operation for step in twice.steps] == ["add", "relu", "mul"]


def test_only_what_is_exact_is_folded():
    @ep.epilogue()
    def same(acc: Any) -> Any:
        return 1 * (acc * 1.0 - 0.0) / 1

    assert same.steps == ()
    assert same.result == "acc"

    @ep.epilogue()
    def not_the_same(acc: Any) -> Any:
        return acc + 0.0  # -0 + 0 is 0, so this is not acc

    assert len(not_the_same.steps) == 1


@ep.epilogue(
    bias="n",
    row=ep.operand("m", "f32"),
    c=ep.operand("lmn", optional=True),
    scale="",
    factor=ep.operand(dtype="f32", in_memory=True),
)
def everything(acc: Any, bias: Any, row: Any, c: Any, scale: Any, factor: Any) -> Any:
    x = ep.where(acc * scale > -1e-07, acc * factor, -acc) + row
    return ep.clamp(x, -1.5, float("inf")) + ep.cast(ep.cast(bias, to="i32"), to="f32") + c


@quick_cases(3)
@pytest.mark.parametrize("function", [bias_gelu_residual, everything, ep.ALPHA_BETA], ids=repr)
@pytest.mark.parametrize("options", [{}, {"batched": True}, {"grouped": True}], ids=str)
def test_graphs_are_written_and_read_back(function: Any, options: dict[str, bool]):
    graph = Gemm("bf16", epilogue=function, **options).graph((32, 32, 32)).verify()
    scheduled = Pipeline.parse("data-parallel{persistent=true}")(graph)
    for g in (graph, scheduled):
        assert parse(g.text()) == g
        assert from_json(g.json()) == g
        assert "acc" in g.pseudocode()
        assert g.coordinates.mermaid()
        assert g.control.mermaid()


def test_pseudocode_names_coordinates():
    text = Gemm("bf16", epilogue=bias_gelu_residual).graph().pseudocode()
    assert "// acc = gelu((acc + bias[n]), approximate=tanh) + residual[m, n];" in text
    assert text.startswith("// D = bias_gelu_residual(A * B, bias, residual), bf16 to bf16")


def test_an_axis_that_an_operand_lacks_has_no_path_to_it():
    c = Gemm("bf16", epilogue=bias_gelu_residual).graph().coordinates
    below = {d for d in c.below("bias")}
    assert "bias.tile.0" in below
    assert "B.tile.1" in below
    assert not below & {"A.tile.0", "D.tile.0", "A.index.0"}


def refused(why: str, make: Callable[[], object]) -> None:
    with pytest.raises(VerifyError, match=why):
        make()


def test_what_is_refused():
    def first(x: Any) -> Any:
        return x

    def unused(acc: Any, bias: Any) -> Any:
        return acc

    def branch(acc: Any) -> Any:
        return acc if acc > 0 else -acc

    def array(acc: Any) -> Any:
        return acc + np.ones(3)

    def number(acc: Any) -> Any:
        return 3.0

    refused("first parameter must be acc", lambda: ep.epilogue()(first))
    refused("does not depend on the operand bias", lambda: ep.epilogue(bias="n")(unused))
    refused("bias is not declared", lambda: ep.epilogue()(unused))
    refused(
        "bia is no parameter of the function, whose parameters are acc, bias; declare the operand",
        lambda: ep.epilogue(bia="n")(unused),
    )
    refused("use ep.where", lambda: ep.epilogue()(branch))
    refused("traced values and numbers", lambda: ep.epilogue()(array))
    refused("returns .*, which is not computed from acc", lambda: ep.epilogue()(number))
    refused("'nm' are not coordinates", lambda: ep.epilogue(bias="nm")(unused))
    refused("no option 'way'", lambda: ep.epilogue()(lambda acc: ep.gelu(acc, way=1)))
    refused(
        "must be 'none' or 'tanh'", lambda: ep.epilogue()(lambda acc: ep.gelu(acc, approximate="x"))
    )
    refused("takes 1 value, not 2", lambda: ep.epilogue()(lambda acc: ep.relu(acc, acc)))


class Adding:
    """An epilogue that is an object with `__call__`, so it has no `__name__`."""

    def __call__(self, acc: Any, bias: Any) -> Any:
        return acc + bias


def scaled(acc: Any, bias: Any) -> Any:
    return acc + bias


def test_what_can_be_called_is_traced():
    for function in (Adding(), functools.partial(scaled)):
        # the name of a callable without `__name__` is `unnamed`
        assert ep.epilogue(bias="n")(function).name == "unnamed"


@pytest.mark.parametrize("given", [5, None, ["n"]])
def test_coordinates_that_are_no_text(given: Any):
    refused('write bias="n", or bias=operand', lambda: ep.epilogue(bias=given))
    refused("coordinates .* is not text", lambda: ep.operand(given))
    if given is not None:
        refused("type .* is not text", lambda: ep.operand("n", given))


@pytest.mark.parametrize(
    ("function", "why"),
    [
        (lambda acc: acc**2, r"\*\* does not work .* multiply"),
        (lambda acc: 2**acc, r"\*\* does not work"),
        (lambda acc: acc // 2, r"// does not work .* for an i32 a .* ep.where\(r < 0, q - 1"),
        (lambda acc: acc % 2, r"% does not work .* for floats use ep.cast\(a / b"),
        (lambda acc: (acc > 0) & (acc < 1), "& does not work .* nest ep.where"),
        (lambda acc: (acc > 0) | (acc < 1), r"\| does not work .* nest ep.where"),
        (lambda acc: ~(acc > 0), "~ does not work .* swap the values of ep.where"),
        (lambda acc: math.exp(acc), r"float\(\) does not work .* ep.exp"),
        (lambda acc: np.exp(acc), "does not support ufuncs .*ep.exp for numpy.exp"),
        (lambda acc: np.maximum(acc, 0), "does not support ufuncs"),
        (lambda acc: acc.max(), "no attribute 'max'; traced values take"),
        (lambda acc: ep.leaky_relu(acc, 0.1), "takes 1 value, not 2; .* by name: slope=0.01"),
        (lambda acc: ep.cast(acc, "f32"), "takes 1 value, not 2; .* by name: to='f32'"),
        (lambda *acc: acc, r"the parameter \*acc cannot be passed by name"),
        (lambda acc, /: acc, "the parameter acc cannot be passed by name"),
        (5, "write a function"),
    ],
)
def test_what_python_allows_and_an_epilogue_does_not(function: Any, why: str):
    refused(why, lambda: ep.epilogue()(function))


def test_options_are_converted_to_the_type_of_their_default():
    def leaky(slope: Any) -> ep.EpilogueFunction:
        return ep.epilogue()(lambda acc: ep.leaky_relu(acc, slope=slope))

    assert leaky(np.float32(0.25)) == leaky(0.25) == leaky(np.array(0.25))
    assert leaky(1) == leaky(1.0)
    assert leaky(0.01).steps[0].constants == ()
    assert ep.parse_function(ep.function_text(leaky(np.float32(0.1)))) == leaky(np.float32(0.1))
    for wrong in ("0.1", None, True, [0.1], 10**400):
        refused("leaky_relu: the option slope=.*must be a number", lambda wrong=wrong: leaky(wrong))
    refused(
        "slope='x' is invalid: it must be a number",
        lambda: ep.parse_function("f() { %0 = leaky_relu(acc, slope=x); %0 }"),
    )
    refused(
        "slope=.*must be a constant, not a traced value",
        lambda: ep.epilogue(s="")(lambda acc, s: ep.leaky_relu(acc, slope=s)),
    )
    for text in ("tanh)", 1, "a,b"):
        refused(
            "approximate=.*must be text without",
            lambda text=text: ep.epilogue()(lambda acc: ep.gelu(acc, approximate=text)),
        )


def test_a_decorator_without_parentheses():
    refused(r"write @epilogue\(\) with parentheses", lambda: ep.epilogue(lambda acc: acc))


def test_an_epilogue_of_many_steps():
    """An epilogue may have more steps than Python's recursion limit."""

    @ep.epilogue(c=ep.operand("mn", optional=True))
    def long(acc: Any, c: Any) -> Any:
        for i in range(3000):
            acc, c = acc + i, -c
        return acc + c

    assert len(long.steps) == 6001
    assert [s.optional for s in stages_of(long, "f32", "f32")] == ["", "c"]
    assert ep.parse_function(ep.function_text(long)) == long


def test_types_that_do_not_go_together():
    @ep.epilogue(mask=ep.operand("mn", "i32"))
    def mixed(acc: Any, mask: Any) -> Any:
        return acc * mask

    refused("mul has arguments of kinds f32 and i32", lambda: Gemm("bf16", epilogue=mixed))

    @ep.epilogue()
    def truth(acc: Any) -> Any:
        return acc > 0

    refused(
        "returns bool, which cannot be computed from sums in f32",
        lambda: Gemm("bf16", epilogue=truth),
    )

    @ep.epilogue()
    def whole(acc: Any) -> Any:
        return ep.cast(acc, to="i32")

    refused(
        "returns i32, which cannot be computed from sums in f32",
        lambda: Gemm("bf16", epilogue=whole),
    )
    refused(
        r"pass codegen.matmul an array 'out' of that type, or set Gemm\(out_dtype='f32'\)",
        lambda: Gemm("i8", epilogue=ep.epilogue()(lambda acc: ep.cast(acc, to="f32"))),
    )


@pytest.mark.parametrize("number", [2**31, -(2**31) - 1, 4e9, 0.5, float("inf"), float("nan")])
def test_numbers_that_i32_cannot_hold(number: float):
    @ep.epilogue()
    def moved(acc: Any) -> Any:
        return acc + number

    refused(
        "add combines a value of type i32 with .* use ep.cast", lambda: Gemm("i8", epilogue=moved)
    )
    assert Gemm("f32", epilogue=moved)


def test_numbers_that_no_float_can_hold():
    refused("less than 2\\^1024", lambda: ep.epilogue()(lambda acc: acc * 10**400))
    refused("less than 2\\^1024", lambda: ep.epilogue()(lambda acc: acc * 10**5000))
    written = ep.parse_function(f"f() {{ %0 = mul(acc, 1{'0' * 400}); %0 }}")
    refused("too large for f32", lambda: Gemm("f32", epilogue=written))


def test_names_that_mean_something_else():
    taken = ep.parse_function("f(workgroup: n) { %0 = add(acc, workgroup); %0 }")
    refused("rename the operand", lambda: Gemm("bf16", epilogue=taken))
    for more in ("read_x", "share", "k_tile", "selector"):
        text = f"f(x: mn optional, {more}: mn) {{ %0 = add(x, {more}); %1 = add(acc, %0); %1 }}"
        function = ep.parse_function(text)
        refused(
            f"operand '{more}' has .*rename the operand", lambda f=function: Gemm("f32", epilogue=f)
        )
    assert Gemm("f32", epilogue=ep.parse_function(text.replace("optional", "").replace(more, "X")))
    refused("epilogue=3 is not an epilogue", lambda: Gemm("bf16", epilogue=3))  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["a", "b", "out", "plan", "rows", "offsets", "tile"])
def test_names_of_arguments_are_refused_when_the_function_is_made(name: str):
    """A call could not pass such an operand by name."""
    function: Any = eval(f"lambda acc, {name}: acc + {name}")
    refused(f"the operand '{name}' has .* rename", lambda: ep.epilogue(**{name: "n"})(function))
    stored = ep.epilogue(**{name: ep.output()})
    refused(f"the output '{name}' has .* rename", lambda: stored(lambda acc: (acc, acc)))


PROBLEMS: list[dict[str, Any]] = [
    {},
    {"batched": True},
    *({"grouped": True, "group_axis": axis} for axis in ("m", "k", "mnk")),
]
SCHEDULES = (
    "data-parallel{persistent=true,workgroups=4}",
    "stream-k{workgroups=5,reduction=turnstile}",
    "two-tile-stream-k{workgroups=4}",
    "split-k{splits=3}",
    "heterogeneous-tiles{workgroups=3}",
)


@quick_cases(1)
@pytest.mark.parametrize("options", PROBLEMS, ids=str)
def test_no_operand_can_have_a_name_of_a_graph(options: dict[str, Any]):
    """All names of a graph's tensors, parameters and coordinates are reserved.

    An operand of an epilogue has a tensor and coordinates in the same graph.
    """
    gemm = Gemm("f32", **options)
    for schedule in SCHEDULES:
        try:
            graph = Pipeline.parse(schedule)(gemm.graph((8, 8, 8)))
        except PassError:  # the schedule cannot be applied to a grouped product
            continue
        parameters = graph.parameters
        named = (*parameters, *parameters.tables, *graph.tensors)
        names = {*graph.coordinates.dimensions, *(x.name for x in named)}
        names = {x for x in names if x.isidentifier() and not iskeyword(x)}
        assert names - RESERVED == set(), schedule


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("f() { %0 = nothing(acc); %0 }", "no epilogue operation 'nothing'"),
        ("f() { %0 = relu(bias); %0 }", "step %0 uses 'bias', which is neither"),
        ("f() { %1 = relu(acc); %1 }", "step '%1 = relu"),
        ("f(x: q) { x }", "'q' are not coordinates"),
        ("what", "is not an epilogue"),
        ("f(nan: n) { %0 = add(acc, nan); %0 }", "reads nan as a number; rename"),
        ("f(true: n) { %0 = add(acc, true); %0 }", "reads true as a number; rename"),
        ("f(self: n) { %0 = add(acc, self); %0 }", "operand self: a call cannot"),
        ("f(bias: n) { %0 = relu(acc); %0 }", "does not depend on the operand bias"),
        (
            "f(bias: n) { %0 = add(acc, bias); %1 = relu(acc); %1 }",
            "does not depend on the operand bias",
        ),
    ],
)
def test_text_that_is_no_function(text: str, why: str):
    refused(why, lambda: ep.parse_function(text))


def test_a_graph_whose_epilogue_is_not_the_problem_s_is_refused():
    text = Gemm("bf16", epilogue=bias_gelu_residual).graph().text()
    changed = text.replace("%0 = add(acc, bias)", "%0 = mul(acc, bias)", 1)
    assert changed != text
    refused("its function is not the epilogue of the problem", lambda: parse(changed).verify())


def test_an_optional_summand_is_a_stage_of_its_own():
    first, second = stages_of(ep.ALPHA_BETA, "f32", "bf16")
    assert (first.optional, second.optional) == ("", "c")
    assert [s.operation for s in first.function.steps] == ["mul"]
    assert [o.name for o in second.function.operands] == ["beta", "c"]
    assert ep.ALPHA_BETA.scale_of("c") == "beta"

    @ep.epilogue(gate=ep.operand("mn", optional=True))
    def gated(acc: Any, gate: Any) -> Any:
        return ep.relu(acc + gate)

    assert len(stages_of(gated, "f32", "bf16")) == 1, "relu must see the sum"


@pytest.mark.parametrize(
    ("body", "linear"),
    [
        (lambda acc, x: acc * x + x, True),
        (lambda acc, x: ep.fma(x, acc, ep.exp(x)) / x - acc, True),
        (lambda acc, x: ep.where(x > 0, acc, -acc), True),
        (lambda acc, x: acc * acc + x, False),
        (lambda acc, x: ep.relu(acc) + x, False),
        (lambda acc, x: x / acc, False),
        (lambda acc, x: ep.where(acc > 0, x, acc), False),
    ],
)
def test_what_is_linear_in_the_accumulator(body: Any, linear: bool):
    def function(acc: Any, x: Any) -> Any:
        return body(acc, x)

    assert ep.epilogue(x="n")(function).linear is linear


def test_constants_are_equal_only_if_they_are_written_alike():
    """In a trace, constants that differ in type or in the sign of zero are different steps."""

    @ep.epilogue()
    def signs(acc: Any) -> Any:
        return ep.where(1 / (acc * 0.0) < 1 / (acc * -0.0), acc * 2, acc * 2.0)

    assert len({step for step in signs.steps if step.operation == "mul"}) == 4
    values = (0.0, -0.0, 0, False, 1, 1.0, True, float("nan"), float("inf"))
    texts = [f"f() {{ %0 = add(acc, {v}); %0 }}" for v in map(_written, values)]
    functions = [ep.parse_function(text) for text in texts]
    assert len({*functions}) == len(values)
    for text, function in zip(texts, functions, strict=True):
        again = ep.parse_function(text)
        assert again == function
        assert hash(again) == hash(function)
        assert ep.function_text(again) == text


def _written(value: float) -> str:
    return str(value).lower() if isinstance(value, bool) else repr(value)


def test_a_graph_with_a_constant_nan_is_read_back():
    @ep.epilogue()
    def masked(acc: Any) -> Any:
        return ep.where(acc > 0, acc, float("nan"))

    graph = Gemm("f32", epilogue=masked).graph((8, 8, 8))
    assert parse(graph.text()) == graph


def test_an_operand_has_the_short_name_of_its_type():
    """An operand type given by NumPy's name, such as `bfloat16`, is stored as `bf16`."""
    operand = Operand("bias", "n", dtype="bfloat16")
    assert operand.dtype == "bf16"
    assert operand == Operand("bias", "n", dtype="bf16")
