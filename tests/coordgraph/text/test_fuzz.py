"""For any text, the parser returns a graph or raises an error of its own."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from coordgraph import Gemm, KernelGraph, ParseError, VerifyError, parse
from coordgraph.text import from_json, print_graph, to_json
from tests.coordgraph.text.graphs import scheduled

GRAPH = scheduled(Gemm(), "two-tile-stream-k{first=dp}")
TEXT = print_graph(GRAPH)
WORDS = [
    *("coordgraph", "1", "gemm", "level", "scheduled", "symbol", "positive", "param", "in", ".."),
    *("assume", "<=", "tensor", "bf16", "input", "dim", ":", "Linear", "Workgroup", "size", "="),
    *("edge", "Tile", "Sunder", "Split", "strides", "Swizzle", "divisor", "modulus", "->", ","),
    *("control", "{", "}", "Kernel", "For", "start", "stop", "If", "condition", "else", "Scope"),
    *("Assign", "name", "value", "log", '"', '"x"', "(", ")", "[", "]", "a", "b", "a.b", "0", "-1"),
    *("*", "//", "%", "min", "select", "and", "not", "<", "\n", "\n", "\n", "#", "é", "\0", "none"),
]


def answers(text: str) -> KernelGraph | None:
    lines = text.split("\n")
    try:
        graph = parse(text)
    except VerifyError:
        return None
    except ParseError as caught:
        error = caught
    else:
        written = print_graph(graph)
        assert parse(written) == graph
        assert print_graph(parse(written)) == written
        return graph
    assert 1 <= error.line <= len(lines)
    assert error.source == lines[error.line - 1].rstrip("\r")
    assert 1 <= error.column <= len(lines[error.line - 1]) + 1
    return None


@settings(max_examples=150)
@given(seed=st.integers(0, 2**32), count=st.integers(1, 4))
def test_mutated_texts(seed: int, count: int):
    """The parser accepts or refuses a valid text with random changes, and never crashes.

    Lines and pieces of lines are deleted, repeated, swapped or replaced.
    """
    draw = random.Random(seed)
    lines = TEXT.split("\n")
    for _ in range(count):
        at = draw.randrange(len(lines))
        match draw.randrange(6):
            case 0:
                del lines[at : at + draw.randrange(1, 4)]
            case 1:
                lines.insert(draw.randrange(len(lines)), lines[at])
            case 2:
                other = draw.randrange(len(lines))
                lines[at], lines[other] = lines[other], lines[at]
            case 3:
                place = draw.randrange(len(lines[at]) + 1)
                lines[at] = lines[at][:place] + draw.choice(WORDS) + lines[at][place:]
            case 4:
                place = draw.randrange(len(lines[at]) + 1)
                lines[at] = lines[at][:place] + lines[at][place + draw.randrange(1, 6) :]
            case _:
                parts = lines[at].split(" ")
                parts[draw.randrange(len(parts))] = draw.choice(WORDS)
                lines[at] = " ".join(parts)
        lines = lines or [""]
    answers("\n".join(lines))


@settings(max_examples=200)
@given(st.lists(st.sampled_from(WORDS), max_size=40).map(" ".join), st.booleans())
def test_random_tokens(text: str, headed: bool):
    answers(f"coordgraph 1\ngemm\n{text}" if headed else text)


@settings(max_examples=200)
@given(st.binary(max_size=60), st.booleans())
@example(b"\xff\xfe", True)
@example(b"control {" * 3, True)
def test_random_bytes(data: bytes, headed: bool):
    text = data.decode("latin-1")
    answers(f"coordgraph 1\ngemm\n{text}" if headed else text)


STATEMENT = st.sampled_from(
    ["dim a: Linear size=", "param a in 1..9 = ", "assume ", "tensor A f32 ["]
)
EXPRESSION = st.lists(
    st.sampled_from(
        [*"xy017*+-%^(),<", "99999999999", "//", "==", " and ", "min(", "max(", "select(", "not "]
    ),
    max_size=12,
).map("".join)


@settings(max_examples=200)
@given(STATEMENT, EXPRESSION)
def test_random_expressions(statement: str, expression: str):
    head = "coordgraph 1\ngemm\nparam x in 1..5\nparam y in 0..5\n"
    tail = {"a": " <= 3", "t": "] input"}.get(statement[0], "")
    answers(head + statement + expression + tail)


SIZES = st.sampled_from(["x", "y", "6", "0", "-2", "x*y", "x // 2", "min(x, y)", "x % 3", "x - y"])


@pytest.mark.slow
@settings(max_examples=150)
@given(st.lists(SIZES, min_size=4, max_size=4), st.sampled_from(["1", "0", "x", "-1"]))
def test_edges_of_any_sizes(sizes: list[str], stride: str):
    """The parser accepts or refuses edges between dimensions of any sizes, and never crashes."""
    text = "coordgraph 1\ngemm\nparam x in 1..5\nparam y in 0..5\n"
    text += "".join(f"dim d{i}: Linear size={size}\n" for i, size in enumerate(sizes))
    for edge in (
        "Tile d0 -> d1, d2",
        "Flatten d0, d1 -> d2",
        f"Split d0 -> d1, d2 strides=({stride}, 1)",
        f"Join d0, d1 -> d2 strides=({stride}, 1)",
        "Sunder d0 -> d1, d2, d3",
        "Swizzle d0, d1 -> d2, d3 function=reflect",
        "Swizzle d0, d1 -> d2, d3 modulus=4 divisor=0",
        "PassThrough d0 -> d1",
    ):
        answers(f"{text}edge {edge}\n")


DATA = json.dumps(to_json(GRAPH))
SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(-3, 3), st.text(max_size=4), st.sampled_from(WORDS)
)
JUNK = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(), inner, max_size=2),
)


@settings(max_examples=150)
@given(st.integers(0, 2**32), JUNK)
def test_mutated_plain_data(seed: int, junk: Any):
    draw, data = random.Random(seed), json.loads(DATA)
    here, depth = data, draw.randrange(1, 7)
    while True:
        keys = list(here) if isinstance(here, dict) else list(range(len(here)))
        key = draw.choice(keys)
        depth -= 1
        if depth <= 0 or not isinstance(here[key], dict | list) or not here[key]:
            break
        here = here[key]
    here[key] = junk
    try:
        graph = from_json(data)
    except VerifyError:
        return
    assert from_json(to_json(graph)) == graph
