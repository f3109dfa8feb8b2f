"""`benchmarks.sweep`: which problems and plans."""

from __future__ import annotations

from benchmarks.shapes import Shape
from benchmarks.sweep import corpus, parser, plans_for, short


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
