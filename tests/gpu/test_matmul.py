"""`codegen.matmul` on a GPU: results in every layout, tuning, CUDA graphs, host time."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pytest

import codegen
from codegen.call import matmul, measured, tuning
from coordgraph import LaunchError
from passes.choosing.search import MOST_MEASURED
from tests.support.gpu import Gpu

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.usefixtures("gpu")

TOLERANCE = 4e-3
"""Largest relative error in the Frobenius norm; bf16 rounds each element by up to 2⁻⁹."""
ON_TOP = 5e-6
"""Largest difference in seconds between the host times of a `matmul` call and of a call of the same
kernel; the limit allows for a busy host.
"""
LAYOUTS = ("nn", "nt", "tn", "tt")


def stored(m: int, n: int, k: int, layout: str) -> tuple[Any, Any]:
    """Random row-major arrays: A or its transpose, and B or its transpose, as `layout` says."""
    shapes = (k, m) if layout[0] == "t" else (m, k), (n, k) if layout[1] == "t" else (k, n)
    a, b = (torch.randn(*shape, device="cuda", dtype=torch.bfloat16) for shape in shapes)
    return a, b


def check(found: Any, want: Any) -> None:
    error = ((found.double() - want).norm() / want.norm()).item()
    assert error < TOLERANCE


def sizes() -> list[tuple[int, int, int, str]]:
    """Random tuples (m, n, k, layout); for five in six of them, TMA can load the rows.
    """
    random, found = np.random.default_rng(0), []
    for place in range(24):
        size = np.exp(random.uniform(np.log(1), np.log(3000), 3)).astype(int)
        m, n, k = (size if place % 6 == 0 else -(-size // 8) * 8).tolist()
        found.append((m, n, k, LAYOUTS[place % 4]))
    return found


@pytest.mark.parametrize(("m", "n", "k", "layout"), sizes())
def test_results_are_right_in_every_layout(m: int, n: int, k: int, layout: str):
    a, b = stored(m, n, k, layout)
    views = a.T if layout[0] == "t" else a, b.T if layout[1] == "t" else b
    want = views[0].double() @ views[1].double()
    out = torch.full((m, n), float("nan"), device="cuda", dtype=torch.bfloat16)
    check(codegen.matmul(*views, out=out), want)
    transpose_a, transpose_b = (side == "t" for side in layout)
    check(codegen.matmul(a, b, transpose_a=transpose_a, transpose_b=transpose_b), want)
    c = torch.randn_like(out)
    check(codegen.matmul(*views, c, out, 1.5, -0.5), 1.5 * want - 0.5 * c.double())


def test_the_type_of_the_result_is_that_of_out():
    a, b = stored(264, 392, 520, "nn")
    out = torch.empty(264, 392, device="cuda", dtype=torch.float32)
    check(codegen.matmul(a, b, out=out), a.double() @ b.double())


@pytest.mark.parametrize(("m", "n", "k"), [(0, 264, 64), (264, 0, 64), (0, 0, 0), (264, 392, 0)])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_extents_of_0(m: int, n: int, k: int, layout: str):
    a, b = stored(m, n, k, layout)
    views = a.T if layout[0] == "t" else a, b.T if layout[1] == "t" else b
    assert torch.equal(codegen.matmul(*views), views[0] @ views[1])
    assert torch.equal(codegen.matmul(*views, tune=True), views[0] @ views[1])
    c = torch.randn(m, n, device="cuda", dtype=torch.bfloat16)
    out = torch.full_like(c, float("nan"))
    assert codegen.matmul(*views, c, out, float("nan"), 2.0) is out
    assert torch.equal(out, 2 * c)


def test_no_depth_in_a_cuda_graph():
    a, b = stored(264, 392, 0, "nn")
    c = torch.randn(264, 392, device="cuda", dtype=torch.bfloat16)
    out = torch.empty_like(c)
    codegen.matmul(a, b, c, out, beta=2.0)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        codegen.matmul(a, b, c, out, beta=2.0)
    c.fill_(3)
    out.fill_(float("nan"))
    graph.replay()
    torch.cuda.synchronize()
    assert (out == 6).all()


def test_an_address_that_is_not_aligned_is_served():
    a = torch.randn(300 * 256 + 1, device="cuda", dtype=torch.bfloat16)[1:].view(300, 256)
    _, b = stored(8, 264, 256, "nn")
    check(codegen.matmul(a, b), a.double() @ b.double())


def test_tuning_is_remembered(gpu: Gpu, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COORDGRAPH_CACHE", str(tmp_path))
    matmul.forget()
    measured.forget()
    a, b = stored(384, 512, 2048, "nt")
    want = a.double() @ b.T.double()
    check(codegen.matmul(a, b.T, tune=True), want)
    (entry,) = json.loads((tmp_path / measured.FILE).read_text()).values()
    assert gpu.name in entry["problem"]
    assert entry["seconds"] == min(entry["times"].values()) > 0
    assert 1 < len(entry["times"]) <= MOST_MEASURED
    matmul.forget()
    measured.forget()
    monkeypatch.setattr(tuning, "find_fastest", None)
    check(codegen.matmul(a, b.T, tune=True), want)
    check(codegen.matmul(a, b.T), want)


def test_a_capture_takes_calls_but_no_tuning():
    a, b = stored(256, 256, 512, "nn")
    out = torch.zeros(256, 256, device="cuda", dtype=torch.bfloat16)
    codegen.matmul(a, b, out=out)
    graph, refused = torch.cuda.CUDAGraph(), []
    with torch.cuda.graph(graph):
        codegen.matmul(a, b, out=out)
        try:
            codegen.matmul(a, b, out=out, tune=True)
        except LaunchError as error:
            refused.append(str(error))
    assert "while a CUDA graph is captured" in refused[0]
    out.zero_()
    graph.replay()
    check(out, a.double() @ b.double())


def host_seconds(call: Callable[[], Any]) -> float:
    """Host seconds of a call: the median of the five fastest of 15 batches of calls."""
    for _ in range(20):
        call()
    samples: list[float] = []
    for _ in range(15):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(200):
            call()
        samples.append((time.perf_counter() - start) / 200)
    return median(sorted(samples)[:5])


def test_a_call_like_one_before_is_a_look_up():
    a, b = stored(256, 256, 256, "nn")
    out = torch.empty(256, 256, device="cuda", dtype=torch.bfloat16)
    matmul.forget()
    codegen.matmul(a, b, out=out)
    (prepared,) = matmul._prepared._young.values()
    own = host_seconds(lambda: prepared.launch(a, b, out=out))
    whole = host_seconds(lambda: codegen.matmul(a, b, out=out))
    assert whole - own < ON_TOP
