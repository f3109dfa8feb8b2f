"""The order of a text's `tensor` lines has no influence on the graph, its result or its code."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import codegen
from coordgraph import Gemm, KernelGraph, from_json, parse
from coordgraph.interpreter import interpret
from passes import Pipeline
from tests.support.epilogues import bias_gelu_residual


def scheduled(problem: Gemm, pipeline: str = "stream-k") -> KernelGraph:
    return Pipeline.parse(pipeline)(problem.graph((16, 16, 16)))


def reversed_tensors(text: str) -> str:
    lines = text.split("\n")
    at = [i for i, line in enumerate(lines) if line.startswith("tensor ")]
    tensors = [lines[i] for i in at]
    return "\n".join([*lines[: at[0]], *reversed(tensors), *lines[at[-1] + 1 :]])


@pytest.mark.parametrize(
    ("problem", "pipeline"),
    [
        (Gemm("f32"), "stream-k"),
        (Gemm("f32"), "stream-k{reduction=atomic}"),
        (Gemm("f32", batched=True), "stream-k"),
        (Gemm("f32", group_axis="m"), "data-parallel"),
        (Gemm("f32", epilogue=bias_gelu_residual), "stream-k"),
    ],
)
def test_the_order_of_tensor_lines_is_normalised(problem: Gemm, pipeline: str):
    graph = scheduled(problem, pipeline)
    text = reversed_tensors(graph.text())
    assert text != graph.text()
    read = parse(text)
    assert read == graph
    assert read.text() == graph.text()
    assert graph.diff(read).equal
    assert replace(graph, tensors=graph.tensors[::-1]) == graph
    data = graph.json()
    assert from_json({**data, "tensors": data["tensors"][::-1]}) == graph


def test_operands_are_bound_by_name():
    read = parse(reversed_tensors(scheduled(Gemm("f32")).text())).verify()
    random = np.random.default_rng(0)
    a, b = (random.integers(-3, 4, (16, 16)).astype("f4") for _ in "ab")
    assert not np.array_equal(a @ b, b @ a)
    found = interpret(read, a, b, parameters={"workgroups": 1}).d
    assert np.array_equal(found, a @ b)
    assert np.array_equal(codegen.compile(read, target="cpu")(a, b, workgroups=1), a @ b)


@pytest.mark.slow
def test_generated_code_is_the_same():
    graph = Pipeline.parse("stream-k")(Gemm("bf16").graph((128, 128, 32)))
    first, second = (
        codegen.compile(g, target="sm_80").ptx
        for g in (graph, parse(reversed_tensors(graph.text())))
    )
    assert first == second
