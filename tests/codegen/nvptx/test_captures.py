"""A launch captured in a CUDA graph has a workspace that no launch outside the capture uses."""

from __future__ import annotations

import gc
from typing import Any

import pytest

import codegen
from codegen.targets.nvptx import CudaKernel, driver
from codegen.targets.nvptx.launch.release import free_released
from coordgraph import Gemm
from passes import StreamK
from tests.codegen.nvptx.fake_driver import FakeDriver, matrix

STREAM, OTHER = 7, 9


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


def test_a_captured_workspace_never_moves(fake_driver: FakeDriver, freed: list[int]):
    """A captured workspace is neither freed nor shared while the kernel exists.

    Larger launches in the same capture, launches in other captures or on other streams, and
    launches outside captures get buffers of their own.
    """
    made = codegen.compile(StreamK()(Gemm("bf16").graph((64, 64, 32))), "sm_80")
    assert isinstance(made, CudaKernel)
    entry = made.ptx[made.ptx.index(".entry") : made.ptx.index("{")]
    fake_driver.arguments = entry.count(".param")
    a, b, d = matrix(256, 256, 1 << 40), matrix(256, 256, 2 << 40), matrix(256, 256, 3 << 40)
    kernels = [made]

    def launch(capture: int | None, workgroups: int, stream: int = STREAM) -> tuple[int, ...]:
        """Launch, and return the addresses of the buffers in the launch's workspace."""
        fake_driver.capturing = {} if capture is None else dict.fromkeys((STREAM, OTHER), capture)
        kernels[0](a, b, out=d, stream=stream, workgroups=workgroups)
        return fake_driver.launches[-1].values[4:6]

    small = launch(1, 4)
    larger = launch(1, 8)
    others = [launch(1, 4, OTHER), launch(2, 4), launch(None, 16), launch(None, 16, OTHER)]
    # the next launch in this capture reuses the buffers
    assert launch(1, 8) == launch(1, 2) == larger
    assert freed == []
    every = [*small, *larger, *(at for buffers in others for at in buffers)]
    assert len({*every}) == len(every)
    kernels.clear()
    del made
    gc.collect()
    free_released()
    assert {*every} <= {*freed}


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
    graph = StreamK()(Gemm("bf16").graph((64, 64, 32)))
    dropped, kept = (CudaKernel(graph, "sm_80") for _ in range(2))
    entry = kept.ptx[kept.ptx.index(".entry") : kept.ptx.index("{")]
    fake_driver.arguments = entry.count(".param")
    a, b, d = matrix(256, 256, 1 << 40), matrix(256, 256, 2 << 40), matrix(256, 256, 3 << 40)
    dropped(a, b, out=d, stream=STREAM, workgroups=4)
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
    assert len(freed) == 2, "partial sums and flags"
