"""A fixture with which every launch is simulated by `Engine`, none by `UniformEngine`."""

from __future__ import annotations

import pytest

from passes.simulation import uniform_tables


@pytest.fixture
def general_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let `Engine` simulate all launches, also those that `UniformEngine` can simulate."""
    monkeypatch.setattr(uniform_tables, "LEAST_LOOPS", 1 << 60)
