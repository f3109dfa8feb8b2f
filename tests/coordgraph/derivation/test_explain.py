"""`KernelGraph.explain` prints how an index is derived from other indices, or why it cannot be."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import pytest
from sympy import Integer

from coordgraph import (
    AmbiguousPath,
    CoordGraphError,
    CoordinateGraph,
    EvaluationError,
    Gemm,
    KernelGraph,
    LaunchError,
    VerifyError,
)
from coordgraph.coordinates.dimensions import Linear
from coordgraph.coordinates.edges import PassThrough, Sunder, Tile
from passes import Pipeline
from passes.lowering import LowerToTensorCores
from tests.coordgraph.derivation.replay import replayed
from tests.support.golden import Golden

SIZES = {"m": 1280, "n": 1536, "k": 16384}
POINT = {"workgroup": 5, "for_tile": 0, "for_k": 3, "A.index.0": 7, "A.index.1": 1}


@cache
def scheduled(pipeline: str = "stream-k{workgroups=32}") -> KernelGraph:
    return Pipeline.parse(pipeline)(Gemm("bf16").graph((128, 128, 32)))


@cache
def lowered() -> KernelGraph:
    return LowerToTensorCores()(scheduled())


CASES: dict[str, tuple[str, dict[str, Any], bool]] = {
    "address-of-a": ("A", {**POINT, **SIZES}, False),
    "row-of-a": ("A.0", {}, False),
    "padding": ("A.0", {**POINT, **SIZES, "m": 100, "A.index.0": 101, "workgroup": 0}, False),
    "half-symbolic": ("A.1", {**POINT, **SIZES, "for_k": None}, False),
    "workgroup-of-an-element": ("sk.workgroup", {"A.0": 300, "B.1": 17, "A.1": 64, **SIZES}, True),
}


@pytest.mark.parametrize("name", CASES)
def test_a_reader_can_follow_the_steps(name: str, golden: Golden):
    wanted, at, forward = CASES[name]
    golden(
        scheduled().explain(wanted, at, forward=forward).text(), f"coordgraph/derivation/{name}.txt"
    )


def test_an_address_in_shared_memory(golden: Golden):
    at = {"stage": 1, "workitem": 17, "A.copy.pass": 1, "A.copy.element": 2}
    found = lowered().explain("A.shared", at)
    assert found.address is not None
    assert (found.address.dtype, found.address.bytes) == ("bf16", 2 * (found.value or 0))
    golden(found.text(), "coordgraph/derivation/shared-memory.txt")


def test_unscheduled_graphs_start_at_tile_numbers():
    graph = Gemm("f32").graph((16, 16, 8))
    at = {"A.tile.0": 2, "A.tile.1": 3, "A.index.0": 1, "A.index.1": 4, "m": 40, "k": 32}
    found = graph.explain("A", at)
    assert [*found.given] == [name for name in at if "." in name]
    assert found.value == 33 * 32 + 28
    assert found.address is not None
    assert (found.address.bytes, found.address.length) == (4 * (33 * 32 + 28), 40 * 32)
    strides = {s.coordinate: s.value for s in found.address.strides}
    assert strides == {"A.tile.0": 16 * 32, "A.tile.1": 8, "A.index.0": 32, "A.index.1": 1}


def test_a_derivation_is_json():
    found = scheduled().explain("A", {**POINT, **SIZES})
    data = json.loads(json.dumps(found.as_data()))
    assert (data["coordinate"], data["value"], data["padding"]) == ("A", 2224225, False)
    assert data["address"]["offset"] == {
        "expression": data["expression"],
        "elements": 2224225,
        "bytes": 4448450,
        "inside": True,
    }
    assert [step["origin"] for step in data["steps"]][:2] == ["stream-k{workgroups=32}"] * 2
    assert data["steps"][-1]["origin"] is None


def test_without_a_point_nothing_has_a_number():
    data = scheduled().explain("A").as_data()
    numbers = [i["value"] for s in data["steps"] for i in s["computes"]]
    assert {*numbers, data["value"], data["padding"]} == {None}
    assert scheduled().explain("A").values == {}


def test_a_selector_chooses_what_is_needed():
    graph = scheduled("two-tile-stream-k{workgroups=4}")
    every = {"for_tile", "for_k", "workgroup", "dp.wave", "selector"}
    assert {*graph.explain("A.tile.0").given} == every
    at = {"selector": 0, "for_tile": 0, "for_k": 1, "workgroup": 2, **SIZES}
    assert {*graph.explain("A.tile.0", at).given} == every - {"dp.wave"}


def test_groups_read_their_tables():
    gemm = Gemm("f32", grouped=True)
    graph = Pipeline.parse("stream-k{workgroups=3}")(gemm.graph((16, 16, 8)))
    given = dict.fromkeys(graph.explain("A").given, 1)
    sizes = {"m": 60, "n": 20, "k": 24, "groups": 3}
    with pytest.raises(EvaluationError, match=r"the table offsets with groups \+ 1 entries"):
        graph.explain("A", {**given, **sizes})
    found = graph.explain("A", {**given, **sizes, "offsets": [0, 7, 40, 60]})
    tables = {name: v for name, v in found.values.items() if not isinstance(v, int)}
    assert {*tables} == {"offsets", "tile_starts"}
    assert replayed(found, tables)[0] == found.value
    with pytest.raises(VerifyError, match="offsets is a table; give its entries"):
        graph.explain("A", {"offsets": 3})
    with pytest.raises(VerifyError, match="tile_starts is computed from other tables"):
        graph.explain("A", {"tile_starts": [0, 1]})
    with pytest.raises(LaunchError, match="offsets has 2 entries, but the kernel needs 4"):
        graph.explain("A", {**given, **sizes, "offsets": [0, 60]})


@pytest.mark.parametrize(
    ("at", "kind", "message"),
    [
        (
            {"workgroup": 5},
            EvaluationError,
            r"also depends on for_tile from 0 .*A.index.0 in 0..127",
        ),
        ({"workgroup": 5}, EvaluationError, r"m in 1..2147479552 \(extent of the problem in m\)"),
        (
            {**POINT, "m": 64},
            EvaluationError,
            r"depends on n in 1.*; give these values too, or None",
        ),
        ({**POINT, **SIZES, "workgroup": 32}, EvaluationError, r"= 32 is outside .* in 0..31"),
        ({**POINT, **SIZES, "for_k": -1}, EvaluationError, "for_k = -1 is outside its dimension"),
        ({**POINT, **SIZES, "m": 0}, VerifyError, "m = 0 is out of bounds: it must be in 1.."),
        ({**SIZES, "share": 3}, VerifyError, r"share is computed from other parameters: share = "),
        ({"workgrop": 5}, VerifyError, "'workgrop'; did you mean workgroup"),
        ({"workgroup": 1.5}, VerifyError, "the index 'workgroup'"),
    ],
)
def test_what_is_missing_or_wrong_is_said(
    at: dict[str, Any], kind: type[CoordGraphError], message: str
):
    with pytest.raises(kind, match=message):
        scheduled().explain("A.0", at)


def test_an_unknown_dimension_is_refused():
    with pytest.raises(VerifyError, match=r"there is no dimension 'A.2'; did you mean"):
        scheduled().explain("A.2")


def test_the_start_of_the_forward_direction_is_refused():
    with pytest.raises(EvaluationError, match=r"'D' is where the forward .* leave out --forward"):
        scheduled().explain("D", {"workgroup": 1}, forward=True)


def test_paths_that_part_are_named():
    message = (
        "'A.shared' depends on 'A.index.0', which 2 edges can compute; give 'A.index.0' itself, or "
        "the coordinates that one of the edges needs: A.copy.pass, workitem \\(by Flatten"
    )
    with pytest.raises(AmbiguousPath, match=message):
        lowered().explain("A.shared")


def test_an_offset_outside_its_memory_is_said():
    graph = Gemm("f32").graph((16, 16, 8))
    at = {"A.tile.0": 0, "A.index.0": 15, "A.1": 3, "k": 4, "m": 2}
    found = graph.explain("A", at)
    assert found.padding
    assert found.address is not None
    assert found.address.inside is False
    assert "the offset is outside this memory" in found.text()


def test_a_computed_index_outside_its_dimension_is_marked():
    at = {**POINT, **SIZES, "for_tile": 100_000}
    found = scheduled().explain("A.0", at)
    first = found.outside
    assert first is not None
    assert (first.dimension, first.last) == ("sk.local", found.values["share"] - 1)
    assert f"{first.value} is outside 0..{first.last}: no workgroup is at this point" in str(found)
    assert f"no workgroup is at this point: sk.local = {first.value} is outside" in str(found)
    assert found.as_data()["outside"] == "sk.local"
    assert scheduled().explain("A.0", {**POINT, **SIZES}).outside is None


def test_an_offset_computed_from_padding_is_not_marked():
    at = {**POINT, **SIZES, "m": 100, "A.index.0": 101, "workgroup": 0}
    found = scheduled().explain("A", at)
    assert (found.padding, found.outside) == (True, None)


def test_guards_of_segments_that_are_not_chosen_do_not_count():
    with CoordinateGraph().edit() as e:
        for name, size in {"i": 5, "a": 3, "b": 2, "x": 2, "s": 2, "t": 2, "y": 2}.items():
            e.add(Linear(name, Integer(size)))
        e.connect(Sunder("i", ("a", "b", "s")))
        e.connect(PassThrough("s", "t"))  # the edge derives the selector s from t
        e.connect(Tile("a", ("x", "y")))
    graph = KernelGraph(Gemm(), e.graph)
    chosen = graph.explain("i", {"x": 1, "y": 1, "b": 0, "t": 0})
    other = graph.explain("i", {"x": 1, "y": 1, "b": 0, "t": 1})
    (guard,) = (g for s in other.steps if s.edge.kind == "Tile" for g in s.guards)
    assert (chosen.padding, other.padding) == (True, False)
    assert (guard.value, guard.applied, str(guard.applies)) == (False, False, "Eq(s, 0)")
    assert "guard a < 3, which counts where s == 0: 3 < 3, false, not needed" in other.text()
    assert (other.value, replayed(other, {})) == (3, (3, True))
