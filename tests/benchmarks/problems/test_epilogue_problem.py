"""The reference results of `benchmarks epilogue`: GELU, and the error bound of results."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from benchmarks.problems.epilogue_problem import GELU_SLOPE, EpilogueProblem, gelu


def by_tanh(x: float) -> float:
    return 0.5 * x * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def test_gelu_is_its_tanh_formula_also_far_from_zero():
    x = np.linspace(-12, 12, 2001)
    assert gelu(x) == pytest.approx([by_tanh(one) for one in x], abs=1e-12)
    with np.errstate(all="raise", under="ignore"):
        far = gelu(np.array([-300.0, 300.0]))
    assert far == pytest.approx([0.0, 300.0], abs=1e-9)


def test_the_slope_of_gelu_is_bounded():
    x = np.linspace(-6, 6, 100_001)
    slopes = np.diff(gelu(x)) / np.diff(x)
    assert 1.12 < np.abs(slopes).max() <= GELU_SLOPE


class Array(np.ndarray):
    """A NumPy array with the torch tensor methods that the check of results calls."""

    def fill_(self, value: float) -> None:
        self[...] = value

    def double(self) -> Any:
        return self.astype(np.float64)

    def isnan(self) -> Any:
        return np.isnan(self)

    def abs(self) -> Any:
        return np.abs(self)

    def numel(self) -> int:
        return self.size


def array(values: Any, dtype: Any = np.float64) -> Any:
    return np.asarray(values, dtype).view(Array)


@pytest.fixture
def problem() -> Any:
    """A problem on the host: 16 x 64 with k = 256 in bf16; all rows are checked."""
    random = np.random.default_rng(0)
    made: Any = object.__new__(EpilogueProblem)
    a, b = random.standard_normal((16, 256)), random.standard_normal((256, 64))
    bias, residual = random.standard_normal(64), random.standard_normal((16, 64))
    made.torch = SimpleNamespace(cuda=SimpleNamespace(synchronize=lambda: None))
    made.rounding, made.shape = 2.0**-8, SimpleNamespace(m=16, n=64, k=256)
    made.rows = np.arange(16)
    made.sets = [(a, b, array(np.zeros((16, 64)), np.float32))]
    made.exact, made.magnitude = array(a @ b), array(np.sqrt(a**2 @ b**2))
    made.argument = made.exact + bias
    made.activated = gelu(made.argument)
    made.result = made.activated + residual
    return made


def written(problem: Any, values: Any) -> Any:
    """A function that writes `values` to D."""

    def compute() -> None:
        problem.sets[0][2][...] = values

    return compute


def test_a_result_that_is_rounded_once_is_right(problem: Any):
    rounded = problem.result * (1 + problem.rounding * 0.9 * np.resize([1, -1], (16, 64)))
    assert problem.epilogue_fault(written(problem, rounded)) is None


def test_wrong_results_are_seen(problem: Any):
    product = problem.exact
    residual = problem.result - problem.activated
    for wrong in (product, product + residual, problem.activated, np.maximum(product, 0)):
        assert problem.epilogue_fault(written(problem, wrong)).startswith("WRONG")
        fault = problem.epilogue_fault(written(problem, wrong), rounded_steps=True)
        assert fault.startswith("WRONG")
    one = problem.result.copy()
    one[3, 5] += 1
    assert "1 of 1024 sampled" in problem.epilogue_fault(written(problem, one))
    fault = problem.epilogue_fault(lambda: None)
    assert "1024 of 1024 elements not written" in fault


def test_only_separate_kernels_may_round_every_step(problem: Any):
    steps = problem.argument + problem.rounding * problem.argument.abs()
    rounded = gelu(steps) + problem.rounding * problem.activated.abs()
    result = rounded + (problem.result - problem.activated)
    assert problem.epilogue_fault(written(problem, result), rounded_steps=True) is None
    assert problem.epilogue_fault(written(problem, result)).startswith("WRONG")


def test_the_product_alone_is_checked_as_one(problem: Any):
    assert problem.fault(written(problem, problem.exact)) is None
    assert problem.fault(written(problem, problem.result)).startswith("WRONG")


def test_the_operands_of_a_set_belong_together(problem: Any):
    problem.sets, problem.operands = [("a", "b", "d"), ("A", "B", "D")], [("x", "r"), ("X", "R")]
    calls: list[Any] = []
    problem.launch(lambda *given: calls.append(given), 1)
    assert calls == [("A", "B", "D", "X", "R")]
