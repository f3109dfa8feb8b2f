"""Calibration fits the constants of the cost model to measured times of plans."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from coordgraph import Gemm
from passes.choosing import calibrate, constants_of
from passes.choosing.calibrate import fit, quality
from passes.choosing.candidates import candidates
from passes.choosing.constants import Constants
from passes.choosing.measurements import Measurements
from passes.choosing.model import cost
from passes.choosing.times import device_of

SIZES = [(512, 512, 8192), (4096, 4096, 512), (16, 8192, 4096), (2048, 1536, 4096), (256, 256, 256)]
OTHER = {"clock": 1.2e9, "dram_rate": 3e12, "launch_seconds": 3e-6, "send_seconds": 5e-6}


@pytest.fixture(scope="module")
def truth() -> Constants:
    return constants_of().with_figures(OTHER)


@pytest.fixture(scope="module")
def path(truth: Constants, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A results file whose times are predictions of the cost model with the constants `truth`."""
    rows = []
    for m, n, k in SIZES:
        problem = Gemm("bf16", m=m, n=n, k=k, transpose_b=True)
        table = candidates(problem, truth)
        some = table.where(np.random.default_rng(m).permutation(len(table))[:16])
        for i, seconds in enumerate(cost(some, truth, corrected=False).total):
            rows.append(dict(m=m, n=n, k=k, layout="nt", plan=str(some.plan(i)), t=seconds))
        rows.append(dict(m=m, n=n, k=k, layout="nt", plan="cublas", t=1e-9))
    made = tmp_path_factory.mktemp("times") / "times.json"
    made.write_text(json.dumps({"rows": rows}))
    return made


def test_measurements_are_read(path: Path, truth: Constants):
    measured = Measurements.read([path], truth)
    assert measured.problems == len(SIZES)
    assert len(measured.seconds) == len(measured.table)
    found = quality(measured, truth)
    assert (found.loss, found.largest, found.over) == (0, 0, 0)
    assert found.error == pytest.approx(0, abs=1e-9)


@pytest.mark.slow
def test_a_fit_gets_nearer(path: Path):
    measured = Measurements.read([path], constants_of())
    before = quality(measured, constants_of())
    after = quality(measured, fit(measured, constants_of()))
    assert before.error > 0.2
    assert after.error < before.error / 3
    assert after.largest < 0.05


def test_the_command_writes_a_device(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(calibrate, "FOLDER", tmp_path)
    monkeypatch.setattr(calibrate, "MOST_ROUNDS", 2)
    arguments = [str(path), "--device", "A GPU", "--processors", "100", "--write"]
    calibrate.main(arguments)
    found = Constants.from_json((tmp_path / "a-gpu.json").read_text())
    assert (found.device, found.processors, found.estimated) == ("A GPU", 100, False)
    assert "calibrate times.json" in found.source
    assert capsys.readouterr().out.count("5 problems") == 1


def test_the_device_is_that_of_the_records():
    h100, h200 = ({"device": name} for name in ("NVIDIA H100 80GB HBM3", "NVIDIA H200"))
    assert device_of([h100, {}], None) == "NVIDIA H100 80GB HBM3"
    assert device_of([{}], None) == "NVIDIA H200"
    assert device_of([h200], "h100") == "NVIDIA H100 80GB HBM3", "a short name"
    assert device_of([h200], "Another GPU") == "Another GPU"
    with pytest.raises(ValueError, match="several devices"):
        device_of([h100, h200], None)


def test_a_missing_file_of_times_is_one_line(tmp_path: Path):
    with pytest.raises(SystemExit, match=r"cannot read measured times: .*nothing\.json"):
        calibrate.main([str(tmp_path / "nothing.json")])
