"""`Facts`, what a launch needs to know about a kernel, are unchanged after conversion to JSON."""

from __future__ import annotations

import json
from typing import Any

import pytest

from codegen.emit.arguments import Magic
from codegen.targets.nvptx.facts import Facts
from codegen.targets.nvptx.program import CudaProgram
from coordgraph import Gemm, LaunchError
from coordgraph.integers import evaluate
from passes import DataParallel, Pass, Reorder, StreamK, TwoTileStreamK
from tests.support.sampling import chosen, quick_cases

SCHEDULES = (
    DataParallel(),
    DataParallel(persistent=True),
    StreamK(),
    StreamK(workgroups=7),
    TwoTileStreamK(),
    TwoTileStreamK(owner="last", first="dp"),
)
GIVEN = {"m": 300, "n": 520, "k": 777, "read_c": 1}


def program(schedule: Pass, **gemm: Any) -> CudaProgram:
    graph = Reorder(swap=True, group=3)(Gemm(**gemm).graph((64, 64, 32)))
    return CudaProgram(schedule(graph), "sm_80")


def again(facts: Facts) -> Facts:
    return Facts.from_json(json.loads(json.dumps(facts.to_json())))


@quick_cases(1)
@pytest.mark.parametrize("schedule", chosen(SCHEDULES[::2], SCHEDULES), ids=str)
def test_facts_are_read_back_as_they_were(schedule: Pass):
    made = program(schedule)
    facts = Facts.of(made)
    assert again(facts) == facts
    assert (facts.threads, facts.shared_bytes) == (made.threads, made.shared_bytes)
    given = dict(GIVEN)
    if any(p.name == "workgroups" for p in facts.parameters.given):
        given["workgroups"] = 11
    values = again(facts).parameters.evaluate(given)
    assert values == made.lowered.parameters.evaluate(given)
    # The integer arguments, as the generated code declares them.
    arguments = made.walker.arguments
    expected = [int(evaluate(s.value, values)) for s in arguments.scalars.values()]
    for magic in arguments.magics.values():
        expected += Magic.numbers(int(evaluate(magic.divisor, values)))
    assert again(facts).integers(values) == expected
    assert len(expected) == len(arguments.integer_types())
    grid = made.graph.workgroup.size
    assert grid is not None
    assert again(facts).workgroups(values) == evaluate(grid, values)


def test_fixed_sizes_and_types():
    facts = Facts.of(program(StreamK(), m=300, n=520, k=777, dtype="f16", out_dtype="f32"))
    assert again(facts) == facts
    assert [(t.name, t.dtype) for t in again(facts).tensors[:4]] == [
        ("A", "f16"),
        ("B", "f16"),
        ("C", "f32"),
        ("D", "f32"),
    ]


def test_bounds_are_checked_as_before():
    facts = again(Facts.of(program(StreamK())))
    with pytest.raises(
        LaunchError, match="the kernel's index arithmetic allows at most 2147483647"
    ):
        facts.parameters.evaluate({**GIVEN, "m": 2**30, "n": 2**30, "workgroups": 1})


@quick_cases(2)
@pytest.mark.parametrize(
    "change",
    [
        {"grid": "tiles_m*"},
        {"grid": "no_such_parameter"},
        {"threads": "many"},
        {"threads": None},
        {"boxes": 3},
        {"tensors": [["A", "f13", ["m"], "input"]]},
        {"tensors": [["A", "f16", ["m"], "sideways"]]},
        {"parameters": [["m"]]},
        {"scalars": [7]},
    ],
    ids=str,
)
def test_other_data_is_refused(change: dict[str, Any]):
    data = Facts.of(program(DataParallel())).to_json()
    with pytest.raises(ValueError, match="the data do not describe a kernel"):
        Facts.from_json({**data, **change})
    without = dict(data)
    del without[next(iter(change))]
    with pytest.raises(ValueError, match="the data do not describe a kernel"):
        Facts.from_json(without)


@pytest.mark.parametrize("data", [None, [], 3, "facts", {}])
def test_what_is_no_mapping_is_refused(data: Any):
    with pytest.raises(ValueError, match="the data do not describe a kernel"):
        Facts.from_json(data)
