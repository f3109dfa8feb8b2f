"""Tests of `coordgraph calibrate`: its options, its output, and its error without a GPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from codegen.call import calibrating
from codegen.call.calibrating import Calibrated
from codegen.targets.nvptx import driver
from passes.choosing import constants_of
from passes.choosing.calibrate import Calibration, Quality
from tests.codegen.cli.commands import coordgraph


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Replace `calibrate` by a function that only records its arguments; return their list.

    Each entry is (positional arguments, keyword arguments) of a call.
    """
    found: list[Any] = []

    def calibrate(*args: Any, **options: Any) -> Calibrated:
        found.append((args, options))
        losses = ((0.02, 0.1, 1, 0.05), (0.01, 0.1, 1, 0.05), (0.03, 0.2, 2, 0.1))
        fitted = Calibration(constants_of(), *(Quality(9, *each) for each in losses))
        return Calibrated(fitted, 77, Path("a.json"), Path("a.times.json"))

    monkeypatch.setattr(driver, "unavailable", lambda: None)
    monkeypatch.setattr(calibrating, "calibrate", calibrate)
    return found


def test_options_are_passed_on(asked: list[Any]):
    done = coordgraph("calibrate", "--minutes", "2", "--output", "x.json", "--times", "t.json")
    assert done.code == 0
    options = {"device": 0, "output": Path("x.json"), "record": Path("t.json")}
    assert asked == [((2.0,), options)]
    assert "NVIDIA H200: 77 times" in done.out
    assert "take 2.0% longer than the best measured" in done.out
    assert "constants: a.json" in done.out


def test_json(asked: list[Any]):
    found = coordgraph("calibrate", "--json").json
    assert (found["device"], found["path"], found["times"]) == ("NVIDIA H200", "a.json", 77)
    assert [found[key]["loss"] for key in ("held_out", "corrected", "before")] == [0.02, 0.01, 0.03]
    assert asked[0][0] == (8.0,)


def test_without_a_gpu(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(driver, "unavailable", lambda: "no driver.")
    done = coordgraph("calibrate")
    assert done.code == 4
    assert "calibrate measures an NVIDIA GPU: no driver; run it on the machine" in done.err
