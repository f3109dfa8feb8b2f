"""`compete` times only contenders with right results, and returns a row for each contender."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.peers import compete as module
from benchmarks.peers.compete import compete, exit_if_wrong, is_wrong
from benchmarks.peers.contender import Unavailable
from benchmarks.problems.shapes import Shape
from benchmarks.timing.roofline import Roofline
from coordgraph import CodegenError


class Contender:
    """A contender that writes `value` into D in its first launch, and `then` in later launches.

    If `value` is an exception, the contender raises it.
    """

    def __init__(
        self, name: str, value: Any, seconds: float = 1e-3, *, then: int = 7, ours: bool = False
    ) -> None:
        self.name, self.value, self.then, self.ours = name, value, then, ours
        self.seconds, self.launches = seconds, 0
        self.details = {"of": name}

    def prepare(self, problem: Any) -> Any:
        if isinstance(self.value, Exception):
            raise self.value

        def run(a: Any, b: Any, out: list[int]) -> None:
            self.launches += 1
            out[0] = self.value if self.launches <= 1 else self.then

        run.seconds = self.seconds  # pyright: ignore[reportFunctionMemberAccess]
        return run


class Problem:
    """A simulated problem: the only element of D is 7 in a right result."""

    shape, layout = Shape("tiny", 2, 4, 8), "nt"

    def __init__(self) -> None:
        self.sets: list[Any] = [("a", "b", [0])]
        self.rounded: list[bool] = []

    def launch(self, run: Any, number: int) -> float:
        run(*self.sets[number])
        return run.seconds

    def fault(self, compute: Callable[[], Any], *, rounded_partials: bool = False) -> str | None:
        self.rounded.append(rounded_partials)
        self.sets[0][2][0] = -1
        compute()
        return None if self.sets[0][2][0] == 7 else "WRONG: 1 of 1 sampled elements"


@pytest.fixture(autouse=True)
def _samplers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace `Sampler` by a fake one: a sample is one launch, whose result counts as seconds."""

    class Sampler:
        def __init__(self, launch: Any, sets: int, seconds: float, *, graphs: bool) -> None:
            assert (sets, seconds, graphs) == (1, 0.5, True)
            self.launch = launch

        def sample(self, share: float = 1.0) -> float:
            return self.launch(0)

    monkeypatch.setattr(module, "Sampler", Sampler)


def rows_of(*contenders: Contender, problem: Any = None, **given: Any) -> dict[str, Any]:
    options = SimpleNamespace(seconds=0.5, graphs=True, rounds=3)
    problem = problem or Problem()
    everyone: Any = list(contenders)
    return {row["name"]: row for row in compete(everyone, problem, options, **given)}


def test_ratios_are_of_the_times_of_the_same_run():
    rows = rows_of(
        Contender("cuBLAS", 7, 2e-3),
        Contender("ours", 7, 1e-3, ours=True),
        roofline=Roofline(1e9, 1e6),
        device_state=lambda start: {"watts": 700.0},
    )
    ours = rows["ours"]
    assert ours["of_cublas"] == pytest.approx(2.0)
    assert ours["tflops"] == pytest.approx(2e-12 * 2 * 4 * 8 / 1e-3)
    assert ours["of_floor"] == pytest.approx(2 * 2 * 4 * 8 / 1e6 / 1e-3)
    assert ours["device"] == {"watts": 700.0}
    assert (ours["layout"], ours["regime"], ours["of"]) == ("nt", "sustained", "ours")
    assert ours["seconds"]["rounds"] == 3
    assert not any(map(is_wrong, rows.values()))


def test_who_is_wrong_or_refuses_is_not_timed():
    rows = rows_of(
        Contender("right", 7),
        Contender("wrong", 8),
        Contender("wrong in a row", 7, then=8),
        Contender("missing", Unavailable("not installed")),
        Contender("refused", CodegenError("no such tile"), ours=True),
        Contender("broken", ZeroDivisionError("oh")),
    )
    assert {name: row.get("problem") for name, row in rows.items()} == {
        "right": None,
        "wrong": "WRONG: 1 of 1 sampled elements",
        "wrong in a row": "WRONG: 1 of 1 sampled elements",
        "missing": "not installed",
        "refused": "no such tile",
        "broken": "FAILED: ZeroDivisionError: oh",
    }
    assert [name for name, row in rows.items() if is_wrong(row)] == [
        *("wrong", "wrong in a row", "broken"),
    ]
    assert [name for name, row in rows.items() if "seconds" in row] == ["right"]


def test_only_libraries_may_round_partial_sums():
    problem = Problem()
    rows_of(Contender("library", 7), Contender("ours", 7, ours=True), problem=problem)
    assert problem.rounded == [True, True, False, False]


def test_a_measure_may_check_results_itself():
    checked: list[str] = []

    def check(contender: Any, compute: Callable[[], Any]) -> str | None:
        compute()
        checked.append(contender.name)
        return "WRONG: so it is" if contender.name == "b" else None

    problem = Problem()
    rows = rows_of(Contender("a", 1), Contender("b", 1), problem=problem, check=check)
    assert checked == ["a", "a", "b"]
    assert rows["b"]["problem"] == "WRONG: so it is"
    assert "seconds" in rows["a"]
    assert problem.rounded == []


def test_every_regime_has_its_rows(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "sample_in_rounds", lambda samplers, *_, **__: [[1.0]])
    options: Any = SimpleNamespace(seconds=0.5, graphs=True, rounds=1)
    contender: Any = Contender("a", 7)
    problem: Any = Problem()
    rows = compete([contender], problem, options, regimes=["burst", "sustained"])
    assert [row["regime"] for row in rows] == ["burst", "sustained"]


def test_a_command_ends_with_an_error_for_wrong_results_only():
    exit_if_wrong([{"name": "a"}, {"name": "b", "problem": "not installed"}])
    for fault in ("WRONG: 1 of 2", "FAILED: ValueError: x"):
        with pytest.raises(SystemExit, match="some results are wrong"):
            exit_if_wrong([{"name": "a"}, {"name": "b", "problem": fault}])
