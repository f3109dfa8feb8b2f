"""Tests of the command line use a kernel cache of their own, whatever the environment names."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture(scope="package", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Set COORDGRAPH_CACHE to a new folder, since what commands print depends on it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COORDGRAPH_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield
