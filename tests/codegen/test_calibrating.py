"""`calibrate` with a fake GPU: what is measured, what is stored, and what later processes find."""

from __future__ import annotations

import json
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from codegen.call import calibrating
from codegen.call.calibrating import calibrate
from codegen.targets.nvptx import driver
from coordgraph import CodegenError, LaunchError
from passes.choosing import calibrate as fitting
from passes.choosing import constants_of
from passes.choosing.constants import known_devices
from passes.choosing.model import cost
from passes.choosing.plan_table import Table

GPU = SimpleNamespace(name="A GPU", architecture="sm_90a", processors=120, ordinal=0)
TRUE = {"launch_seconds": 4e-6, "dram_rate": 2e12}


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Generator[list[Any]]:
    """A list that gets the plan request of each measurement that `calibrate` makes, in order.

    The GPU is fake: the time of a plan is the prediction of a cost model with known constants.
    """
    asked: list[Any] = []
    truth = constants_of("A GPU", 120).with_figures(TRUE)

    def times(bench: Any, request: Any, plans: tuple[Any, ...]) -> dict[Any, float]:
        asked.append(request)
        return dict(
            zip(plans, cost(Table.of((request.gemm, p) for p in plans), truth).total, strict=True)
        )

    def built(request: Any, drawn: Any, over: Any, advance: Any) -> dict[str, Any]:
        kernel = SimpleNamespace(resident=56)
        return {plan.kernel: kernel for one in drawn for plan in one.plans}

    @contextmanager
    def nothing(*args: Any) -> Generator[Any]:
        yield (0, 0)

    monkeypatch.setattr(driver, "device", lambda ordinal: GPU)
    monkeypatch.setattr(calibrating, "times", times)
    monkeypatch.setattr(calibrating, "_built", built)
    monkeypatch.setattr(calibrating, "opened", nothing)
    monkeypatch.setattr(calibrating, "random_operands", nothing)
    monkeypatch.setattr(calibrating, "memory_rate", lambda where: {"dram_rate": 2e12})
    monkeypatch.setattr(calibrating, "SIZES_PER_MINUTE", 12)
    monkeypatch.setattr(fitting, "MOST_ROUNDS", 12)
    monkeypatch.setenv("COORDGRAPH_DEVICES", str(tmp_path / "devices"))
    known_devices.cache_clear()
    yield asked
    known_devices.cache_clear()


@pytest.mark.slow
def test_a_calibrated_device_is_found(measured: list[Any], tmp_path: Path):
    assert constants_of("A GPU", 120).estimated
    found = calibrate(1.0)
    assert found.path == tmp_path / "devices" / "a-gpu.json"
    assert {request.gemm.transpose_b for request in measured} == {True, False}
    stored = constants_of("A GPU", 120)
    assert not stored.estimated
    assert stored == found.fitted.constants
    assert (stored.pairs, stored.processors, stored.dram_rate) == (56, 120, 2e12)
    assert "coordgraph calibrate --minutes 1" in stored.source
    assert stored.launch_seconds > 2 * constants_of().launch_seconds
    judged, before = found.fitted.held_out, found.fitted.before
    assert judged.problems == before.problems > 1
    assert judged.error < before.error / 2
    rows = json.loads(found.record.read_text())["rows"]
    assert len(rows) == found.times
    assert "sizes that were not fitted to" in str(found)


@pytest.mark.slow
def test_files_may_lie_elsewhere(measured: list[Any], tmp_path: Path):
    found = calibrate(1.0, output=tmp_path / "x" / "mine.json")
    assert found.record == tmp_path / "x" / "mine.times.json"
    assert constants_of("A GPU", 120).estimated


def test_nothing_measured(measured: list[Any], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(calibrating, "_built", lambda *_: {})
    with pytest.raises(LaunchError, match="no plan was measured in 1 minutes"):
        calibrate(1.0)
    with pytest.raises(LaunchError, match="too short"):
        calibrate(0.5)


def test_gpus_without_a_model(measured: list[Any], monkeypatch: pytest.MonkeyPatch):
    gpu = SimpleNamespace(name="NVIDIA A100", architecture="sm_80", processors=108, ordinal=0)
    monkeypatch.setattr(driver, "device", lambda ordinal: gpu)
    with pytest.raises(CodegenError, match="nothing to calibrate"):
        calibrate(1.0)


def test_times_are_medians_after_the_first():
    class Bench:
        """A stand-in for `Bench`: the samples of each plan are 9, 1, 2, 3, … seconds.

        The plan `bad` cannot be started.
        """

        def __init__(self) -> None:
            self.taken: dict[str, int] = {}

        def start(self, plan: str, kernel: object) -> None:
            if plan == "bad":
                raise LaunchError("wrong")

        def sample(self, plan: str) -> float:
            self.taken[plan] = self.taken.get(plan, 0) + 1
            return 9.0 if self.taken[plan] == 1 else self.taken[plan] - 1.0

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(calibrating, "kernel_of", lambda plan, request: None)
        found = calibrating.times(Bench(), None, ("a", "bad", "b"))  # type: ignore[arg-type]
    assert found == {"a": 3.0, "b": 3.0}
