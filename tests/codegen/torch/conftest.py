from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

Make = Callable[..., Any]


@pytest.fixture(autouse=True)
def torch() -> Iterator[Any]:
    """The module `torch` with a fixed seed and no compiled graphs; a test without it is skipped."""
    found = pytest.importorskip("torch")
    pytest.importorskip("torch._dynamo.testing")
    import codegen.torch

    assert codegen.torch.__all__  # importing codegen.torch registers the operators
    found.manual_seed(0)
    yield found
    found._dynamo.reset()


@pytest.fixture
def make(torch: Any) -> Make:
    """A function that makes a random float64 tensor of a shape, which requires a gradient."""

    def random(*shape: int, dtype: Any = torch.float64) -> Any:
        return torch.randn(shape, dtype=dtype, requires_grad=True)

    return random
