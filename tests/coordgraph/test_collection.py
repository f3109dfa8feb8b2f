"""The garbage collector is paused while code is generated, then enabled again if it was before."""

from __future__ import annotations

import gc
from collections.abc import Generator
from typing import Any

import pytest

from codegen.emit import llvm
from coordgraph import Gemm
from coordgraph.collection import collection_paused
from passes import DataParallel
from tests.codegen.nvptx.fake_driver import install, matrix


@pytest.fixture
def enabled() -> Generator[None]:
    """Enable the garbage collector during a test; then restore its earlier state."""
    before = gc.isenabled()
    gc.enable()
    yield
    if not before:
        gc.disable()


@pytest.mark.usefixtures("enabled")
def test_the_collector_is_paused_and_resumes():
    with collection_paused():
        assert not gc.isenabled()
        with collection_paused():
            assert not gc.isenabled()
        assert not gc.isenabled()
    assert gc.isenabled()
    with pytest.raises(ValueError, match="inside"), collection_paused():
        raise ValueError("inside")
    assert gc.isenabled()


@pytest.mark.usefixtures("enabled")
def test_a_collector_that_is_off_stays_off():
    gc.disable()
    with collection_paused():
        assert not gc.isenabled()
    assert not gc.isenabled()


@pytest.mark.usefixtures("enabled")
def test_kernels_are_generated_without_it(monkeypatch: pytest.MonkeyPatch):
    import codegen

    install(monkeypatch)
    monkeypatch.setenv("COORDGRAPH_CACHE", "off")
    seen: list[bool] = []
    optimize = llvm.optimize

    def noted(*args: Any, **options: Any) -> Any:
        seen.append(gc.isenabled())
        return optimize(*args, **options)

    monkeypatch.setattr(llvm, "optimize", noted)
    kernel = codegen.compile(DataParallel()(Gemm("bf16").graph((64, 64, 64))), "sm_80")
    kernel(matrix(64, 64, 1 << 30), matrix(64, 64, 2 << 30), out=matrix(64, 64, 3 << 30))
    assert seen == [False]
    assert gc.isenabled()
