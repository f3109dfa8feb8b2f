"""Launches have the right attributes: cluster size, overlap with the launch before, cooperative."""

from __future__ import annotations

import ctypes
import gc
from typing import Any

import pytest

from codegen.targets.nvptx import cuda_kernel
from codegen.targets.nvptx.launch.loaded_function import Function
from tests.codegen.nvptx.fake_driver import (
    CLUSTERS,
    PROCESSORS,
    FakeDriver,
    LaunchAttribute,
    LaunchConfig,
)

COOPERATIVE, CLUSTER, OVERLAP = 2, 4, 6
"""CUDA's numbers of launch attributes; OVERLAP is `…_PROGRAMMATIC_STREAM_SERIALIZATION`."""


def function(**options: Any) -> Function:
    return Function(cuda_kernel.device(0), b"code", "gemm", 384, 1000, **options)


def launch(fake: FakeDriver, made: Function, grid: int) -> Any:
    config = made.config(grid)
    gc.collect()  # `config` points to launch attributes, which must not be freed here
    made(config, 0)
    return fake.launches[-1]


def test_the_structures_are_the_drivers():
    """LaunchAttribute and LaunchConfig have the layout of the driver's structures (64 bits)."""
    assert ctypes.sizeof(LaunchAttribute) == 72
    assert LaunchAttribute.value.offset == 8
    assert ctypes.sizeof(LaunchConfig) == 56
    fields = (LaunchConfig.shared_bytes, LaunchConfig.stream, LaunchConfig.attributes)
    assert [field.offset for field in fields] == [24, 32, 40]


@pytest.mark.parametrize(
    ("options", "grid", "attributes"),
    [
        ({}, 10, {}),
        ({"cluster": 2}, 20, {CLUSTER: (2, 1, 1)}),
        ({"overlaps": True}, 10, {OVERLAP: (1, 0, 0)}),
        ({"together": True}, 10, {COOPERATIVE: (1, 0, 0)}),
        (
            {"together": True, "overlaps": True},
            10,
            {COOPERATIVE: (1, 0, 0), OVERLAP: (1, 0, 0)},
        ),
        (
            {"cluster": 2, "together": True, "overlaps": True},
            20,
            {CLUSTER: (2, 1, 1), COOPERATIVE: (1, 0, 0), OVERLAP: (1, 0, 0)},
        ),
        ({"cluster": 4, "overlaps": True}, 40, {CLUSTER: (4, 1, 1), OVERLAP: (1, 0, 0)}),
        ({"cluster": 2, "together": True}, 20, {CLUSTER: (2, 1, 1), COOPERATIVE: (1, 0, 0)}),
    ],
)
def test_attributes(
    fake_driver: FakeDriver, options: Any, grid: int, attributes: dict[int, tuple[int, ...]]
):
    found = launch(fake_driver, function(**options), 10)
    assert found.grid == (grid, 1, 1)
    assert found.block == (384, 1, 1)
    assert found.shared_bytes == 1000
    assert found.attributes == attributes


def test_workgroups_of_the_schedule_are_counted(fake_driver: FakeDriver):
    assert function().resident == PROCESSORS
    assert function(cluster=2).resident == CLUSTERS


@pytest.mark.parametrize(("cluster", "allowed"), [(1, False), (8, False), (16, True)])
def test_large_clusters_are_allowed_first(fake_driver: FakeDriver, cluster: int, allowed: bool):
    function(cluster=cluster)
    asked = ("NON_PORTABLE_CLUSTER_SIZE_ALLOWED", 1) in fake_driver.attributes
    assert asked == allowed
    assert ("MAX_DYNAMIC_SHARED_SIZE_BYTES", 1000) in fake_driver.attributes
