"""Constants in the user's folder replace the library's, and malformed files are skipped."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from passes.choosing.constants import (
    DETAILS,
    FITTED,
    KNOWN,
    Constants,
    constants_of,
    file_of,
    known_devices,
    user_folder,
)


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """An empty folder, which replaces the user's folder of calibrated constants in a test."""
    monkeypatch.setenv("COORDGRAPH_DEVICES", str(tmp_path))
    known_devices.cache_clear()
    yield tmp_path
    known_devices.cache_clear()


def test_a_file_of_the_user_replaces_the_library(folder: Path):
    assert user_folder() == folder
    mine = constants_of("NVIDIA H200").with_figures({"launch_seconds": 1.0})
    known_devices.cache_clear()
    file_of("NVIDIA H200", folder).write_text(mine.to_json())
    (folder / "nvidia-h200.times.json").write_text("{}")
    assert constants_of("NVIDIA H200") == mine


def test_a_file_of_another_version_is_skipped(folder: Path):
    old = json.loads(constants_of("NVIDIA H200").to_json())
    known_devices.cache_clear()
    del old["launch_seconds"]
    (folder / "nvidia-h200.json").write_text(json.dumps(old))
    with pytest.warns(RuntimeWarning, match=r"launch_seconds missing.*coordgraph calibrate"):
        found = constants_of("NVIDIA H200")
    assert found.launch_seconds < 1e-4


def test_details_are_neutral_and_left_out_of_files():
    device = constants_of("NVIDIA H200")
    stored = json.loads(device.to_json())
    assert not stored.keys() & DETAILS.keys()
    assert stored.keys() >= {*KNOWN, *FITTED}
    assert not {*KNOWN, *FITTED} & DETAILS.keys()
    detailed = device.with_figures({"send_rate": 30e9})
    assert Constants.from_json(detailed.to_json()) == detailed


def test_every_file_of_the_library_was_measured():
    for name, device in known_devices().items():
        assert not device.estimated, name
        assert all(getattr(device, factor) >= 1 for factor in ("short", "split", "paired"))
