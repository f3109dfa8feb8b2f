from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from tests.codegen.nvptx.fake_driver import FakeDriver, install


@pytest.fixture
def fake_driver(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeDriver]:
    """A driver that writes down what it is asked for."""
    gc.freeze()  # what earlier tests keep is not walked by the collection below
    yield install(monkeypatch)
    gc.collect()  # kernels give their memory back to this driver, not to the real one
