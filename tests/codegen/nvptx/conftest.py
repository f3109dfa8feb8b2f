from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from tests.codegen.nvptx.fake_driver import FakeDriver, install


@pytest.fixture
def fake_driver(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeDriver]:
    """A fake CUDA driver that records calls and runs nothing."""
    # Objects that exist now are excluded from the garbage collection at the end of the test.
    gc.freeze()
    yield install(monkeypatch)
    # Kernels are released while the fake driver is installed, whose queue of released kernels ends
    # with the test, so that the real driver never frees them.
    gc.collect()


@pytest.fixture(scope="module")
def shared_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A temporary disk cache of compiled kernels, which the tests of a file share."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COORDGRAPH_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield
