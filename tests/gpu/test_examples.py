"""Kernels with the schedules of `examples/` give the float64 result on the GPU."""

from __future__ import annotations

import pytest

from examples.ragged_split_k import RaggedSplitK
from examples.snake_deal import SnakeDeal
from tests.gpu.kernels import Problem, Spec, shapes

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.usefixtures("gpu")

SPECS = (
    Spec((RaggedSplitK(),), (64, 64, 32), "nn", target="sm_80"),
    Spec((RaggedSplitK(reduction="scatter"),), (64, 64, 32), "nt", target="sm_80"),
    Spec((RaggedSplitK(owner="first", reduction="turnstile"),), (64, 64, 32), target="sm_80"),
    Spec((SnakeDeal(),), (64, 64, 32), "tn", target="sm_80"),
    Spec((RaggedSplitK(),), (128, 128, 64), "nt"),
    Spec((RaggedSplitK(reduction="tree"),), (128, 256, 64), "nn"),
    Spec((SnakeDeal(),), (128, 128, 64), "tt"),
)


@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_shapes(spec: Spec):
    for shape in shapes(SPECS.index(spec), 5, aligned=True):
        problem = Problem.make(spec, shape)
        first, again = problem.run(), problem.run()
        problem.check(first)
        assert torch.equal(first, again), f"{shape}: another result the second time"
