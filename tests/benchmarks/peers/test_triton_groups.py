"""The Triton kernel for groups, run with a stand-in for Triton: its indices and its tuning."""

from __future__ import annotations

import importlib
import sys
from itertools import accumulate, pairwise
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.peers import grouped_peers
from benchmarks.peers.contender import Unavailable
from tests.benchmarks.peers.fake_triton import modules

KERNELS = ("benchmarks.peers.triton_matmul", "benchmarks.peers.triton_groups")
PROCESSORS = 5


@pytest.fixture(scope="module")
def kernels() -> Any:
    """The module `benchmarks.peers.triton_groups`, imported with a stand-in for Triton."""
    with pytest.MonkeyPatch.context() as patch:
        for name, module in modules().items():
            patch.setitem(sys.modules, name, module)
        for name in KERNELS:
            patch.delitem(sys.modules, name, raising=False)
        found = importlib.import_module("benchmarks.peers.triton_groups")
        patch.setattr(found, "processors", lambda: PROCESSORS)
        yield found
        for name in KERNELS:
            patch.delitem(sys.modules, name, raising=False)


sizes_of_groups = st.lists(st.sampled_from([0, 1, 7, 8, 9, 40, 90]), min_size=1, max_size=6)


@given(sizes_of_groups, st.integers(1, 20), st.sampled_from([8, 16, 24]), st.integers(0, 99))
@settings(max_examples=40, deadline=None)
def test_every_element_of_every_group_is_right_and_written_once(
    kernels: ModuleType, sizes: list[int], n: int, k: int, seed: int
):
    random = np.random.default_rng(seed)
    offsets = np.array([0, *accumulate(sizes)], np.int32)
    rows = int(offsets[-1])
    a = random.integers(-4, 5, (rows, k)).astype(np.float32)
    b = random.integers(-4, 5, (len(sizes), n, k)).astype(np.float32)
    d = np.full((rows, n), np.nan, np.float32)
    config = kernels.Config(8, 4, 16, 4, 3, programs=1 + seed % 2)
    kernels.Product(config)(a, b, d, offsets)
    for group, (begin, end) in enumerate(pairwise(offsets)):
        assert np.array_equal(d[begin:end], a[begin:end] @ b[group].T)


def test_rows_that_tma_cannot_load_are_refused(kernels: ModuleType):
    config = next(kernels.configurations())
    with pytest.raises(Unavailable, match="16 bytes"):
        kernels.Product(config)(None, np.zeros((2, 4, 12)), None, None)


def test_configurations_fit_a_box_and_the_shared_memory_of_hopper(kernels: ModuleType):
    for config in kernels.configurations():
        assert max(config.m, config.n) <= 256
        ring = config.stages * (config.m + config.n) * config.k * 2
        assert config.programs * (ring + config.m * config.n * 2) <= 227 << 10


class Problem:
    """A product with groups of 10 and of 14 rows, on the host; `broken` makes D count as wrong."""

    axis = "m"

    def __init__(self) -> None:
        random = np.random.default_rng(0)
        self.a = random.integers(-4, 5, (24, 16)).astype(np.float32)
        self.b = random.integers(-4, 5, (2, 8, 16)).astype(np.float32)
        self.sets = [(self.a, self.b, np.empty((24, 8), np.float32))]
        self.device_offsets = np.array([0, 10, 24], np.int32)
        self.broken = False

    def fault(self, compute: Any) -> str | None:
        self.sets[0][2].fill(np.nan)
        right = np.concatenate([self.a[:10] @ self.b[0].T, self.a[10:] @ self.b[1].T])
        out = compute()
        return None if np.array_equal(out, right) and not self.broken else "WRONG: some"


def tuned(
    kernels: ModuleType, problem: Any, monkeypatch: pytest.MonkeyPatch
) -> grouped_peers.TritonGroups:
    contender = grouped_peers.TritonGroups()
    kept = (kernels.Config(8, 4, 16, 4, 3), kernels.Config(16, 8, 16, 4, 3))
    monkeypatch.setattr(kernels, "configurations", lambda: iter(kept))
    times = iter([2.0, 1.0])
    monkeypatch.setattr(grouped_peers, "quick_seconds", lambda launch, sets: next(times))
    launch = contender(problem)
    assert problem.fault(lambda: launch(0)) is None
    return contender


def test_the_fastest_configuration_is_taken(kernels: ModuleType, monkeypatch: pytest.MonkeyPatch):
    contender = tuned(kernels, Problem(), monkeypatch)
    assert contender.details == {"configuration": "16x8x16 w4 s3 p1", "triton": "0"}


def test_a_wrong_configuration_is_a_fault_and_not_tuned_away(
    kernels: ModuleType, monkeypatch: pytest.MonkeyPatch
):
    problem = Problem()
    problem.broken = True
    with pytest.raises(RuntimeError, match="8x4x16 w4 s3 p1: WRONG"):
        tuned(kernels, problem, monkeypatch)


def test_without_triton_it_says_so(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "triton", None)
    torch: Any = SimpleNamespace(__version__="2")
    monkeypatch.setitem(sys.modules, "torch", torch)
    missing: list[str] = []
    assert list(grouped_peers.find_contenders([], missing.append)) == [
        "cuBLAS",
        "codegen.grouped_matmul",
    ]
    assert [line.partition(":")[0] for line in missing] == [
        "without torch._grouped_mm",
        "without Triton",
    ]
