"""Calls of kernels are inside NVTX ranges, if NVTX is switched on."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType

import numpy as np
import pytest

import codegen
from codegen import nvtx_ranges
from codegen.call.matmul import forget
from coordgraph import CodegenError, Gemm, KernelGraph
from passes import StreamK


@pytest.fixture
def ranges(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[str, str]]]:
    """Replace the package nvtx by a stand-in that records ranges.

    The list gets ("begin" or "end", "domain: message") when a range begins or ends.
    """
    found: list[tuple[str, str]] = []

    @contextmanager
    def annotate(message: str, domain: str) -> Iterator[None]:
        found.append(("begin", f"{domain}: {message}"))
        yield
        found.append(("end", f"{domain}: {message}"))

    package = ModuleType("nvtx")
    package.annotate = annotate  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "nvtx", package)
    nvtx_ranges.ranged.cache_clear()
    yield found
    nvtx_ranges.ranged.cache_clear()


def graph() -> KernelGraph:
    return StreamK(workgroups=3)(Gemm("f32").graph(tile=(32, 32, 32)))


ONES = np.ones((32, 32), np.float32)


@pytest.mark.parametrize("target", ["cpu", "interpreter"])
def test_a_call_is_a_range_with_the_name_of_the_schedule(ranges, target):
    kernel = codegen.compile(graph(), target, nvtx=True)
    assert not ranges
    assert (kernel(ONES, ONES) == 32).all()
    name = "coordgraph: stream-k{workgroups=3}"
    assert ranges == [("begin", name), ("end", name)]


def test_the_environment_variable_asks_for_ranges(ranges, monkeypatch):
    monkeypatch.setenv("COORDGRAPH_NVTX", "1")
    codegen.compile(graph(), "cpu")(ONES, ONES)
    assert len(ranges) == 2
    codegen.compile(graph(), "cpu", nvtx=False)(ONES, ONES)
    assert len(ranges) == 2


def test_a_kernel_of_a_plan_has_its_name(ranges, monkeypatch):
    monkeypatch.setenv("COORDGRAPH_NVTX", "1")
    forget()
    codegen.matmul(ONES, ONES, plan="32x32x32 split-k{splits=3}")
    forget()
    assert ranges[0] == ("begin", "coordgraph: 32x32x32 split-k{splits=3}")


def test_a_recording_kernel_has_ranges_too(ranges):
    kernel = codegen.compile(graph(), "cpu", nvtx=True, timeline=True)
    assert len(kernel.timeline(ONES, ONES))
    assert len(ranges) == 2


def test_without_the_package_the_error_says_how_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "nvtx", None)
    nvtx_ranges.ranged.cache_clear()
    with pytest.raises(CodegenError, match=r"coordgraph\[nvtx\]"):
        codegen.compile(graph(), "cpu", nvtx=True)


def test_other_values_are_refused(monkeypatch):
    with pytest.raises(CodegenError, match="nvtx = 'yes'"):
        codegen.compile(graph(), "cpu", nvtx="yes")  # type: ignore[arg-type]
    monkeypatch.setenv("COORDGRAPH_NVTX", "on")
    with pytest.raises(CodegenError, match="COORDGRAPH_NVTX"):
        codegen.compile(graph(), "cpu")


def test_a_pickled_kernel_has_ranges_again(ranges: list[tuple[str, str]]):
    graph = StreamK(workgroups=4)(Gemm("f32").graph(tile=(16, 16, 16)))
    kernel = pickle.loads(pickle.dumps(codegen.compile(graph, "interpreter", nvtx=True)))
    kernel(np.ones((4, 4), "f4"), np.ones((4, 4), "f4"))
    assert [at for at, _ in ranges] == ["begin", "end"]
