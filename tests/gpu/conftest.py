from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support.gpu import Gpu, require_gpu

# JAX would take three quarters of the GPU's memory for itself.
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Everything in this folder carries the marker `gpu`."""
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.gpu)


@pytest.fixture
def gpu() -> Gpu:
    """The GPU; without one the test skips, and says why.

    A test that has something to compile first calls `require_gpu()` after it instead.
    """
    return require_gpu()
