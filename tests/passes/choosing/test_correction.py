"""The learned correction of predicted times: its trees, how they are learned, where they apply."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordgraph import Gemm
from passes.choosing import Plan, constants_of, learn_correction
from passes.choosing.boosting import boosted
from passes.choosing.candidates import candidates
from passes.choosing.constants import known_devices
from passes.choosing.correction import (
    DEPTH,
    FILE,
    MOST,
    UNIT,
    Correction,
    Tree,
    correctable,
    features,
)
from passes.choosing.learn_correction import Errors, losses, main, predicted_from_others
from passes.choosing.model import Counts, cost, shared_terms
from passes.choosing.plan_table import Column, Table

H200 = constants_of("NVIDIA H200")
NAMES = ("depth", "tiles", "total")


@st.composite
def trees(draw: st.DrawFn, most: int = 500) -> Tree:
    """A tree with up to four conditions on the columns `NAMES`."""
    depth = draw(st.integers(1, 4))
    names = draw(st.tuples(*[st.sampled_from(NAMES)] * depth))
    limits = draw(st.tuples(*[st.integers(-20, 20).map(lambda x: x / 4)] * depth))
    values = draw(st.tuples(*[st.integers(-most, most)] * (1 << depth)))
    return Tree(names, limits, values)


@given(trees())
def test_the_text_of_a_tree_is_parsed_back(tree: Tree):
    assert Tree.parse(str(tree)) == tree


def test_a_text_that_is_no_tree_is_refused():
    with pytest.raises(ValueError, match=r"d conditions need 2\^d values"):
        Tree.parse("depth,tiles 1,2 3,4,5")
    with pytest.raises(ValueError, match="is not a tree: it does not have three lists"):
        Tree.parse("depth 1")


def value(tree: Tree, row: dict[str, float]) -> int:
    """The value of a tree for one plan, condition by condition."""
    values = list(tree.values)
    for name, limit in zip(tree.names, tree.limits, strict=True):
        half = len(values) // 2
        values = values[half:] if row[name] > limit else values[:half]
    return values[0]


@given(
    st.integers(1, 3).flatmap(
        lambda depth: st.lists(
            trees().filter(lambda tree: len(tree.names) == depth), min_size=1, max_size=5
        )
    ),
    st.integers(0, 99),
)
def test_a_correction_is_the_sum_of_its_trees_within_a_limit(several: list[Tree], seed: int):
    rng = np.random.default_rng(seed)
    columns: dict[str, Column] = {name: rng.integers(-24, 24, 20) / 4 for name in NAMES}
    found = Correction.of(several).logarithms(columns)
    rows = [{name: column[i] for name, column in columns.items()} for i in range(20)]
    sums = [UNIT * sum(value(tree, row) for tree in several) for row in rows]
    np.testing.assert_allclose(found, np.clip(sums, -MOST, MOST), atol=1e-12)


def test_boosting_learns_what_depends_on_columns():
    rng = np.random.default_rng(0)

    def drawn(count: int) -> tuple[dict[str, Column], Column]:
        columns = {name: rng.random(count) for name in (*NAMES, "rows")}
        known = 0.06 * (columns["depth"] > 0.3) - 0.04 * (columns["tiles"] > 0.6)
        return columns, known + 0.03 * (columns["depth"] > 0.7) * (columns["total"] > 0.5)

    columns, errors = drawn(8000)
    noise = rng.normal(0, 0.01, 8000)
    correction = Correction.of(boosted(columns, errors + noise, np.ones(8000)))
    others, truth = drawn(3000)
    left = truth - correction.logarithms(others)
    assert np.sqrt((left**2).mean()) < 0.27 * truth.std()


def test_the_file_of_the_library_has_trees_of_known_columns():
    several = [Tree.parse(line) for line in FILE.read_text("utf-8").splitlines()]
    problem = Gemm("bf16", m=512, n=512, k=512)
    table = candidates(problem, H200)
    counts = Counts(table, H200)
    found = cost(counts, H200, corrected=False)
    columns = features(table, counts.shape, counts.work, shared_terms(found), found.total)
    assert len(several) > 10
    assert {len(tree.names) for tree in several} == {DEPTH}
    assert {name for tree in several for name in tree.names} <= columns.keys()


def test_a_corrected_time_does_not_depend_on_the_other_plans():
    table = candidates(Gemm("bf16", m=1000, n=900, k=3000, transpose_b=True), H200)
    every = cost(table, H200)
    plain = cost(table, H200, corrected=False)
    np.testing.assert_allclose(every.total, plain.total + every.correction)
    assert np.ptp(every.correction / plain.total) > 0.01
    assert np.abs(np.log(every.total / plain.total)).max() <= MOST + 1e-9
    some = np.arange(3, len(table), 97)
    np.testing.assert_allclose(cost(table.where(some), H200).total, every.total[some])


@pytest.mark.parametrize(
    ("changes", "batches"),
    [
        ({"batched": True}, 8),
        ({"dtype": "e4m3"}, 1),
        ({"grouped": True}, 8),
        ({"out_dtype": "f32"}, 1),
    ],
    ids=str,
)
def test_other_problems_are_not_corrected(changes: dict[str, object], batches: int):
    problem = replace(Gemm("bf16", m=512, n=512, k=1024, transpose_b=True), **changes)
    table = candidates(problem, H200, batches=batches)
    assert len(table)
    assert not correctable(table).any()
    assert not cost(table, H200).correction.any()


@pytest.fixture
def times(tmp_path: Path) -> Path:
    """A file of predicted times, a tenth less for clusters with several CTAs along m."""
    rows = []
    for number, (m, n) in enumerate([(x, y) for x in range(256, 1400, 96) for y in (320, 900)]):
        problem = Gemm("bf16", m=m, n=n, k=2048 + 64 * number, transpose_b=True)
        table = candidates(problem, H200)
        found = cost(table, H200, corrected=False)
        near = np.argsort(found.total)[: 12 * 8 : 8]
        for row in near:
            faster = 0.9 if table.cluster_m[row] > 1 else 1.0
            seconds = found.total[row] * faster
            plan = str(table.plan(int(row)))
            rows.append(dict(m=m, n=n, k=problem.k, layout="nt", plan=plan, t=float(seconds)))
    path = tmp_path / "times.json"
    path.write_text(json.dumps({"device": "NVIDIA H200", "rows": rows}))
    return path


def test_what_is_learned_chooses_better_on_other_sizes(
    times: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    errors = Errors.of(times)
    before = losses(errors, errors.predicted).mean()
    after = losses(errors, predicted_from_others(errors)).mean()
    assert before > 0.01
    assert after < before / 3
    monkeypatch.setattr(learn_correction, "FILE", tmp_path / "trees.txt")
    main([str(times), "--write"])
    assert f"{np.expm1(before):.2%} without" in capsys.readouterr().out
    written = (tmp_path / "trees.txt").read_text().splitlines()
    assert [str(Tree.parse(line)) for line in written] == written


def test_a_missing_file_is_one_line(tmp_path: Path):
    with pytest.raises(SystemExit, match="cannot learn from these files"):
        main([str(tmp_path / "none.json")])


def test_columns_without_two_entries_teach_nothing():
    assert boosted({"depth": np.ones(9)}, np.arange(9.0), np.ones(9)) == ()


@pytest.mark.parametrize(
    ("record", "why"),
    [
        ({"rows": []}, "no times of plans"),
        (
            {"rows": [dict(m=64, n=64, k=64, layout="nt", plan="cublas", t=1e-6)]},
            "no times of plans",
        ),
        ({"rows": [dict(m=64, n=64, k=64, layout="nt", plan="64x64x64 x", t=0)]}, "no rows with"),
        ({}, "no rows with m, n, k, layout, plan and t; give a file that"),
        ({"device": "NVIDIA X9", "rows": []}, "without the file nvidia-x9.json; write that file"),
    ],
    ids=str,
)
def test_files_without_suitable_times_are_refused(
    record: dict[str, object], why: str, tmp_path: Path
):
    path = tmp_path / "times.json"
    path.write_text(json.dumps(record))
    with pytest.raises(SystemExit, match=why):
        main([str(path)])


def test_the_constants_of_the_library_are_learned_from(
    times: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    before = Errors.of(times).predicted
    own = H200.with_figures({"clock": 1e9})
    folder = tmp_path / "devices"
    folder.mkdir()
    (folder / "nvidia-h200.json").write_text(own.to_json())
    monkeypatch.setenv("COORDGRAPH_DEVICES", str(folder))
    known_devices.cache_clear()
    assert constants_of("NVIDIA H200").clock == 1e9
    np.testing.assert_array_equal(Errors.of(times).predicted, before)
    known_devices.cache_clear()


def test_the_plan_of_a_choice_names_its_correction():
    gemm = Gemm("bf16", m=700, n=800, k=900, transpose_b=True)
    found = cost(Table.of([(gemm, Plan((128, 128, 64), pipeline="data-parallel"))]), H200)
    assert found.row(0)["correction"] == found.correction[0]
