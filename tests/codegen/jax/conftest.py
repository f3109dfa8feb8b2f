from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

Make = Callable[..., Any]


@pytest.fixture
def jax() -> Any:
    """The module `jax`, which uses the CPU; skips the test if JAX is missing."""
    found = pytest.importorskip("jax")
    found.config.update("jax_platforms", "cpu")
    return found


@pytest.fixture
def make(jax: Any) -> Make:
    """A function that makes an array of a shape, with random integers from -3 to 3.

    Sums of products of such numbers are exact in f32, so results can be compared exactly.
    """
    rng = np.random.default_rng(0)

    def random(*shape: int, dtype: Any = "float32") -> Any:
        return jax.numpy.asarray(rng.integers(-3, 4, shape), dtype=dtype)

    return random
