"""The measure of groups, apart from measuring."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

import codegen
from benchmarks import groups
from benchmarks.contenders import Unavailable
from benchmarks.grouped import AXES, uneven
from benchmarks.groups import PLANS, ours, parser, table
from benchmarks.plans import compile_for, parse_plan
from benchmarks.shapes import Shape
from coordgraph import CoordGraphError, Gemm, KernelGraph
from passes import Pipeline
from passes.lowering import LowerToHopper


@pytest.mark.parametrize("groups", [1, 2, 7, 8, 16, 64])
@pytest.mark.parametrize("skew", [0.0, 0.8, 3.0])
def test_sizes_add_up_and_differ(groups: int, skew: float):
    sizes = uneven(8192, groups, skew)
    assert (len(sizes), sum(sizes)) == (groups, 8192)
    assert min(sizes) >= 0
    assert sizes.count(0) >= groups // 8
    assert sizes == uneven(8192, groups, skew)
    if skew == 0.0:
        assert max(sizes) - min(x for x in sizes if x) <= 1


def test_defaults():
    options = parser().parse_args([])
    assert (options.counts, options.regime, options.dtype) == ([8, 16, 32, 64], "sustained", "bf16")
    assert options.axis == "m"
    for _, plans in groups.DEFAULTS.values():
        assert all(str(parse_plan(text)) == text for text in plans)
    assert not parser().parse_args(["--plans"]).plans


@pytest.mark.parametrize("text", PLANS)
def test_plans_are_for_hopper(text: str):
    plan = parse_plan(text)
    problem = Gemm("bf16", transpose_b=True, grouped=True).graph(plan.tile)
    assert LowerToHopper().why_not(Pipeline.parse(plan.pipeline)(problem)) is None


def test_a_plan_is_built_for_groups_and_launched_on_its_grid(monkeypatch: pytest.MonkeyPatch):
    """The compiler is a fake; what reaches it, and the kernel, is not."""
    compiled: list[KernelGraph] = []
    launched: list[dict[str, object]] = []

    class Kernel:
        resident = 132

        def __call__(self, a: object, b: object, **given: object) -> None:
            launched.append({"a": a, "b": b, **given})

    def compile(graph: KernelGraph, target: str, lowering: object = None) -> Kernel:
        assert (target, lowering) == ("sm_90a", None)
        compiled.append(graph)
        return Kernel()

    monkeypatch.setattr(codegen, "compile", compile)
    problem: Any = SimpleNamespace(sets=[("a", "b", "d")], on_device="offsets")
    plans = [parse_plan(f"128x128x64 stream-k on {grid}") for grid in (60, 64)]
    gemm = Gemm("bf16", transpose_b=True, grouped=True)
    steps: list[int] = []
    built = list(compile_for(plans, gemm, "sm_90a", lambda: steps.append(1)))
    for plan, kernel in built:
        assert ours(plan, kernel)(problem)(0) == "d"
    (graph,) = compiled
    assert graph.gemm == gemm
    assert len(steps) == 2
    wanted = {"a": "a", "b": "b", "out": "d", "offsets": "offsets"}
    assert launched == [{**wanted, "workgroups": grid} for grid in (60, 64)]


@pytest.mark.parametrize("axis", ["m", "k"])
def test_the_chosen_plan_is_called_as_the_problem_is_stored(
    axis: str, monkeypatch: pytest.MonkeyPatch
):
    calls: list[tuple[Any, ...]] = []
    monkeypatch.setattr(groups, "chosen", lambda *_, **options: calls.append((options,)) or "plan")
    monkeypatch.setattr(
        groups, "grouped_matmul", lambda *arrays, **options: calls.append((arrays, options))
    )
    gemm = AXES[axis].gemm
    problem: Any = SimpleNamespace(dtype="bf16", gemm=gemm, sets=[("A", "B", "D")], on_device="o")
    contender = groups.Chosen()
    assert contender(problem)(0) == "D"
    options = {"group_axis": axis, "transpose_a": axis == "k", "transpose_b": axis == "m"}
    assert calls == [({"out": "D", **options},), (("A", "B", "o"), {"out": "D", **options})]
    assert contender.details == {"plan": "plan"}


def test_a_plan_that_was_not_built_says_why():
    problem: Any = None
    with pytest.raises(CoordGraphError, match="no such tile"):
        ours(parse_plan("128x128x64 stream-k"), CoordGraphError("no such tile"))(problem)


class Made:
    """A problem whose contenders are functions; the right result is 7."""

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
    """Samplers that call, and take as long as their contender says."""

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
    def writing(value: int, then: int, takes: float) -> groups.Prepare:
        """Computes one value at first, another when it follows itself closely."""

        def prepare(problem: Any) -> groups.Launch:
            calls = [0]

            def launch(number: int) -> Any:
                calls[0] += 1
                out = problem.sets[number][2]
                out[0] = value if calls[0] <= 2 else then
                return out

            launch.takes = takes  # pyright: ignore[reportFunctionMemberAccess]
            return launch

        return prepare

    def refused(problem: Any) -> groups.Launch:
        raise Unavailable("no such library")

    def broken(problem: Any) -> groups.Launch:
        raise ZeroDivisionError("oh")

    everyone: dict[str, groups.Prepare] = {
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
    rows = {row["name"]: row for row in groups.compete(everyone, problem, options)}
    assert list(rows) == list(everyone)
    assert rows["fast"]["of_cublas"] == pytest.approx(2.0)
    assert rows["fast"]["tflops"] == pytest.approx(2 * 512 / 1e-3 * 1e-12)
    assert {name: row.get("problem") for name, row in rows.items() if "problem" in row} == {
        "wrong": "WRONG: 1 of 1 elements",
        "wrong in a row": "WRONG: 1 of 1 elements",
        "refused": "no such library",
        "broken": "FAILED: ZeroDivisionError: oh",
    }
    assert {name: row["ours"] for name, row in rows.items()} == {
        name: name not in groups.PEERS for name in everyone
    }


def test_grouped_mm_is_for_bf16():
    with pytest.raises(Unavailable, match="bf16 only"):
        groups.grouped_mm(SimpleNamespace(dtype="f16"))  # pyright: ignore[reportArgumentType]


def test_rows_are_shown():
    row = {"shape": "8x8x8", "groups": 2, "name": "cuBLAS"}
    times = {"seconds": {"median": 1e-5}, "tflops": 3.0, "of_cublas": 1.0}
    assert table([{**row, **times}, {**row, "problem": "WRONG: 3 of 64 elements"}]).row_count == 2
