"""`codegen.matmul` as a contender of benchmarks: the result row names the chosen plan."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import codegen
from benchmarks.peers.ours import Library
from passes.choosing import Plan
from tests.support.sampling import quick_cases


@quick_cases(1)
@pytest.mark.parametrize("size", [(8, 16, 24), (300, 40, 50)])
@pytest.mark.parametrize("transpose_b", [False, True])
def test_the_plan_of_matmul_is_kept(size: tuple[int, int, int], transpose_b: bool):
    m, n, k = size
    a, b = np.ones((m, k), np.float32), np.ones((n, k) if transpose_b else (k, n), np.float32)
    out = np.zeros((m, n), np.float32)
    problem: Any = SimpleNamespace(transpose_a=False, transpose_b=transpose_b, sets=[(a, b, out)])
    library = Library()
    run = library.prepare(problem)
    assert (out == k).all()
    explained = codegen.explain(m, n, k, "f32", transpose_b=transpose_b, device="cpu").best.plan
    assert Plan.parse(library.details["plan"]) == explained
    assert library.details["tuned"] is False
    out[:] = 0
    assert run(a, b, out) is out
    assert (out == k).all()
