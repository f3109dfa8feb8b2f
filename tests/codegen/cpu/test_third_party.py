"""Passes and edges defined outside the library compile like the library's own."""

from __future__ import annotations

import pytest

from codegen.targets.cpu import HostKernel
from coordgraph import Gemm
from passes import Pass, Pipeline
from tests.codegen.cpu.kernels import TILE, Problem
from tests.passes.schedules import schedule
from tests.passes.test_third_party import LastRowFirst, Snake
from tests.support.sampling import quick_cases


@quick_cases(2)
@pytest.mark.parametrize("order", [Snake(), LastRowFirst()])
@pytest.mark.parametrize("name", ["data-parallel", "stream-k"])
def test_it_computes_the_same(order: Pass, name: str):
    code = HostKernel(Pipeline([order, schedule(name)])(Gemm("f32").graph(TILE)))
    for m, n, k in ((1, 1, 1), (50, 90, 60), (61, 130, 25)):
        for threads in (1, 2):
            Problem(code, m, n, k, 1.0, 0.5).check(workgroups=5, threads=threads)
