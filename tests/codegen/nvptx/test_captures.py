"""Launches that are captured in CUDA graphs: their workspaces, and what a capture must not do."""

from __future__ import annotations

import gc
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import codegen
from codegen.targets.nvptx import CudaKernel, driver
from codegen.targets.nvptx.launch.release import free_released
from coordgraph import Gemm, LaunchError
from passes import StreamK
from tests.codegen.nvptx.fake_driver import FakeDriver, matrix

STREAM, OTHER = 7, 9
GRAPH = StreamK()(Gemm("bf16").graph((64, 64, 32)))
A, B, D = (matrix(256, 256, number << 40) for number in (1, 2, 3))


@pytest.fixture
def freed(fake_driver: FakeDriver, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A list that gets the address of each block of device memory that is freed."""
    found: list[int] = []
    bindings = driver.bindings()

    def free(pointer: int) -> Any:
        found.append(pointer)
        return (bindings.CUresult.CUDA_SUCCESS,)

    monkeypatch.setattr(bindings, "cuMemFree", free)
    return found


@dataclass
class Launcher:
    """Launches kernels outside captures and in them."""

    driver: FakeDriver

    def __call__(
        self, made: CudaKernel, capture: int | None, workgroups: int = 4, stream: int = STREAM
    ) -> tuple[int, ...]:
        """Launch a kernel; return the addresses of its two workspaces: partial sums and flags.

        Args:
            made: the kernel.
            capture: the number of the capture of both streams; None if they capture nothing.
            workgroups: the size of the grid, which decides the size of the workspace.
            stream: the stream of the launch.
        """
        self.driver.capturing = {} if capture is None else dict.fromkeys((STREAM, OTHER), capture)
        made(A, B, out=D, stream=stream, workgroups=workgroups)
        return self.driver.launches[-1].values[4:6]


@pytest.fixture
def launch(fake_driver: FakeDriver) -> Launcher:
    code = CudaKernel(GRAPH, "sm_80").ptx
    fake_driver.arguments = code[code.index(".entry") : code.index("{")].count(".param")
    return Launcher(fake_driver)


def test_a_captured_workspace_never_moves(launch: Launcher, freed: list[int]):
    """No other launch uses the workspace of a captured launch, nor is it freed.

    Other launches are those in other captures, on other streams of the same capture, and outside
    captures. A later launch on the same stream of the capture shares it, if it is large enough.
    """
    made = CudaKernel(GRAPH, "sm_80")
    outside = launch(made, None, 8)
    small = launch(made, 1, 4)
    assert launch(made, 1, 8) == small, "the memory that was reserved is large enough"
    larger = launch(made, 1, 16)
    others = [launch(made, 1, 4, OTHER), launch(made, 2, 4), launch(made, None, 16, OTHER)]
    assert launch(made, 1, 16) == launch(made, 1, 2) == larger
    assert launch(made, None, 8) == outside
    every = [*outside, *small, *larger, *(at for buffers in others for at in buffers)]
    assert len({*every}) == len(every) - 1, "of the larger workspace only the partial sums are new"
    del made
    gc.collect()
    free_released()
    assert not {*small, *larger, *others[0], *others[1]} & {*freed}


def test_a_capture_after_a_call_allocates_nothing(launch: Launcher):
    """A launch outside captures reserves memory, which all kernels of a capture share."""
    one, two = (CudaKernel(GRAPH, "sm_80") for _ in range(2))
    for capture in (1, 2, 3):
        for made in (one, two):
            launch(made, None)
        before = list(launch.driver.allocated)
        assert launch(one, capture) == launch(two, capture)
        assert launch.driver.allocated == before


def test_a_capture_without_a_call_before_allocates_its_workspace(launch: Launcher):
    """If no memory is at hand, a captured launch gets new memory, with flags that are zero."""
    cached, made = (CudaKernel(GRAPH, "sm_80") for _ in range(2))
    launch(cached, None)
    launch(made, 1)
    allocated = len(launch.driver.allocated)
    _, flags = launch(made, 2)
    assert len(launch.driver.allocated) == allocated + 2
    assert flags in dict(launch.driver.cleared)


def test_recaptures_reuse_the_memory_of_graphs_that_are_destroyed(launch: Launcher):
    made = CudaKernel(GRAPH, "sm_80")
    launch(made, None)
    first = launch(made, 1)
    kept = launch(made, 2)
    allocated = len(launch.driver.allocated)
    for capture in range(3, 20):
        launch.driver.destroy_graph(capture - 1 if capture > 3 else 1)
        assert launch(made, capture) == first
        assert first != kept
    assert len(launch.driver.allocated) == allocated


def test_a_gpu_without_memory_for_captures_serves_calls(
    launch: Launcher, monkeypatch: pytest.MonkeyPatch
):
    """A call outside captures needs only its own workspace."""
    bindings, allocate = driver.bindings(), launch.driver.cuMemAlloc

    def full(size: int) -> Any:
        if len(launch.driver.allocated) < 2:
            return allocate(size)
        return (bindings.CUresult.CUDA_ERROR_OUT_OF_MEMORY, 0)

    monkeypatch.setattr(bindings, "cuMemAlloc", full)
    monkeypatch.setattr(driver, "describe", lambda status: status.name)
    made = CudaKernel(GRAPH, "sm_80")
    assert launch(made, None) == launch(made, None)
    with pytest.raises(LaunchError, match="OUT_OF_MEMORY"):
        launch(made, 1)


def test_no_kernel_is_compiled_during_a_capture(
    launch: Launcher, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    """A kernel in the cache on disk is loaded; another is refused, and can be called later."""
    monkeypatch.setenv("COORDGRAPH_CACHE", str(tmp_path))
    made, again = (CudaKernel(GRAPH, "sm_80") for _ in range(2))
    for _ in range(2):
        with pytest.raises(LaunchError, match="make the same call once before the capture"):
            launch(made, 1)
    assert launch.driver.loaded == []
    launch(made, None)
    launch(again, 2)
    assert len(launch.driver.loaded) == 2


def test_matmul_compiles_nothing_during_a_capture(fake: FakeDriver, forgotten: None):
    """The refused call gives up no plan: outside the capture its kernel is compiled and used."""

    def call() -> None:
        codegen.matmul(A, B, out=D, stream=STREAM, plan="128x128x64 data-parallel")

    fake.capturing = {STREAM: 1}
    for _ in range(2):
        with pytest.raises(LaunchError, match=r"codegen\.warm"):
            call()
    fake.capturing = {}
    call()
    fake.capturing = {STREAM: 2}
    call()
    assert (len(fake.loaded), len(fake.launches)) == (1, 2)


def test_a_kernel_that_is_dropped_during_a_capture_is_freed_after_it(
    fake_driver: FakeDriver, freed: list[int], monkeypatch: pytest.MonkeyPatch
):
    """Unloading code, freeing memory or waiting for a device invalidates a capture."""
    bindings, unsafe = driver.bindings(), list[str]()
    for name in ("cuCtxSynchronize", "cuModuleUnload"):

        def call(*_: Any, name: str = name) -> Any:
            unsafe.append(name)
            return (bindings.CUresult.CUDA_SUCCESS,)

        monkeypatch.setattr(bindings, name, call)
    dropped, kept = (CudaKernel(GRAPH, "sm_80") for _ in range(2))
    a, b, d = A, B, D
    dropped(a, b, out=d, stream=STREAM, workgroups=4)
    assert len(fake_driver.allocated) == 4, "a workspace, and as much for a capture"
    fake_driver.capturing = {STREAM: 1}
    del dropped
    gc.collect()
    kept(a, b, out=d, stream=STREAM, workgroups=4)
    assert (unsafe, freed) == ([], [])
    fake_driver.capturing = {}
    kept(a, b, out=d, stream=STREAM, workgroups=4)
    assert (unsafe, freed) == ([], []), "a call with known shapes frees nothing"
    kept(a, b, out=d, stream=STREAM, workgroups=8)
    assert "cuModuleUnload" in unsafe
    assert {1 << 32, 2 << 32} <= {*freed}, "partial sums and flags"
