"""Tables in the text form of graphs: how they are printed and parsed; errors have positions."""

from __future__ import annotations

import pytest

from coordgraph import Gemm, ParseError, VerifyError, from_json, parse
from coordgraph.coordinates.dimensions import Linear

TEXT = Gemm("f32", grouped=True).graph((4, 4, 4)).text()
BATCH = Gemm("f32", batched=True).graph((4, 4, 4))


def changed(before: str, after: str) -> str:
    assert before in TEXT
    return TEXT.replace(before, after)


@pytest.mark.parametrize(
    ("before", "after", "why"),
    [
        ("table offsets [groups + 1] <=", "table offsets [groups + 1]", "expected '<='"),
        ("table offsets [groups + 1]", "table offsets (groups + 1)", r"expected '\['"),
        ("table offsets", "table m", "a parameter or a table 'm' already"),
        ("table tile_starts", "table offsets", "a parameter or a table 'offsets' already"),
        ('<= m "where', '<= q "where', "unknown name 'q'"),
        ('<= m "where', '<= load(offsets, 0) "where', "reads a table; use launch parameters only"),
        ("sums (max", "sum (max", "expected"),
        ("table=offsets", "table=3", "expected"),
    ],
)
def test_mistakes(before: str, after: str, why: str):
    with pytest.raises(ParseError, match=why):
        parse(changed(before, after))


def test_a_table_that_sorts():
    lines = 'table order [groups] <= groups - 1 sorts load(tile_starts, order.at) "larger first"\n'
    text = TEXT.replace("tensor A", f"{lines}tensor A", 1)
    graph = parse(text)
    assert lines in graph.text()
    assert parse(graph.text()) == graph == from_json(graph.json())
    (*_, table) = graph.parameters.tables
    assert (table.rule, table.rises, table.steps) == ("sorts", False, table.length)
    with pytest.raises(ParseError, match="expected"):
        parse(text.replace(" sorts ", " sort ", 1))
    data = graph.json()
    assert [t.get("rule") for t in data["tables"]] == [None, None, "sorts"]
    data["tables"][-1]["rule"] = "largest"
    with pytest.raises(VerifyError, match="rule='largest' must be one of sums, sorts"):
        from_json(data)
    data["tables"][-1] |= {"rule": "sorts", "step": None}
    with pytest.raises(VerifyError, match="no step to sort by"):
        from_json(data)


def test_names_that_clash():
    with parse(TEXT).edit() as e:
        e.coordinates.add(Linear("offsets"))
    with pytest.raises(VerifyError, match="'offsets' is a table and also a dimension"):
        e.graph.verify()


def test_plain_data():
    graph = parse(TEXT)
    data = graph.json()
    assert [table["name"] for table in data["tables"]] == ["offsets", "tile_starts"]
    assert from_json(data) == graph
    data["tables"][0]["most"] = "m"
    with pytest.raises(VerifyError, match=r"tables\[0\]: unknown field 'most'"):
        from_json(data)


def test_strides():
    text = BATCH.text()
    assert "tensor A f32 [batches, m, k] input strides [stride_a, k, 1]" in text
    assert parse(text) == BATCH
    with pytest.raises(ParseError, match="has 2 strides; it needs 3"):
        parse(text.replace("strides [stride_a, k, 1]", "strides [stride_a, k]", 1))
