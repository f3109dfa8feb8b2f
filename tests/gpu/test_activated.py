"""`codegen.torch.linear` with an activation on a GPU agrees with float64 within rounding."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.usefixtures("gpu")

ACTIVATIONS = {
    "relu": torch.nn.functional.relu,
    "silu": torch.nn.functional.silu,
    "gelu": torch.nn.functional.gelu,
    "gelu_tanh": lambda x: torch.nn.functional.gelu(x, approximate="tanh"),
}


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_values_and_gradients(activation: str, biased: bool):
    """Errors are at most 2^-6 of the largest entry in float64."""
    import codegen.torch as cgt

    torch.manual_seed(0)
    for m, n, k in ((200, 168, 72), (129, 131, 77), (1, 7, 5), (1024, 1408, 512)):
        given = [torch.randn(m, k), torch.randn(n, k) / k**0.5, torch.randn(n)][: 2 + biased]
        given = [x.bfloat16().cuda().requires_grad_() for x in given]
        exact = [x.detach().double().requires_grad_() for x in given]
        right = ACTIVATIONS[activation](torch.nn.functional.linear(*exact))
        d = cgt.linear(*given, activation=activation)
        weights = torch.randn(m, n).bfloat16().cuda()
        found: Any = (d, *torch.autograd.grad(d, given, weights))
        wanted = (right, *torch.autograd.grad(right, exact, weights.double()))
        for one, other in zip(found, wanted, strict=True):
            assert one.shape == other.shape
            assert (one.double() - other).abs().max() <= 2.0**-6 * other.abs().max()
