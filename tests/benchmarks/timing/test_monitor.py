"""Readings of nvidia-smi: parsing, medians, and machines that lack nvidia-smi."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from benchmarks.timing import monitor
from benchmarks.timing.monitor import Monitor, parse_line, summary


def test_readings_of_nvidia_smi():
    line = parse_line("1755, 3201, 698.10, 61\n")
    assert line == {"sm_mhz": 1755, "memory_mhz": 3201, "watts": 698.1, "celsius": 61}
    assert parse_line("1755, [N/A], 698.10, 61") == {"sm_mhz": 1755, "watts": 698.1, "celsius": 61}
    assert parse_line("Unable to determine the device handle") is None
    assert summary([]) == {}
    assert line is not None
    assert summary([line, {"sm_mhz": 1745.0}])["sm_mhz"] == 1750
    assert summary([line, {"sm_mhz": 1745.0}])["readings"] == 2


def test_a_monitor_without_nvidia_smi_is_silent(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PATH", "")
    with Monitor() as silent:
        assert silent.since(0.0) == {}


def test_the_gpu_is_named_by_its_uuid(monkeypatch: pytest.MonkeyPatch):
    """nvidia-smi numbers all GPUs of a machine, also those that `CUDA_VISIBLE_DEVICES` hides."""
    gpu = SimpleNamespace(get_device_properties=lambda ordinal: SimpleNamespace(uuid="12-ab"))
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=gpu))
    assert monitor.gpu_name() == "GPU-12-ab"
    monkeypatch.setitem(sys.modules, "torch", None)
    assert monitor.gpu_name() == "0"
