from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support.gpu import Gpu, require_gpu

# Without this setting JAX would reserve three quarters of the GPU's memory.
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Add the marker `gpu` to all tests in this folder."""
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.gpu)


@pytest.fixture
def gpu() -> Gpu:
    """The GPU; if there is none, the test is skipped and the reason printed.

    A test whose kernels should be compiled even without a GPU does not use this fixture, but calls
    `require_gpu()` after compiling.
    """
    return require_gpu()
