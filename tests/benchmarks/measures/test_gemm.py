"""`python -m benchmarks gemm` accepts valid options and refuses invalid ones; needs no GPU."""

from __future__ import annotations

import pytest

from benchmarks.measures import gemm
from benchmarks.problems.shapes import UNGROUPED, Shape


def test_defaults_are_all_groups_in_two_layouts_and_no_plans():
    options = gemm.read_options([])
    assert len({group for group, _ in options.problems}) == 6
    assert (options.layouts, options.regimes) == (["nn", "nt"], ["sustained"])
    assert (options.plans, options.peers) == ([], ["cublas", "cublaslt", "triton"])
    assert options.coordgraph


def test_plans_and_schedules_by_tiles_add_up_once():
    words = ["--plans", "64x64x64@c2x1 stream-k", "128x64x64 stream-k"]
    words += ["--schedules", "stream-k", "data-parallel", "--tiles", "128x64x64"]
    assert [str(plan) for plan in gemm.read_options(words).plans] == [
        "64x64x64@c2x1 stream-k",
        "128x64x64 stream-k",
        "128x64x64 data-parallel",
    ]


def test_schedules_alone_take_the_usual_tiles():
    found = {plan.tile for plan in gemm.read_options(["--schedules", "stream-k"]).plans}
    assert found == {(128, 256, 64), (128, 128, 64)}


def test_quick_both_and_shapes():
    options = gemm.read_options(["--quick", "--regime", "both", "--peers"])
    assert (len(options.problems), options.rounds, options.peers) == (6, 5, [])
    assert options.regimes == ["burst", "sustained"]
    assert gemm.read_options(["--shapes", "1x2x3"]).problems == [
        (UNGROUPED, Shape("1x2x3", 1, 2, 3))
    ]


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--groups", "Z"], "invalid choice"),
        (["--shapes", "4096"], "should be three positive integers"),
        (["--plans", "128x128x64 steam-k"], "unknown pass"),
        (["--schedules", "steam-k"], "unknown pass"),
        (["--rounds", "0"], "must be positive"),
        (["--time-limit", "0"], "must be positive"),
    ],
)
def test_mistakes_are_explained(words: list[str], why: str, capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit):
        gemm.read_options(words)
    assert why in capsys.readouterr().err


@pytest.mark.parametrize("words", [["nt,nn"], ["nt", "nn"], ["nt,", "nn"], ["nt,nn,nt"]])
def test_layouts_are_separated_by_spaces_or_commas(words: list[str]):
    assert gemm.read_options(["--layouts", *words]).layouts == ["nt", "nn"]


def test_an_unknown_layout_is_refused(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit):
        gemm.read_options(["--layouts", "nt,xy"])
    assert "'xy'" in capsys.readouterr().err
