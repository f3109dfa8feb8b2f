from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from codegen.call import matmul, measured
from codegen.targets.nvptx import driver
from tests.codegen.nvptx.fake_driver import CONTEXT, FakeDriver, install
from tests.codegen.slow_builder import Builder, slow_builder
from tests.support.work_checks import one_work_check_for_each_schedule


@pytest.fixture(scope="module", autouse=True)
def few_work_checks() -> Iterator[None]:
    with one_work_check_for_each_schedule():
        yield


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a temporary disk cache of compiled kernels, which the tests of a file share."""
    return tmp_path_factory.mktemp("kernels")


@pytest.fixture
def forgotten(kernels: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Clear every cache of chosen plans, in memory and on disk, but not the kernels on disk."""
    monkeypatch.setenv("COORDGRAPH_CACHE", str(kernels))

    def forget() -> None:
        (kernels / measured.FILE).unlink(missing_ok=True)
        for what in (matmul, measured):
            what.forget()

    forget()
    yield
    forget()


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeDriver:
    """A fake driver of an H200 that records calls and runs nothing."""
    found = install(monkeypatch)
    here = driver.Device(0, "NVIDIA H200", "sm_90a", 132, CONTEXT)
    monkeypatch.setattr(driver, "device", lambda ordinal=0: here)
    bindings = driver.bindings()
    done = bindings.CUresult.CUDA_SUCCESS
    monkeypatch.setattr(bindings, "cuDriverGetVersion", lambda: (done, 13000))
    return found


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch, forgotten: None) -> Iterator[Builder]:
    """A stand-in for the background thread's compiler: it compiles only while the test lets it."""
    with slow_builder(monkeypatch) as found:
        yield found
