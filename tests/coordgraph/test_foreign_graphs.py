"""Graphs from text, edits or passes of other packages, which may be malformed, are checked.

Every exception that a malformed graph causes is of an error class of this library.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

import codegen
from coordgraph import CoordGraphError, Gemm, KernelGraph, VerifyError, from_json, parse
from coordgraph.checks import CHECKS
from coordgraph.errors import DivisionByZero, UnnamedFault
from coordgraph.foreign_graphs import faults_named
from coordgraph.integers import compile_function, evaluate, floor_div, floor_mod, index_symbol
from coordgraph.tensor_checks import problems_of_tensors
from passes import DataParallel, StreamK
from tests.support.sampling import quick_cases

GRAPH = StreamK(workgroups=3)(Gemm("f32").graph((4, 4, 4)))
TEXT = GRAPH.text()


def with_tensors(change: Callable[[tuple], tuple]) -> KernelGraph:
    return replace(GRAPH, tensors=change(GRAPH.tensors))


@pytest.mark.parametrize(
    ("graph", "problem"),
    [
        (with_tensors(lambda t: (*t, t[0])), "there are 2 tensors 'A'; rename all but one of them"),
        (with_tensors(lambda t: t[1:]), r"no tensor 'A'; declare tensor A f32 \[m, k\] input"),
        (
            with_tensors(lambda t: (replace(t[0], dtype="bf16"), *t[1:])),
            "tensor A bf16 .* does not fit the problem; declare tensor A f32",
        ),
        (
            with_tensors(lambda t: (*t, replace(t[0], name="X"))),
            "the problem has no tensor 'X', but its role is 'input'",
        ),
        (
            parse(TEXT.replace("tensor B f32 [k, n] input", "tensor B f32 [k, 3] input")),
            r"tensor B f32 \[k, 3\] input does not fit",
        ),
        (
            parse(TEXT.replace("tensor flags i32", "tensor flags bf16")),
            "'flags' has the role 'flags' and elements of type bf16; declare .* of type i32",
        ),
        (
            parse(TEXT.replace("tensor partials f32", "tensor partials bf16")),
            "'partials' has the role 'partials' and elements of type bf16; declare .* type f32",
        ),
    ],
)
def test_tensors_are_those_of_the_problem(graph: KernelGraph, problem: str):
    with pytest.raises(VerifyError, match=problem):
        graph.verify()


@quick_cases(2)
@pytest.mark.parametrize(
    "gemm",
    [
        Gemm("bf16", m=30_000, n=30_000, k=30_000, transpose_a=True),
        Gemm(batched=True),
        Gemm(grouped=True),
        Gemm(grouped=True, group_axis="k"),
        Gemm(grouped=True, group_axis="mnk"),
    ],
)
def test_the_tensors_of_a_problem_do_not_depend_on_its_tile(gemm: Gemm):
    graph = DataParallel(persistent=True)(gemm.graph((128, 64, 32)))
    assert not [*problems_of_tensors(graph)]


def test_a_parameter_has_a_name():
    with GRAPH.edit() as e:
        e.parameter("", e.parameters["m"].symbol + 1)
    with pytest.raises(VerifyError, match="'' is no parameter name"):
        e.graph.verify()


def test_a_tile_has_a_number_for_each_axis():
    wrong = parse(
        TEXT.replace(
            "LoadTile tensor=A tile=(A.tile.0, A.tile.1)", "LoadTile tensor=A tile=(A.tile.0)"
        )
    )
    with pytest.raises(VerifyError, match=r"LoadTile .* 'tile' names 1 dimensions; name one"):
        wrong.verify()


def test_only_foreign_graphs_have_unnamed_faults(monkeypatch: pytest.MonkeyPatch):
    def broken(graph: KernelGraph) -> list[str]:
        raise KeyError("flags")

    monkeypatch.setitem(CHECKS, "scheduled", broken)
    with pytest.raises(UnnamedFault, match="verifying the graph failed: KeyError: 'flags'") as got:
        parse(TEXT).verify()
    assert isinstance(got.value.__cause__, KeyError)
    with pytest.raises(KeyError):
        GRAPH.verify()


def test_errors_of_the_library_and_interrupts_stay_as_they_are():
    for kind in (VerifyError, KeyboardInterrupt):
        with pytest.raises(kind) as caught, faults_named("reading"):
            raise kind("as it is")
        assert type(caught.value) is kind


def test_flags_without_memory_are_no_foreign_exception():
    """A graph whose dimension of flags has no tensor raises an error of the library."""
    text = TEXT.replace("dim flags: User size=3 tensor=flags", "dim flags: Linear size=3")
    assert text != TEXT
    with pytest.raises(CoordGraphError):
        codegen.compile(parse(text), "cpu", verify=False)


@pytest.mark.parametrize("value", [[[]], 10**5000, {"a": 1}], ids=["list", "huge", "mapping"])
def test_plain_data_of_any_kind_is_named(value: object):
    deep: object = value
    for _ in range(3000):
        deep = [deep]
    for wrong in (value, deep):
        with pytest.raises(VerifyError):
            from_json({**GRAPH.json(), "level": wrong})
        with pytest.raises(VerifyError):
            from_json({**GRAPH.json(), "dimensions": [wrong]})


def test_plain_data_has_no_integer_that_the_text_form_refuses():
    data = GRAPH.json()
    data["parameters"][0]["maximum"] = 10**100
    with pytest.raises(VerifyError, match=r"parameters\[0\].maximum: the number has more than 100"):
        from_json(data)


def test_a_division_by_zero_is_an_error_of_the_library():
    a, b = index_symbol("a"), index_symbol("b")
    with pytest.raises(DivisionByZero, match="divides by 0: 7 // 0"):
        evaluate(floor_div(a, b), {a: 7, b: 0})
    with pytest.raises(DivisionByZero, match="divides by 0"):
        compile_function([floor_mod(a, b)], [a, b])(7, 0)
    with pytest.raises(DivisionByZero):
        floor_div(a, 0)
