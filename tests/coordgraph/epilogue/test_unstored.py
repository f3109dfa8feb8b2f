"""Tests of epilogues that do not store D: declaration, text, graphs, checks, and errors."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from coordgraph import Gemm, KernelGraph, VerifyError, parse
from coordgraph import epilogue as ep
from coordgraph.control.operations import StoreTile
from coordgraph.coordinates.dimensions import User
from coordgraph.epilogue.stages import stages_of
from coordgraph.interpreter import interpret
from passes import Pipeline
from tests.support.losses import loss


@ep.epilogue(half=ep.output("mn", "f32"))
def elsewhere(acc: Any) -> Any:
    return None, acc * 0.5


def scheduled(schedule: str = "stream-k{workgroups=5}", **options: Any) -> KernelGraph:
    gemm = Gemm(**{"dtype": "f32", "epilogue": loss, **options})
    return Pipeline.parse(schedule)(gemm.graph((16, 16, 16)))


def test_none_is_the_value_of_a_d_that_is_not_stored():
    assert not loss.stores_d
    assert loss.result == "acc"
    assert ep.function_text(loss) == (
        "loss(column: n i32, target: m i32) -> total: m logsumexp, picked: m sum "
        "{ %0 = compare(column, target, relation='=='); %1 = where(%0, acc, 0.0); none, acc, %1 }"
    )
    assert ep.parse_function(ep.function_text(loss)) == loss
    assert not loss.exchanged.stores_d
    (stage,) = stages_of(loss, "f32", "f32")
    assert stage.function == loss


def test_a_graph_has_no_tensor_d_and_no_store_of_it():
    graph = scheduled()
    assert [t.name for t in graph.tensors if not t.role.workspace] == [
        *("A", "B", "column", "target", "total", "picked")
    ]
    assert not graph.control.of_kind(StoreTile)
    assert not graph.coordinates.of_kind(User, tensor="D")
    assert parse(graph.text()) == graph
    text = graph.pseudocode()
    assert text.startswith("// total, picked = loss(")
    assert "// total[m, tile_n] = logsumexp(acc);\n" in text
    assert "D[" not in text


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"batched": True},
        {"grouped": True},
        {"grouped": True, "group_axis": "k", "transpose_a": True},
        {"gathered_rows": True},
        {"epilogue": elsewhere, "leading_dimensions": ("A", "B", "half")},
    ],
    ids=str,
)
def test_the_checks_hold(options: dict[str, Any]):
    graph = scheduled(**options)
    assert not graph.check().refuted
    assert parse(graph.text()) == graph


def test_cover_finds_a_wrong_output():
    text = scheduled().text()
    wrong = "strides=((n + 15) // 16, 1)"
    assert text.count(wrong) == 2  # in the lines of the outputs `total` and `picked`
    report = parse(text.replace(wrong, "strides=(1, m)", 1)).check()
    assert report["cover"].refuted


def test_a_missing_epilogue_is_found():
    graph = scheduled("data-parallel")
    with graph.edit("fault") as e:
        body = tuple(op for op in graph.control.root.body if op.kind != "Epilogue")
        e.kernel(*body, workgroup=graph.control.root.workgroup)
    problems = "\n".join(map(str, e.graph.check().refuted))
    assert "neither sent nor stored" in problems


def test_a_store_of_d_is_refused():
    graph = scheduled("data-parallel")
    with graph.edit("fault") as e:
        (*body, end) = graph.control.root.body
        store = StoreTile("D", end.tile)
        e.kernel(*body, end, store, workgroup=graph.control.root.workgroup)
    with pytest.raises(VerifyError, match="there is no tensor 'D'"):
        e.graph.verify()


def test_the_interpreter_computes_the_outputs():
    rng = np.random.default_rng(1)
    a, b = rng.normal(size=(20, 9)).astype("f4"), rng.normal(size=(9, 37)).astype("f4")
    target, column = rng.integers(0, 37, 20, "i4"), np.arange(37, dtype="i4")
    given = {"target": target, "column": column}
    found = interpret(scheduled(), a, b, operands=given, trace=True)
    assert found.d.shape == found.written.shape == (0, 0)
    assert found.trace is not None
    assert not found.trace.problems()
    assert not found.trace.stores
    picked = found.outputs["picked"].sum(1)
    np.testing.assert_allclose(picked, (a @ b)[np.arange(20), target], rtol=1e-5)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ep.epilogue()(lambda acc: None), "returns None, which is not computed from acc"),
        (lambda: ep.parse_function("f() { none }"), "f stores nothing"),
        (
            lambda: replace(elsewhere, result="%0"),
            "does not store D, so its result must be acc, not %0; change the result",
        ),
        (lambda: ep.parse_function("f(none: n) { none }"), "operand none: the text .*; rename"),
        (lambda: Gemm(epilogue=loss, scattered_rows=True), "does not store D, which scattered"),
        (
            lambda: Gemm(epilogue=elsewhere, grouped=True, group_axis="mnk"),
            "does not store D, which group_axis=mnk does not allow",
        ),
        (lambda: Gemm(epilogue=elsewhere, leading_dimensions=("D",)), "leading_dimensions has 'D'"),
    ],
    ids=range(7),
)
def test_refusals(make: Any, message: str):
    with pytest.raises(VerifyError, match=message):
        make()
