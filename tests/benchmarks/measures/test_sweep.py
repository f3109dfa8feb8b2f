"""`benchmarks sweep`: which problems and plans it measures; interrupted runs are resumed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.measures.sweep import compact, fastest, jobs, open_record, read_options
from benchmarks.problems.log_uniform import log_uniform_shapes
from benchmarks.problems.regimes import regime_shapes


def test_rows_are_compact():
    row = {"m": 1, "n": 2, "k": 3, "layout": "nt", "seconds": {"median": 1.234567e-5}}
    kept = {"m": 1, "n": 2, "k": 3, "layout": "nt", "group": "A"}
    assert compact({**row, "name": "cuBLAS"}, "A") == {**kept, "plan": "cublas", "t": 1.2346e-5}
    plan = "128x128x64 stream-k on 5"
    assert compact({**row, "name": plan}, "A") == {**kept, "plan": plan, "t": 1.2346e-5}


def test_options():
    options = read_options(["--random", "3", "--plans", "128x128x64 stream-k"])
    assert options.random == 3
    assert [str(plan) for plan in options.plans] == ["128x128x64 stream-k"]


def test_sizes_of_regimes_come_first_with_the_names_of_their_regimes():
    found = jobs(read_options(["--regimes", "--random", "2", "--seed", "7", "--layouts", "nt"]))
    regimes = regime_shapes(7)
    assert [(group, shape) for group, shape, _ in found[:35]] == [(s.name, s) for s in regimes]
    assert len(found) == 37
    assert len(jobs(read_options(["--regimes", "--layouts", "nt"]))) == 35


def test_a_run_is_resumed(tmp_path: Path):
    path = tmp_path / "sweep.json"
    first, second, third = log_uniform_shapes(3)
    rows = [
        {"m": one.m, "n": one.n, "k": one.k, "layout": layout, "plan": "cublas", "t": 1e-5}
        for one, layout in ((first, "nn"), (first, "nt"), (second, "nn"))
    ]
    path.write_text(json.dumps({"kind": "sweep", "rows": rows}))
    words = ["--random", "3", "--resume", str(path)]
    options = read_options(words)
    path_of_record, record = open_record(options)
    assert (path_of_record, record["kind"]) == (path, "sweep")
    left = [(found, layout) for _, found, layout in jobs(options, record["rows"])]
    assert left == [(third, "nn"), (second, "nt"), (third, "nt")]
    assert len(jobs(options)) == 6
    path.write_text("{}")
    with pytest.raises(ValueError, match="is not a record"):
        open_record(options)


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
        (wrong, "is not a record of"),
        (tmp_path / "none.json", "is not a record"),
        (tmp_path / "text.json", "is no JSON"),
    ):
        with pytest.raises(ValueError, match=f"{path} {why}"):
            fastest([path])
