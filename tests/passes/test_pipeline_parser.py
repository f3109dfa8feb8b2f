"""Pipelines as text: parsing the text gives an equal pipeline; errors have positions."""

from __future__ import annotations

from dataclasses import fields
from types import NoneType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import passes.lowering  # noqa: F401  (registers its passes)
from coordgraph import ParseError, PassError
from passes import PASSES, Pipeline, StreamK
from passes.base import Pass
from passes.options import allowed_range, allowed_values, option_types

ALPHABET = [*"{}=,", " ", "\n", "true", "false", "none", "0", "-7", "é", "\0", "x", "workgroups"]
OURS = sorted(name for name, cls in PASSES.items() if cls.__module__.startswith("passes."))


def values(kind: type[Pass], option: str) -> st.SearchStrategy[Any]:
    """A Hypothesis strategy for the values of a pass's option, from its type and allowed values."""
    types, allowed = option_types(kind)[option], allowed_values(kind)[option]
    least, most = allowed_range(kind, option) or (-(10**17), 10**17)
    words = st.from_regex(r"[A-Za-z0-9_.+-]+", fullmatch=True).filter(lambda w: w != "none")
    of_type: dict[type, st.SearchStrategy[Any]] = {
        NoneType: st.none(),
        bool: st.booleans(),
        int: st.integers(int(least), int(most)),
        str: st.sampled_from(allowed) if allowed else words,
    }
    return st.one_of(*(of_type[each] for each in types))


@st.composite
def passes_of_any_kind(draw: st.DrawFn) -> Pass:
    cls = PASSES[draw(st.sampled_from(OURS))]
    options = {f.name: values(cls, f.name) for f in fields(cls)}
    return cls(**draw(st.fixed_dictionaries({}, optional=options)))


@given(st.lists(passes_of_any_kind(), min_size=1, max_size=4))
def test_what_is_written_reads_back(steps: list[Pass]):
    pipeline = Pipeline(steps)
    read = Pipeline.parse(str(pipeline))
    assert read == pipeline
    assert str(read) == str(pipeline)
    spaced = str(pipeline).replace("{", " {\n ").replace(",", " , ").replace("=", " = ")
    assert Pipeline.parse(f"\n{spaced} ") == pipeline


@settings(max_examples=300)
@given(st.lists(st.sampled_from(ALPHABET + OURS), max_size=14).map("".join))
def test_random_tokens(text: str):
    check(text)


@settings(max_examples=200)
@given(st.text(max_size=20))
def test_random_text(text: str):
    check(text)


@settings(max_examples=200)
@given(
    st.sampled_from(["reorder{swap=true,group=3},stream-k{workgroups=132,owner=last}", *OURS]),
    st.integers(0, 80),
    st.integers(0, 3),
    st.sampled_from(ALPHABET),
)
def test_mutated_pipelines(text: str, at: int, dropped: int, put: str):
    check(text[:at] + put + text[at + dropped :])


def check(text: str) -> None:
    lines = text.split("\n")
    try:
        pipeline = Pipeline.parse(text)
    except ParseError as caught:
        error = caught
    else:
        assert Pipeline.parse(str(pipeline)) == pipeline
        return
    assert 1 <= error.line <= len(lines)
    assert error.source == lines[error.line - 1].rstrip("\r")
    assert 1 <= error.column <= len(lines[error.line - 1]) + 1


@pytest.mark.parametrize(
    ("text", "line", "column", "message"),
    [
        ("", 1, 1, "expected the name of a pass"),
        ("   ", 1, 1, "expected the name of a pass"),
        (",", 1, 1, "expected the name of a pass"),
        ("stream-k,", 1, 10, "expected the name of a pass"),
        (
            "stream-k,\n  streem-k",
            2,
            3,
            "unknown pass 'streem-k'; did you mean 'stream-k'?",
        ),
        ("zzzz", 1, 1, "unknown pass 'zzzz'; there are "),
        ("stream-k stream-k", 1, 10, "expected ',' between passes, or the end"),
        ("stream-k{", 1, 10, "expected the name of an option"),
        ("stream-k{\nworkgroup=3}", 2, 1, "'workgroup'; its options are: workgroups, owner, least"),
        ("stream-k{workgroups}", 1, 20, "expected '=' after 'workgroups'"),
        ("stream-k{workgroups", 1, 20, "unexpected end"),
        ("stream-k{workgroups=}", 1, 21, "expected a value"),
        ("stream-k{workgroups=\n x}", 2, 2, "option 'workgroups' must be a whole number, not 'x'"),
        ("stream-k{workgroups=1,workgroups=2}", 1, 34, "option 'workgroups' is given twice"),
        ("stream-k{workgroups=1 owner=last}", 1, 23, "expected ',' or '}' after an option"),
        ("stream-k{workgroups=1", 1, 22, "unexpected end"),
        ("reorder{swap=yes}", 1, 14, "option 'swap' must be true or false, not 'yes'"),
        ("stream-k{owner=\té}", 1, 17, "unexpected character"),
        ("stream-k{owner=first}\r\n}", 2, 1, "expected ',' between passes, or the end"),
        ("\x0b\x85\nstream", 2, 1, "unknown pass 'stream'; did you mean 'stream-k'?"),
        ("stream-k}", 1, 9, "expected ',' between passes, or the end"),
    ],
)
def test_errors_say_where(text: str, line: int, column: int, message: str):
    with pytest.raises(ParseError) as caught:
        Pipeline.parse(text)
    error = caught.value
    assert message in error.message
    assert (error.line, error.column) == (line, column)
    assert error.source == text.split("\n")[line - 1].rstrip("\r")


@pytest.mark.parametrize(
    ("wrong", "advice"),
    [
        ("stream-k", r"use Pipeline\.parse\('stream-k'\)"),
        (StreamK(), r"use \[stream-k\]"),
        ([StreamK], "use instances of classes that derive from passes.Pass"),
    ],
)
def test_what_is_no_list_of_passes_is_refused(wrong: Any, advice: str):
    with pytest.raises(PassError, match=advice):
        Pipeline(wrong)
