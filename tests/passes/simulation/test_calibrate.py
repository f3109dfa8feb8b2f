"""Tests of `passes.simulation.calibrate`, which fits constants of the simulation to times.

Fitted to simulated times, `fit` finds the constants that made them. `python -m
passes.simulation.calibrate` writes the constants to a JSON file; a device's file has all of them.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from passes.choosing import constants_of
from passes.simulation import MACHINES, calibrate
from passes.simulation.calibrate import FIGURES, Measured, figures_of, fit
from passes.simulation.machine import Machine, fitted_constants, fitted_machine, with_figures
from tests.passes.simulation.runs import A100, H200

PLANS = ("128x128x64 data-parallel", "128x128x64 stream-k{owner=last} on 132")
ROWS: list[dict[str, Any]] = [
    {"m": m, "n": 1024, "k": k, "layout": "nt", "plan": plan, "t": 1e-5}
    for m in (640, 1408)
    for k in (256, 1024)
    for plan in PLANS
]


@pytest.mark.slow
def test_a_fit_approaches_the_figures_that_made_the_times():
    pytest.importorskip("scipy")
    measured = Measured.of([*ROWS, {**ROWS[0], "plan": "cublas"}], H200)
    assert len(measured.launches) == len(ROWS)
    assert len({*measured.problem}) == 4
    figures, base = figures_of(H200), H200.constants
    assert base is not None
    made = with_figures(base, {**figures, "clock": 0.8 * figures["clock"]})
    measured = Measured(measured.launches, measured.predicted(made), measured.problem)

    def error(machine: Machine) -> float:
        return float(np.abs(np.log(measured.predicted(machine) / measured.seconds)).max())

    assert error(H200) > 0.1
    found = fit(measured, H200, rounds=6)
    assert error(found) < 0.02
    assert found.clock == pytest.approx(made.clock, rel=0.03)


def test_only_machines_with_constants_can_be_fitted():
    with pytest.raises(ValueError, match="NVIDIA A100-SXM4-80GB has no constants"):
        figures_of(A100)


def test_the_file_of_a_device_has_every_figure():
    machine = fitted_machine("NVIDIA H200")
    assert {*figures_of(machine)} == {*FIGURES}
    assert machine is MACHINES["NVIDIA H200"]
    assert machine.constants != fitted_constants("NVIDIA H200")
    with pytest.raises(FileNotFoundError):
        fitted_machine("NVIDIA H9")


def test_the_command_writes_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path, out = tmp_path / "times.json", tmp_path / "figures.json"
    path.write_text(json.dumps({"rows": ROWS[:1]}))
    monkeypatch.setattr(calibrate, "fit", lambda measured, first: first)
    calibrate.main([str(path), "--write", str(out)])
    written = json.loads(out.read_text())
    assert written.keys() == {*FIGURES}
    assert written["clock"] == pytest.approx(constants_of().clock, rel=1e-3)
