"""`torch.func` and forward-mode differentiation of `codegen.torch` on the GPU, against f32."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytestmark = [
    pytest.mark.usefixtures("gpu"),
    pytest.mark.filterwarnings("ignore:`torch.jit"),
]


def normal(*shape: int) -> Any:
    return torch.randn(shape, device="cuda", dtype=torch.bfloat16)


def check(ours: Any, exact: Any) -> None:
    """Compare a tensor of bf16 with the same result in f32."""
    assert (ours.dtype, ours.shape) == (torch.bfloat16, exact.shape)
    assert (ours.float() - exact).abs().max() <= 2e-2 * exact.abs().max()


def test_tangents():
    import codegen.torch as cgt

    given, tangents = ([normal(130, 72), normal(40, 72), normal(40)] for _ in range(2))
    wide, wide_tangents = ([x.float() for x in each] for each in (given, tangents))
    for ours, theirs in (
        (cgt.linear, torch.nn.functional.linear),
        (cgt.swiglu, _swiglu),
    ):
        found = torch.func.jvp(ours, tuple(given), tuple(tangents))
        exact = torch.func.jvp(theirs, tuple(wide), tuple(wide_tangents))
        for one, other in zip(found, exact, strict=True):
            check(one, other)


def _swiglu(x: Any, weight: Any, bias: Any) -> Any:
    gate, up = torch.nn.functional.linear(x, weight, bias).chunk(2, -1)
    return torch.nn.functional.silu(gate) * up


def test_gradients_of_each_sample():
    import codegen.torch as cgt

    x, weight = normal(3, 130, 72), normal(40, 72)

    def gradients(linear: Any, x: Any, weight: Any) -> Any:
        loss = lambda weight, x: linear(x, weight).float().square().sum()  # noqa: E731
        return torch.vmap(torch.func.grad(loss), in_dims=(None, 0))(weight, x)

    ours = gradients(cgt.linear, x, weight)
    check(ours, gradients(torch.nn.functional.linear, x.float(), weight.float()))
