"""A fake CUDA driver that runs nothing and records launches and other driver calls.

It replaces the driver in tests of host code: which kernels are launched, with which arguments, and
which calls precede a launch.
"""

from __future__ import annotations

import ctypes
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from codegen.call.views import TensorView
from codegen.targets.nvptx import cuda_kernel, driver
from codegen.targets.nvptx.launch import capture_pool, release, tensormaps

__all__ = ["FakeDriver", "Launch", "LaunchAttribute", "LaunchConfig", "install", "matrix"]

CONTEXT, OTHER_CONTEXT = 0x1000, 0x2000
ARCHITECTURE, PROCESSORS = "sm_90a", 132
CLUSTERS = 66
"""Number of resident clusters that the fake driver reports, whatever the cluster's size."""


class LaunchAttribute(ctypes.Structure):
    """CUlaunchAttribute as cuda.h declares it, with only the union members that are plain
    numbers.
    """

    _fields_ = (
        ("id", ctypes.c_uint32),
        ("padding", ctypes.c_uint32),
        ("value", ctypes.c_uint32 * 16),
    )


class LaunchConfig(ctypes.Structure):
    """CUlaunchConfig as cuda.h declares it, for reading the structure at an address."""

    _fields_ = (
        ("grid", ctypes.c_uint32 * 3),
        ("block", ctypes.c_uint32 * 3),
        ("shared_bytes", ctypes.c_uint32),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(LaunchAttribute)),
        ("count", ctypes.c_uint32),
    )


@dataclass(frozen=True)
class Launch:
    """One recorded launch: function, grid, block, stream and arguments."""

    grid: tuple[int, ...]
    block: tuple[int, ...]
    shared_bytes: int
    stream: int
    function: int
    attributes: dict[int, tuple[int, ...]]
    values: tuple[int, ...]
    """The first eight bytes of each kernel argument; `FakeDriver.arguments` is their number."""


@dataclass(frozen=True)
class Encoded:
    """One recorded tensor map; `strides` are bytes from row to row and, in a batch, from matrix to
    matrix.
    """

    at: int
    shape: tuple[int, ...]
    stride: int
    box: tuple[int, ...]
    kind: int
    swizzle: int
    matrices: int = 0


@dataclass
class FakeDriver:
    """A fake of cuda-python's driver module: its methods have the names of the driver's
    functions.
    """

    arguments: int = 0
    current: int = CONTEXT
    capturing: dict[int, int] = field(default_factory=dict[int, int])
    """The streams that are capturing a CUDA graph, each with the id of its capture."""
    spills: Callable[[str], bool] = lambda _: False
    """Decides, from the PTX text of a loaded kernel, whether the driver reports register spills."""
    launches: list[Launch] = field(default_factory=list[Launch])
    encoded: list[Encoded] = field(default_factory=list[Encoded])
    allocated: list[int] = field(default_factory=list[int])
    cleared: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    """Address and size in bytes of every memory range that was set to zero."""
    copied: list[tuple[int, int, int]] = field(default_factory=list[tuple[int, int, int]])
    """For every copy to the host: its address, its size in bytes, and the number of the launch
    before which the whole range was last set to zero; -1 if it never was.
    """
    loaded: list[str] = field(default_factory=list[str])
    attributes: list[tuple[str, int]] = field(default_factory=list[tuple[str, int]])
    status: int = 0
    """The status code that every launch returns."""
    _destructors: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    """For each user object: the addresses of its destructor and of the destructor's argument."""
    _watchers: dict[int, list[int]] = field(default_factory=dict[int, list[int]])
    """For each graph, the user objects that it keeps."""
    _cleared_at: dict[tuple[int, int], int] = field(default_factory=dict[tuple[int, int], int])

    def cuCtxGetCurrent(self) -> Any:
        return _done(self.current)

    def cuStreamIsCapturing(self, stream: int) -> Any:
        return _done(int(stream in self.capturing))

    def cuLaunchKernelEx(self, config: Any, function: int, arguments: int, extra: Any) -> Any:
        assert extra == 0
        asked = LaunchConfig.from_address(config.getPtr())
        places = (ctypes.c_void_p * self.arguments).from_address(arguments)
        values = tuple(ctypes.c_uint64.from_address(place).value for place in places)
        self.launches.append(
            Launch(
                tuple(asked.grid),
                tuple(asked.block),
                asked.shared_bytes,
                asked.stream or 0,
                function,
                {x.id: tuple(x.value[:3]) for x in asked.attributes[: asked.count]},
                values,
            )
        )
        return (driver.bindings().CUresult(self.status),)

    def spill_once(self) -> list[str]:
        """Make the first kernel that is loaded report register spills.

        Returns the list of loaded kernels, to which later loads append.
        """
        asked: list[str] = []

        def spills(code: str) -> bool:
            asked.append(code)
            return len(asked) == 1

        self.spills = spills
        return asked

    def cuModuleLoadData(self, code: bytes) -> Any:
        self.loaded.append(code.rstrip(b"\0").decode())
        return _done(len(self.loaded))

    def cuModuleGetFunction(self, module: int, name: bytes) -> Any:
        return _done(100 + module)

    def cuFuncGetAttribute(self, which: Any, function: int) -> Any:
        if which.name.endswith("LOCAL_SIZE_BYTES"):
            return _done(8 * self.spills(self.loaded[function - 101]))
        return _done(168)

    def cuFuncSetAttribute(self, function: int, which: Any, value: int) -> Any:
        self.attributes.append((which.name.removeprefix("CU_FUNC_ATTRIBUTE_"), value))
        return _done()

    def cuOccupancyMaxActiveBlocksPerMultiprocessor(self, *_: Any) -> Any:
        return _done(1)

    def cuOccupancyMaxActiveClusters(self, function: int, config: Any) -> Any:
        del function
        assert LaunchConfig.from_address(config.getPtr()).count
        return _done(CLUSTERS)

    def encode_tensor_map(
        self,
        made: int,
        kind: int,
        rank: int,
        at: int,
        extents: int,
        strides: int,
        box: int,
        *rest: int,
    ) -> int:
        """`cuTensorMapEncodeTiled` of the driver, with the signature that ctypes calls."""
        assert made % 64 == 0, "a CUtensorMap lies at a multiple of 64 bytes"
        _, _, swizzle, *_ = rest
        ctypes.c_uint64.from_address(made).value = at
        shape = tuple(reversed((ctypes.c_uint64 * rank).from_address(extents)))
        # A tensor map of a vector (rank 1) has no strides.
        stride, *matrices = [*(ctypes.c_uint64 * (rank - 1)).from_address(strides)] or [0]
        boxes = tuple((ctypes.c_uint32 * rank).from_address(box))
        self.encoded.append(Encoded(at, shape, stride, boxes, kind, swizzle, *matrices))
        return 0

    def cuMemAlloc(self, size: int) -> Any:
        self.allocated.append(size)
        return _done(len(self.allocated) << 32)

    def cuMemsetD32Async(self, pointer: int, value: int, count: int, stream: int) -> Any:
        assert value == 0
        self.cleared.append((pointer, 4 * count))
        self._cleared_at[pointer, 4 * count] = len(self.launches)
        return _done()

    def cuMemcpyDtoH(self, to: int, pointer: int, size: int) -> Any:
        ctypes.memset(to, 0, size)
        self.copied.append((pointer, size, self._cleared_at.get((pointer, size), -1)))
        return _done()

    def cuStreamGetCaptureInfo(self, stream: int) -> Any:
        capture = self.capturing[stream]
        return _done(1, capture, capture)  # the graph's handle is the number of the capture

    def cuUserObjectCreate(self, pointer: int, destroy: int, count: int, flags: int) -> Any:
        assert count == 1
        self._destructors.append((destroy, pointer))
        return _done(len(self._destructors) - 1)

    def cuGraphRetainUserObject(self, graph: int, watcher: int, count: int, flags: int) -> Any:
        assert count == 1
        self._watchers.setdefault(graph, []).append(watcher)
        return _done()

    def destroy_graph(self, graph: int) -> None:
        """Run the destructors of the user objects of a graph, and of its instances."""
        for watcher in self._watchers.pop(graph):
            destroy, pointer = self._destructors[watcher]
            ctypes.CFUNCTYPE(None, ctypes.c_void_p)(destroy)(pointer)

    def cuCtxSetCurrent(self, context: int) -> Any:
        self.current = context
        return _done()

    def cuCtxPushCurrent(self, context: int) -> Any:
        self.before, self.current = self.current, context
        return _done()

    def cuCtxPopCurrent(self) -> Any:
        self.current = self.before
        return _done(CONTEXT)


NOTHING = (
    *("cuCtxSynchronize", "cuMemFree", "cuModuleUnload", "cuStreamDestroy"),
    *("cuStreamSynchronize",),
)
"""Names of the driver functions that return nothing but a status."""


def install(monkeypatch: pytest.MonkeyPatch) -> FakeDriver:
    """Replace the real driver by a fake one with a single device like the H200."""
    bindings = pytest.importorskip("cuda.bindings.driver")
    fake = FakeDriver()
    for name in dir(FakeDriver):
        if name.startswith("cu"):
            monkeypatch.setattr(bindings, name, getattr(fake, name), raising=False)
    for name in NOTHING:
        monkeypatch.setattr(bindings, name, lambda *_: _done())
    for name in ("cuThreadExchangeStreamCaptureMode", "cuStreamCreate"):
        monkeypatch.setattr(bindings, name, lambda *_: _done(1))
    # Kernels of this test must not be freed by the real driver, nor others by the fake one.
    monkeypatch.setattr(release, "released", deque())
    monkeypatch.setattr(capture_pool, "_pools", {})
    monkeypatch.setattr(tensormaps, "encoder", lambda: fake.encode_tensor_map)
    monkeypatch.setattr(driver, "unavailable", lambda: None)
    device = driver.Device(0, "a GPU", ARCHITECTURE, PROCESSORS, CONTEXT)
    monkeypatch.setattr(cuda_kernel, "device", lambda ordinal: device)
    return fake


def _done(*results: Any) -> Any:
    return (driver.bindings().CUresult.CUDA_SUCCESS, *results)


def matrix(rows: int, columns: int, at: int, dtype: str = "bf16", **changes: Any) -> TensorView:
    """The description of a row-major matrix without memory; its address is `at`.

    `changes` replaces fields of the `TensorView`, such as `strides`.
    """
    fields: dict[str, Any] = {"shape": (rows, columns), "strides": (columns, 1), "device": 0}
    return TensorView(at, dtype=dtype, **{**fields, **changes})
