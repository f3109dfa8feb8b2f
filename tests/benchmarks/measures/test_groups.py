"""`benchmarks groups` with simulated contenders: checks of results, timing, rows and tables."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.measures import groups
from benchmarks.measures.groups import PLANS, parser, table
from benchmarks.peers.contender import Unavailable
from benchmarks.peers.grouped_peers import PEERS, Prepare
from benchmarks.peers.plans import parse_plan
from benchmarks.problems.grouped import Launch
from benchmarks.problems.shapes import Shape
from coordgraph import Gemm
from passes import Pipeline
from passes.lowering import LowerToHopper
from tests.support.sampling import quick_cases


def test_defaults():
    options = parser().parse_args([])
    assert (options.counts, options.regime, options.dtype) == ([8, 16, 32, 64], "sustained", "bf16")
    assert options.axis == "m"
    for _, plans in groups.DEFAULTS.values():
        assert all(str(parse_plan(text)) == text for text in plans)
    assert not parser().parse_args(["--plans"]).plans


@quick_cases(1)
@pytest.mark.parametrize("text", PLANS)
def test_plans_are_for_hopper(text: str):
    plan = parse_plan(text)
    problem = Gemm("bf16", transpose_b=True, grouped=True).graph(plan.tile)
    assert LowerToHopper().why_not(Pipeline.parse(plan.pipeline)(problem)) is None


class Made:
    """A fake problem, whose contenders are Python functions: a right result is D with D[0] = 7."""

    shape = Shape("8x8x8", 8, 8, 8)
    sizes = (3, 5)
    dtype, flops = "bf16", 2.0 * 512

    def __init__(self) -> None:
        self.sets = [("a", "b", [0]), ("a", "b", [0])]

    def fault(self, compute: Callable[[], Any]) -> str | None:
        self.sets[0][2][0] = -1
        return None if compute()[0] == 7 else "WRONG: 1 of 1 elements"


@pytest.fixture
def samplers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace `Sampler` by a stand-in that launches once for each operand set.

    The stand-in measures no time: a sample is the attribute `takes` of the contender's launch
    function.
    """

    class Fake(groups.Sampler):
        def __init__(self, launch: Any, sets: int, seconds: float, *, graphs: bool) -> None:
            self.launch, self.sets = launch, sets

        def sample(self, share: float = 1.0) -> float:
            for number in range(self.sets):
                self.launch(number)
            return getattr(self.launch, "takes", 1e-3)

    monkeypatch.setattr(groups, "Sampler", Fake)


@pytest.mark.usefixtures("samplers")
def test_contenders_that_are_wrong_or_fail_are_not_timed():
    def writing(value: int, then: int, takes: float) -> Prepare:
        """A contender whose first two launches write `value` into D, and whose later ones write
        `then`; each launch is timed as `takes` seconds.
        """

        def prepare(problem: Any) -> Launch:
            calls = [0]

            def launch(number: int) -> Any:
                calls[0] += 1
                out = problem.sets[number][2]
                out[0] = value if calls[0] <= 2 else then
                return out

            launch.takes = takes  # pyright: ignore[reportFunctionMemberAccess]
            return launch

        return prepare

    def refused(problem: Any) -> Launch:
        raise Unavailable("no such library")

    def broken(problem: Any) -> Launch:
        raise ZeroDivisionError("oh")

    contenders: dict[str, Prepare] = {
        "cuBLAS": writing(7, 7, 2e-3),
        "fast": writing(7, 7, 1e-3),
        "wrong": writing(8, 8, 1e-3),
        "wrong in a row": writing(7, 8, 1e-3),
        "refused": refused,
        "broken": broken,
        "torch._grouped_mm": lambda problem: lambda number: [7],
    }
    options = SimpleNamespace(seconds=1e-3, graphs=True, rounds=3, regime="sustained")
    problem: Any = Made()
    rows = {row["name"]: row for row in groups.compete(contenders, problem, options)}
    assert list(rows) == list(contenders)
    assert rows["fast"]["of_cublas"] == pytest.approx(2.0)
    assert rows["fast"]["tflops"] == pytest.approx(2 * 512 / 1e-3 * 1e-12)
    assert {name: row.get("problem") for name, row in rows.items() if "problem" in row} == {
        "wrong": "WRONG: 1 of 1 elements",
        "wrong in a row": "WRONG: 1 of 1 elements",
        "refused": "no such library",
        "broken": "FAILED: ZeroDivisionError: oh",
    }
    assert {name: row["ours"] for name, row in rows.items()} == {
        name: name not in PEERS for name in contenders
    }


def test_rows_are_shown():
    row = {"shape": "8x8x8", "groups": 2, "name": "cuBLAS"}
    times = {"seconds": {"median": 1e-5}, "tflops": 3.0, "of_cublas": 1.0}
    assert table([{**row, **times}, {**row, "problem": "WRONG: 3 of 64 elements"}]).row_count == 2
