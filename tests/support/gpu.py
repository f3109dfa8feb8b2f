"""Find the first CUDA device, or say why there is none."""

from __future__ import annotations

import functools
import os
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import pytest

__all__ = ["Gpu", "find_gpu", "require_gpu"]


@dataclass(frozen=True, slots=True)
class Gpu:
    """The name and properties of the first CUDA device."""

    name: str
    capability: tuple[int, int]
    workgroup_slots: int  # tests count one resident workgroup for each SM


def require_gpu() -> Gpu:
    """Return the GPU, or skip the test with the reason why there is none.

    With COORDGRAPH_REQUIRE_GPU=1 the test fails instead of being skipped. A test calls this after
    it has compiled and assembled its kernel, which needs no GPU.
    """
    found = find_gpu()
    if isinstance(found, Gpu):
        return found
    if os.environ.get("COORDGRAPH_REQUIRE_GPU", "0") not in {"", "0"}:
        pytest.fail(f"no GPU: {found}")
    pytest.skip(f"no GPU: {found}")


@functools.cache
def find_gpu() -> Gpu | str:
    """Return the first CUDA device, or a text that says why there is none."""
    try:
        driver = import_module("cuda.bindings.driver")
    except ImportError as error:
        return f"cuda.bindings is not installed ({error})"
    try:
        return _first_device(driver)
    except Exception as error:  # cuda.bindings raises RuntimeError if libcuda is missing
        return f"the CUDA driver does not load ({error})"


def _first_device(driver: Any) -> Gpu | str:
    (status,) = driver.cuInit(0)
    if status != driver.CUresult.CUDA_SUCCESS:
        return f"cuInit says {status.name}"
    status, count = driver.cuDeviceGetCount()
    if status != driver.CUresult.CUDA_SUCCESS or count == 0:
        return f"no CUDA device ({status.name})"
    _, device = driver.cuDeviceGet(0)
    _, name = driver.cuDeviceGetName(128, device)
    kind = driver.CUdevice_attribute

    def attribute(which) -> int:
        return driver.cuDeviceGetAttribute(which, device)[1]

    return Gpu(
        name=name.split(b"\0")[0].decode(),
        capability=(
            attribute(kind.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR),
            attribute(kind.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR),
        ),
        workgroup_slots=attribute(kind.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT),
    )
