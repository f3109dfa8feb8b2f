"""`benchmarks.sweep`: which problems and plans."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.gemm import Allowance
from benchmarks.shapes import Shape
from benchmarks.sweep import begun, corpus, fastest, jobs, parser, plans_for, short
from coordgraph import Gemm
from passes.choosing import choices
from passes.choosing.simple import instructions_plan


def test_the_corpus_is_log_uniform_and_the_same_every_time():
    shapes = corpus(400)
    assert shapes == corpus(400)
    assert shapes[:7] == corpus(7)
    assert shapes != corpus(400, seed=1)
    extents = [extent for found in shapes for extent in (found.m, found.n, found.k)]
    assert all(128 <= extent <= 8192 and extent % 8 == 0 for extent in extents)
    below = sum(extent < 1024 for extent in extents) / len(extents)  # half of the octaves
    assert 0.45 < below < 0.55


def test_plans_are_those_of_the_best_predictions():
    found = plans_for(Shape("", 4096, 4096, 4096), "nt", "bf16", 9)
    assert len(found) == len(set(found)) >= 9
    assert found[0].tile[0] >= 128


def test_rows_are_short():
    row = {"m": 1, "n": 2, "k": 3, "layout": "nt", "seconds": {"median": 1.234567e-5}}
    kept = {"m": 1, "n": 2, "k": 3, "layout": "nt", "group": "A"}
    assert short({**row, "name": "cuBLAS"}, "A") == {**kept, "plan": "cublas", "t": 1.2346e-5}
    plan = "128x128x64 stream-k on 5"
    assert short({**row, "name": plan}, "A") == {**kept, "plan": plan, "t": 1.2346e-5}


def test_options():
    options = parser().parse_args(["--random", "3", "--plans", "128x128x64 stream-k"])
    assert options.random == 3
    assert [str(plan) for plan in options.plans] == ["128x128x64 stream-k"]


def test_the_corpus_is_the_documented_one():
    """Figures that are compared between machines, and between years, are of these shapes."""
    sizes = ["4288x2992x736", "376x1072x688", "3336x448x928", "1448x5592x1048"]
    assert [found.size for found in corpus(4)] == sizes
    assert [found.size for found in corpus(2, step=1)] == ["4289x2994x736", "376x1073x690"]


def test_the_best_of_every_family_is_measured_too():
    found = Shape("", 2048, 2304, 8192)
    problem = Gemm("bf16", m=2048, n=2304, k=8192, transpose_b=True)
    every = list(choices(problem, all_kinds=True))
    near = [choice.plan for choice in every if choice.seconds <= 1.3 * every[0].seconds]
    likely = plans_for(found, "nt", "bf16", 6)
    plans = plans_for(found, "nt", "bf16", 6, families=1.3)
    assert plans[: len(likely)] == likely
    assert {plan.family for plan in plans} == {plan.family for plan in near}
    for plan in plans[len(likely) :]:
        assert plan == next(one for one in near if one.family == plan.family)
    assert len(plans) > len(likely) + 3
    assert len(plans_for(found, "nt", "bf16", 6, families=1.02)) < len(plans)


@pytest.mark.parametrize(
    ("size", "layout", "boxes"),
    [
        ((1001, 808, 640), "nt", True),
        ((1001, 808, 640), "tt", False),
        ((1000, 801, 640), "nt", True),
        ((1000, 801, 640), "nn", False),
        ((1000, 808, 641), "nt", False),
        ((1000, 808, 641), "tn", True),
    ],
)
def test_rows_that_the_copy_engine_does_not_take(
    size: tuple[int, int, int], layout: str, boxes: bool
):
    plans = plans_for(Shape("", *size), layout, "bf16", 5, families=1.3)
    assert (len(plans) > 5) == boxes
    assert boxes or plans == [instructions_plan(*size, 132)]


def test_a_run_is_resumed(tmp_path: Path):
    path = tmp_path / "sweep.json"
    first, second, third = corpus(3)
    rows = [
        {"m": one.m, "n": one.n, "k": one.k, "layout": layout, "plan": "cublas", "t": 1e-5}
        for one, layout in ((first, "nn"), (first, "nt"), (second, "nn"))
    ]
    path.write_text(json.dumps({"kind": "sweep", "rows": rows}))
    words = ["--random", "3", "--resume", str(path)]
    options = parser().parse_args(words)
    where, record = begun(options)
    assert (where, record["kind"]) == (path, "sweep")
    left = [(found, layout) for _, found, layout in jobs(options, record["rows"])]
    assert left == [(third, "nn"), (second, "nt"), (third, "nt")]
    assert len(jobs(options)) == 6
    path.write_text("{}")
    with pytest.raises(ValueError, match="holds no record"):
        begun(options)


def test_what_was_best_is_measured_again(tmp_path: Path):
    size = {"m": 256, "n": 512, "k": 1024, "layout": "nt"}
    slow, fast, other = "64x64x64 data-parallel", "128x64x64 data-parallel", "64x128x64 stream-k"

    def times(name: str, plans: dict[str, float]) -> Path:
        rows = [{**size, "plan": plan, "t": seconds} for plan, seconds in plans.items()]
        (tmp_path / name).write_text(json.dumps({"kind": "sweep", "rows": rows}))
        return tmp_path / name

    one = times("one.json", {"cublas": 1e-6, slow: 3e-6, fast: 2e-6})
    two = times("two.json", {"cublas": 1e-6, other: 5e-6})
    found = fastest([one, two])
    assert {problem: [*map(str, plans)] for problem, plans in found.items()} == {
        (256, 512, 1024, "nt"): [fast, other]
    }
    wrong = times("wrong.json", {"64x64 of something": 1e-6})
    (tmp_path / "none.json").write_text("{}")
    (tmp_path / "text.json").write_text("none")
    for path, why in (
        (wrong, "is not of a sweep"),
        (tmp_path / "none.json", "holds no record"),
        (tmp_path / "text.json", "is no JSON"),
    ):
        with pytest.raises(ValueError, match=f"{path} {why}"):
            fastest([path])


def test_time_is_over_when_it_is_over():
    now = [0.0]
    allowance = Allowance(1.0, 4, clock=lambda: now[0])
    for second in (0.0, 30.0, 59.0):
        now[0] = second
        assert not allowance.over
        assert second < allowance.deadline() <= 60
    now[0] = 60.0
    assert allowance.over
    assert allowance.left == 1
