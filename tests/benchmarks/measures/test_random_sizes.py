"""`benchmarks random` draws sizes from a seed, and summarises ratios of (simulated) times."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from benchmarks.measures import random_sizes
from benchmarks.measures.random_sizes import compare, faults, read_options, summaries, table_of
from benchmarks.problems.log_uniform import log_uniform_shapes
from benchmarks.reports.record import load


def row(name: str, seconds: float | None, k: int = 256, layout: str = "nt", m: int = 128) -> Any:
    """A result row with a time; a row with an error if `seconds` is None."""
    head = {"shape": "x", "m": m, "n": 512, "k": k, "layout": layout, "name": name}
    if seconds is None:
        return {**head, "problem": "no such kernel"}
    plan = {"plan": "64x64x64 stream-k on 5"} if name == "coordgraph" else {}
    return {**head, **plan, "seconds": {"median": seconds}}


def problem(cublas: float, cublaslt: float, ours: float, **size: Any) -> list[Any]:
    times = {"cuBLAS": cublas, "cuBLASLt": cublaslt, "coordgraph": ours}
    return [row(name, 1e-6 * seconds, **size) for name, seconds in times.items()]


def test_ratios_are_of_the_same_problem_and_of_the_faster_library():
    slow, fast = problem(10, 8, 4), problem(10, 12, 20, k=512)
    one, two = compare([*slow, *fast])
    assert (one.of_cublas, one.of_best) == (pytest.approx(2.5), pytest.approx(2.0))
    assert (two.of_cublas, two.of_best) == (pytest.approx(0.5), pytest.approx(0.5))
    assert str(one) == "128x512x256 nt"
    assert one.plan == "64x64x64 stream-k on 5"


def test_layouts_are_problems_of_their_own():
    rows = [*problem(10, 8, 4), *problem(10, 8, 20, layout="nn")]
    assert [one.of_cublas for one in compare(rows)] == [pytest.approx(2.5), pytest.approx(0.5)]


def test_problems_without_a_time_of_ours_are_faults():
    rows = [row("cuBLAS", 1e-5), row("coordgraph", None), *problem(10, 8, 4, m=64)]
    assert [one.m for one in compare(rows)] == [64]
    assert faults(rows) == ["128x512x256 nt coordgraph: no such kernel"]


def test_without_cublaslt_cublas_is_the_best_library():
    (found,) = compare([row("cuBLAS", 1e-5), row("coordgraph", 2e-5)])
    assert found.of_best == found.of_cublas == pytest.approx(0.5)


def test_classes_are_by_the_time_of_cublas_and_by_k():
    cases = ((7.9, 511, 1.0), (8, 512, 2.0), (19.9, 1024, 0.5), (59, 2048, 1.0), (61, 4096, 4.0))
    rows = [
        one
        for m, (cublas, k, ratio) in enumerate(cases, start=1)
        for one in problem(cublas, cublas, cublas / ratio, k=k, m=m, layout="nt" if m < 4 else "nn")
    ]
    found = summaries(compare(rows))
    assert list(found) == [
        *("all", "layout nt", "layout nn"),
        *("cuBLAS < 8 µs", "8 <= cuBLAS < 20 µs", "20 <= cuBLAS < 60 µs", "cuBLAS >= 60 µs"),
        *("k < 512", "512 <= k < 1024", "1024 <= k < 2048", "2048 <= k < 4096", "k >= 4096"),
    ]
    assert [one.problems for one in found.values()] == [5, 3, 2, 1, 2, 1, 1, 1, 1, 1, 1, 1]
    assert found["all"].of_cublas == pytest.approx(4 ** (1 / 5))
    assert (found["all"].least_of_cublas, found["all"].slow) == (pytest.approx(0.5), 1)
    assert found["8 <= cuBLAS < 20 µs"].of_best == pytest.approx(1.0)
    assert found["layout nn"].least_of_best == pytest.approx(1.0)
    assert table_of(found).row_count == len(found)


def test_sizes_follow_from_the_seed_and_the_ranges():
    options = read_options(["--count", "3", "--seed", "5", "--m-high", "256", "--k-low", "1024"])
    assert options.ranges == {"m": (128, 256), "n": (128, 8192), "k": (1024, 8192)}
    assert options.shapes == log_uniform_shapes(3, 5, m=(128, 256), k=(1024, 8192))
    assert len(read_options([]).shapes) == 80
    assert read_options(["--layouts", "nt,nn"]).layouts == ["nt", "nn"]


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--count", "0"], "must be positive"),
        (["--low", "512", "--high", "256"], "m cannot be between 512 and 256"),
        (["--k-high", "64"], "k cannot be between 128 and 64"),
        (["--low", "0"], "m cannot be between 0"),
        (["--time-limit", "0"], "must be positive"),
    ],
)
def test_mistakes_are_explained(words: list[str], why: str, capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit):
        read_options(words)
    assert why in capsys.readouterr().err


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """Simulate a GPU on which coordgraph takes half of cuBLAS's time.

    Returns a list to which each compilation of a kernel appends (size, layout).
    """
    compiled: list[tuple[str, str]] = []

    def compete(contenders: Any, problem: Any, options: Any, **given: Any) -> Iterator[Any]:
        shape, layout, dtype = problem
        assert (dtype, given["regimes"]) == ("bf16", ["sustained"])
        for name in contenders:
            seconds = 1e-9 * shape.k / (2 if name == "coordgraph" else 1)
            yield {**row(name, seconds, k=shape.k, layout=layout, m=shape.m), "n": shape.n}

    def side_by_side(work: Any, jobs: Any) -> None:
        compiled.extend((f"{size}", layout) for size, layout, _ in jobs)

    for name, fake in {
        "unavailable": lambda: None,
        "environment": lambda kind: {"kind": kind, "date": "2026-01-31T12:00:00+00:00"},
        "compete": compete,
        "Problem": lambda *what: what,
        "Monitor": lambda: nullcontext(type("Monitor", (), {"since": None})),
        "side_by_side": side_by_side,
        "CuBlas": lambda: "cuBLAS",
        "CuBlasLt": lambda candidates: f"cuBLASLt of {candidates}",
        "Library": lambda *, tune: "coordgraph",
    }.items():
        monkeypatch.setattr(random_sizes, name, fake)
    return compiled


def run(monkeypatch: pytest.MonkeyPatch, *words: object) -> None:
    monkeypatch.setattr(sys, "argv", ["random", *map(str, words)])
    random_sizes.main()


def test_a_run_writes_the_rows_and_the_means(
    gpu: list[Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    path = tmp_path / "random.json"
    run(monkeypatch, "--count", 4, "--seed", 3, "--json", path, "--candidates", 5, "--worst", 2)
    record = load(path)
    assert (record["kind"], record["seed"], record["tune"]) == ("random", 3, False)
    assert record["ranges"] == {axis: [128, 8192] for axis in "mnk"}
    assert len(record["rows"]) == 4 * 2 * 3
    assert {row["name"] for row in record["rows"]} == {"cuBLAS", "cuBLASLt of 5", "coordgraph"}
    assert record["means"]["all"]["of_cublas"] == pytest.approx(2.0)
    assert record["means"]["all"]["problems"] == 8
    assert len(gpu) == 8
    printed = capsys.readouterr().out
    assert printed.count("2.000 of best, 2.000 of cuBLAS") == 2
    assert "layout nn" in printed


def test_tuning_compiles_nothing_ahead(
    gpu: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    run(monkeypatch, "--count", 1, "--tune", "--json", tmp_path / "x.json")
    assert gpu == []
    assert load(tmp_path / "x.json")["tune"] is True


def test_what_the_time_limit_leaves_out_is_said(
    gpu: list[Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    class Over(random_sizes.TimeBudget):
        @property
        def over(self) -> bool:
            return self.left < 6

    monkeypatch.setattr(random_sizes, "TimeBudget", Over)
    run(monkeypatch, "--count", 4, "--results", tmp_path)
    assert "left out 5 of 8 problems" in capsys.readouterr().out
    (path,) = tmp_path.glob("random-*.json")
    assert len(load(path)["rows"]) == 3 * 3


def test_a_wrong_result_ends_the_run_with_an_error(
    gpu: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    wrong = {**row("coordgraph", None), "problem": "WRONG: 1 of 4 elements"}
    monkeypatch.setattr(random_sizes, "compete", lambda *_, **__: iter([wrong]))
    with pytest.raises(SystemExit, match="some results are wrong"):
        run(monkeypatch, "--count", 1, "--json", tmp_path / "x.json")
