"""Errors of the text parser: messages, positions and suggestions."""

from __future__ import annotations

from typing import Any, cast

import pytest

from coordgraph import Gemm, ParseError, VerifyError, parse
from coordgraph.errors import WIDEST
from coordgraph.text import from_json, to_json
from tests.coordgraph.text.graphs import scheduled

HEAD = "coordgraph 1\ngemm\n"
DIMS = HEAD + "dim a: Linear size=6\ndim b: Linear size=6\n"
KERNEL = DIMS + "control {\n  Kernel {\n    %s\n  }\n}"

# For each case: the text, the line and column that `^` marks, and the message.
CASES = {
    "no header": ("gemm", 1, 1, "expected the first line, 'coordgraph 1', found 'gemm'"),
    "nothing": ("", 1, 1, "expected the first line, 'coordgraph 1', found the end"),
    "version": (
        "\ncoordgraph 2\n",
        2,
        12,
        "the text has version 2, but only version 1 can be read",
    ),
    "no gemm": ("coordgraph 1\n", 2, 1, "the problem is missing"),
    "two gemms": (HEAD + "gemm", 3, 1, "there is a 'gemm' line already"),
    "dtype": ("coordgraph 1\ngemm dtype=bf17", 2, 1, "unknown dtype 'bf17'; use bf16"),
    "field": (HEAD + "dim a: Linear sise=4", 3, 15, "no field 'sise'; did you mean 'size'?"),
    "statement": (HEAD + "dims a: Linear", 3, 1, "unknown statement 'dims'; did you mean 'dim'?"),
    "level": (HEAD + "level schedule", 3, 7, "unknown level 'schedule'; did you mean 'scheduled'"),
    "kind": (HEAD + "dim a: Liner", 3, 8, "unknown kind of dimension 'Liner'; did you mean 'Lin"),
    "edge": (DIMS + "edge Passthru a -> b", 5, 6, "unknown edge 'Passthru'; did you mean 'Pass"),
    "operation": (KERNEL % "Barier", 7, 5, "unknown operation 'Barier'; did you mean 'Barrier'"),
    "id": (DIMS + "edge Tile a -> b, bb", 5, 19, "there is no dimension 'bb'; did you mean 'b'?"),
    "role": (KERNEL % "For dim=aa start=0 stop=1", 7, 13, "no dimension 'aa'; did you mean 'a'?"),
    "symbol": (
        HEAD + "param tiles in 1..9\ndim x: Linear size=2*tile",
        4,
        22,
        "unknown name 'tile'; did you mean 'tiles'?",
    ),
    "same dimension": (DIMS + "dim a: Linear", 5, 5, "a dimension 'a' exists already"),
    "bad id": (HEAD + 'dim "a b": Linear', 3, 5, "'a b' is not a dimension id"),
    "same parameter": (
        HEAD + "param a in 1..2\nparam a in 1..2",
        4,
        7,
        "there is a parameter 'a' already",
    ),
    "empty range": (HEAD + "param a in 5..1", 3, 7, "'a' has the empty range 5..1"),
    "empty range of a value": (HEAD + "param a in 2..1 = 1", 3, 7, "has the empty range 2..1"),
    "order of parameters": (
        HEAD + "param a in 1..2 = b + 1\nparam b in 1..2",
        3,
        19,
        "define 'b' above 'a'",
    ),
    "needless symbol": (DIMS + "symbol a positive", 5, 8, "'a' is defined elsewhere"),
    "symbol without sort": (HEAD + "symbol a", 3, 9, "expected 'positive' or 'nonnegative'"),
    "same field": (HEAD + "dim a: Linear size=1 size=2", 3, 22, "'size' is given twice"),
    "missing field": (KERNEL % "Assign name=x", 7, 5, "Assign has no value for 'value'"),
    "size rule": (
        HEAD + "dim a: Linear size=6\ndim b: Linear size=7\nedge PassThrough a -> b",
        5,
        1,
        "(6,) upstream and (7,) downstream break its size rule",
    ),
    "arity": (DIMS + "edge Flatten a -> b, b", 5, 1, "2 downstream operands, but Flatten takes 1"),
    "strides": (DIMS + "edge Split a -> b strides=(1, 2)", 5, 1, "2 strides are given"),
    "condition": (KERNEL % "If condition=a", 7, 18, "a condition is needed here, not an integer"),
    "integer": (KERNEL % "Assign name=x value=a < 1", 7, 25, "an integer expression is needed"),
    "expression": (
        KERNEL % "Assign name=x value=a + * 2",
        7,
        29,
        "expected a value, such as a number or a name, found '*'",
    ),
    "division": (KERNEL % "Assign name=x value=a // 0", 7, 27, "division by the literal 0"),
    "no expression": (KERNEL % "Assign name=x value=", 7, 25, "expected an expression, found the"),
    "truth": (
        KERNEL % "For dim=a start=0 stop=1 unroll=yes",
        7,
        37,
        "expected true or false, found 'yes'",
    ),
    "whole number": (KERNEL % "WaitCopies pending=x", 7, 24, "expected a whole number, found 'x'"),
    "unclosed string": (HEAD + 'log "abc\n', 3, 5, "the string is not closed on its line"),
    "bad escape": (HEAD + r'log "a\q"', 3, 5, "the string is not valid JSON"),
    "rest of a line": (DIMS + "level problem 3", 5, 15, "expected the end of the line, found '3'"),
    "unclosed block": (DIMS + "control {\n  Kernel {", 6, 11, "expected an operation or '}', fo"),
    "no kernel": (
        HEAD + "control {\n  Barrier\n}",
        4,
        3,
        "the outermost operation is Barrier, but must be",
    ),
    "empty control": (HEAD + "control {\n}", 3, 1, "this control block holds 0 operations"),
    "body": (KERNEL % "Barrier { }", 7, 13, "Barrier has no body"),
    "further body": (KERNEL % "Scope name=s { } else { }", 7, 22, "no further body 'else'"),
    "tuple": (KERNEL % "LoadTile tensor=A tile=a", 7, 28, "expected '(', found 'a'"),
    "same tensor": (
        HEAD + "tensor A bf16 [] input\ntensor A bf16 [] input",
        4,
        8,
        "there is a tensor 'A' already",
    ),
    "tensor dtype": (HEAD + "tensor A bf [1] input", 3, 8, "unknown dtype 'bf'; did you mean 'b"),
    "tensor role": (HEAD + "tensor A bf16 [1] inputs", 3, 19, "unknown role 'inputs'; did you"),
    "digits": (HEAD + f"param a in 1..{'9' * 101}", 3, 15, "100 digits at most"),
    "deep expression": (
        HEAD + f"dim a: Linear size={'(' * 5000}1{')' * 5000}",
        3,
        70,
        "nested more than 50 levels deep",
    ),
    "deep control": (
        HEAD + "control {\nKernel {\n" + "Scope name=s {\n" * 5000 + "}\n" * 5002,
        104,
        14,
        "operations nest more than 100 levels deep",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_the_place_and_the_message(case: str):
    text, line, column, message = CASES[case]
    with pytest.raises(ParseError) as caught:
        parse(text)
    error = caught.value
    assert message in error.message
    assert (error.line, error.column) == (line, column)
    assert error.source == text.split("\n")[line - 1]
    if len(error.source) > WIDEST:
        assert str(error).splitlines()[-1].strip() == "^"
    elif error.source.strip():
        assert str(error).splitlines()[-1].index("^") == column + 1
    else:  # an empty line has no character that `^` could mark
        assert len(str(error).splitlines()) == 1


@pytest.mark.parametrize(("before", "after"), [(0, 3000), (1500, 1500), (3000, 0)])
def test_a_long_line_is_clipped_around_the_error(before: int, after: int):
    size = "1 + " * (before // 4) + "wrong" + " + 1" * (after // 4)
    with pytest.raises(ParseError) as caught:
        parse(f"{HEAD}dim a: Linear size={size}")
    _, shown, caret = str(caught.value).splitlines()
    assert len(shown) < 110
    assert shown[caret.index("^") :].startswith("wrong")
    assert (shown.strip()[0] == "…", shown[-1] == "…") == (before > 0, after > 0)


def test_a_long_token_is_clipped():
    with pytest.raises(ParseError) as caught:
        parse(f"{HEAD}dim a Linear{'x' * 3000} = 2")
    assert len(str(caught.value)) < 400


def test_a_circle_is_named():
    text = DIMS + "edge PassThrough a -> b\nedge PassThrough b -> a"
    with pytest.raises(VerifyError, match=r"cycle: (a -> b|b -> a)"):
        parse(text)


def test_a_note_may_be_a_field_but_not_both():
    assert parse(HEAD + 'dim a: Linear note="n"').coordinates["a"].note == "n"
    with pytest.raises(ParseError, match="expected the end of the line"):
        parse(HEAD + 'dim a: Linear note="n" "m"')


def changed(path: tuple[str | int, ...], value: Any) -> dict[str, Any]:
    """The plain data of a graph, with the value at `path` replaced."""
    data = to_json(scheduled(Gemm(), "stream-k{workgroups=132,owner=last}"))
    here: Any = data
    for part in path[:-1]:
        here = here[part]
    here[path[-1]] = value
    return data


DATA = {
    "version": (
        ("coordgraph",),
        2,
        "graph: the field 'coordgraph' gives the format version 2; only 1 can be read",
    ),
    "part": (("edge",), [], "graph: a graph has no field 'edge'; did you mean 'edges'?"),
    "list": (("edges",), {}, "edges: a list is needed here, not dict"),
    "mapping": (("edges", 3), "Tile", r"edges\[3\]: a mapping is needed here, not str"),
    "kind": (("edges", 3, "kind"), "Tyle", r"edges\[3\]\.kind: unknown edge 'Tyle'; did you mean"),
    "no side": (("edges", 3), {"kind": "Tile"}, r"edges\[3\]: the edge has no field 'upstream'"),
    "id": (("edges", 1, "upstream"), ["A.9"], r"edges\[1\].*there is no dimension 'A.9'"),
    "expression": (("dimensions", 0, "size"), "m *", r"dimensions\[0\]\.size: expected a value"),
    "symbol": (("dimensions", 0, "size"), "mm", r"dimensions\[0\]\.size: unknown name 'mm'; did"),
    "string": (
        ("dimensions", 0, "size"),
        3,
        r"dimensions\[0\]\.size: a string is needed here, not 3",
    ),
    "number": (
        ("dimensions", 1, "axis"),
        "0",
        r"dimensions\[1\]\.axis: a whole number is needed here",
    ),
    "truth": (
        ("gemm", "transpose_a"),
        1,
        r"gemm\.transpose_a: true or false is needed here, not 1",
    ),
    "field": (("gemm", "kk"), 1, "gemm: Gemm has no field 'kk'; did you mean 'k'"),
    "size rule": (
        ("edges", 0),
        {"kind": "PassThrough", "upstream": ["A.index.0"], "downstream": ["A.index.1"]},
        r"edges\[0\]: .*break its size rule",
    ),
    "parameter": (
        ("parameters", 0, "minimum"),
        None,
        r"parameters\[0\]\.minimum: the value is missing",
    ),
    "entry": (("parameters", 0, "max"), 1, r"parameters\[0\]: unknown field 'max'; did you mean"),
    "role": (("tensors", 0, "role"), "in", r"tensors\[0\]\.role: unknown role 'in'; there are"),
    "operation": (("control", "body", 0, "kind"), "Four", r"control\.body\[0\]\.kind: unknown op"),
    "level": (("level",), "low", "level: unknown level 'low'; did you mean 'lowered'"),
    "symbols": (
        ("symbols",),
        {"q": "odd"},
        r"symbols\.q: the sign of a symbol is 'positive' or 'nonnegative'",
    ),
}


@pytest.mark.parametrize("case", DATA)
def test_plain_data_names_the_path(case: str):
    path, value, message = DATA[case]
    with pytest.raises(VerifyError, match=message):
        from_json(changed(path, value))


def test_deep_plain_data():
    data = to_json(scheduled(Gemm(), ""))
    op: dict[str, Any] = {"kind": "Scope", "name": "s"}
    for _ in range(5000):
        op = {"kind": "Scope", "name": "s", "body": [op]}
    data["control"]["body"] = [op]
    with pytest.raises(VerifyError, match="operations nest more than 100 levels deep"):
        from_json(data)


@pytest.mark.parametrize("data", [None, [], 3])
def test_plain_data_of_another_kind(data: Any):
    with pytest.raises(VerifyError, match="graph: a mapping is needed here"):
        from_json(data)


def test_json_as_text():
    with pytest.raises(VerifyError, match=r"write from_json\(json.loads\(text\)\)"):
        from_json(cast(Any, "{}"))


@pytest.mark.parametrize("value", [None, b"coordgraph 1", 5])
def test_what_is_no_text(value: Any):
    with pytest.raises(VerifyError, match=r"a graph = .* is not text"):
        parse(value)
