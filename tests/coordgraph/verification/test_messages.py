"""Error messages of checks about faulty graphs say what is wrong, and where."""

from __future__ import annotations

import re

import pytest

from coordgraph import VerifyError, parse
from coordgraph.interpreter.slot_messages import outside_workspace, unmatched
from coordgraph.kernel import KernelGraph
from passes.work_check import work_problems
from tests.passes.schedules import symbolic


def edited(pattern: str, new: str) -> KernelGraph:
    text, count = re.subn(pattern, new, symbolic("stream-k{owner=first}").text())
    assert count
    return parse(text)


def test_a_range_below_1_is_named():
    with pytest.raises(
        VerifyError, match=r"tensor A: k may be negative.*range -5\.\.7;.* in 1\.\.7"
    ):
        edited(r"param k in 1\.\.\d+", "param k in -5..7").verify()
    with pytest.raises(VerifyError, match="tensor A: k may be 0, because the parameter has the"):
        edited(r"param k in 1\.\.", "param k in 0..").verify()


@pytest.mark.parametrize("new", ["", "param zero in 0..1"])
def test_a_missing_parameter_of_an_optional_tensor_is_named(new: str):
    graph = edited(r"param read_c [^\n]*", new)
    with pytest.raises(
        VerifyError, match=r"tensor C needs the parameter read_c.*add `param read_c in 0\.\.1`"
    ):
        graph.verify()


@pytest.mark.parametrize(
    ("tensor", "shape", "sizes", "message"),
    [
        ("partials", "workgroups - 1, 4, 4", {"workgroups": 1}, r"\(0, 4, 4\)"),
        ("flags", "workgroups, 0", {"workgroups": 2}, r"\(2, 0\)"),
        ("flags", "workgroups - 1", {"workgroups": 1}, r"\(0,\)"),
    ],
)
def test_a_workspace_without_elements_is_named_with_its_shape(
    tensor: str, shape: str, sizes: dict[str, int], message: str
):
    graph = edited(rf"(tensor {tensor} \w+) \[[^]]*\]", rf"\1 [{shape}]")
    (found,) = graph.check({"m": 16, "n": 16, "k": 16, **sizes})["sizes"].counterexamples
    assert re.fullmatch(
        rf"tensor {tensor} has the shape {message}; make every extent at least 1",
        found.problem,
    )


def test_a_workspace_of_another_size_is_compared_with_its_dimension():
    graph = edited(r"(tensor flags \w+) \[[^]]*\]", r"\1 [workgroups - 1]")
    sizes = {"m": 16, "n": 16, "k": 16, "workgroups": 2}
    (found,) = graph.check(sizes)["sizes"].counterexamples
    assert found.problem == (
        "tensor flags has the shape (1,), 1 element, but the dimension 'flags' has 2 "
        "elements; make them equal"
    )


@pytest.mark.parametrize(
    ("pattern", "new", "message"),
    [
        (
            r"tensor partials (\w+) \[workgroups",
            r"tensor workgroups \1 [partials",
            "tensor workgroups: the extent of axis 0 is partials, but 'partials' is",
        ),
        (
            r"(param tiles_n .*)\(n \+",
            r"\1(workgroup +",
            r"param tiles_n: its value is \(workgroup \+ 3\) // 4, but 'workgroup' is",
        ),
        (
            "assume .* <= ",
            "assume m*workgroup <= ",
            r"assume: the expression is m\*workgroup, but 'workgroup' is",
        ),
    ],
)
def test_a_symbol_without_a_value_at_launch_is_named(pattern: str, new: str, message: str):
    with pytest.raises(VerifyError, match=rf"{message} not a parameter.*; use parameters only"):
        edited(pattern, new).verify()


@pytest.mark.parametrize("step", [0, -1])
def test_a_step_below_1_is_named(step: int):
    graph = edited(r"For dim=partial.slot ([^{]*)\{", rf"For dim=partial.slot \1step={step} {{")
    what = rf"For \(operation \d+\): the step over partial.slot is {step};"
    with pytest.raises(VerifyError, match=what):
        graph.verify()


def test_a_missing_write_names_the_receiver():
    graph = edited("SendPartial [^\n]*", "")
    (first, *_) = graph.check()["fix-up"].counterexamples
    assert re.fullmatch(
        r"workgroup \d+ receives from workspace slot \d+, which no workgroup writes", first.problem
    )
    assert first.workgroups
    assert re.search(
        r"no workgroup writes \[workgroup \d+, output tile \(", work_problems(graph)[0]
    )


def test_an_empty_workspace_is_named_once_for_each_slot():
    graph = edited(r"tensor flags i32 \[[^]]*\]", "tensor flags i32 [0]")
    found = [x.problem for x in graph.check()["bounds"].counterexamples]
    assert found
    assert len(found) == len({*found})
    assert all(re.search(r"slot \d+ is used, but the workspace is empty", x) for x in found)


def test_messages_about_slots():
    tile = (0, 1)
    assert outside_workspace(4, 3) == "workspace slot 4 is outside 0..2"
    assert unmatched((2, 1), [(3, tile, 1), (5, tile, 1)], []) == (
        "workgroups 3, 5 write workspace slot 2 at turn 1, from which no workgroup receives"
    )
    assert unmatched((2, 0), [(3, tile, 1), (5, (1, 1), 1)], [(1, tile)]) == (
        "workspace slot 2 is written 2 times by workgroups 3, 5, with partial sums of output tiles "
        "(0, 1), (1, 1) for 2 receives, but it is received once by workgroup 1, for output tiles "
        "(0, 1)"
    )
