"""`linear` with an activation: values and gradients equal those of PyTorch's functions."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from coordgraph import LaunchError

torch = pytest.importorskip("torch")
cgt = pytest.importorskip("codegen.torch")
F = torch.nn.functional

ACTIVATIONS = {
    "relu": F.relu,
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
}
every_activation = pytest.mark.parametrize("activation", ACTIVATIONS)


def draw(*shape: int, dtype: Any = torch.float64) -> Any:
    made = torch.randn(shape, dtype=dtype, generator=torch.Generator().manual_seed(sum(shape)))
    return made.requires_grad_()


@every_activation
@pytest.mark.parametrize("biased", [False, True])
def test_values_and_gradients(activation: str, biased: bool):
    given = [draw(2, 3, 5), draw(7, 5), draw(7)][: 2 + biased]
    found = cgt.linear(*given, activation=activation)
    exact = ACTIVATIONS[activation](F.linear(*given))
    torch.testing.assert_close(found, exact)
    weights = draw(2, 3, 7).detach()
    ours = torch.autograd.grad(found, given, weights)
    torch.testing.assert_close(ours, torch.autograd.grad(exact, given, weights))
    with torch.no_grad():
        torch.testing.assert_close(cgt.linear(*given, activation=activation), exact.detach())


@pytest.mark.parametrize("shape", [(2, 3, 0), (0, 3, 0), (0, 3, 5)])
def test_extents_of_zero(shape: tuple[int, ...]):
    """The sums are the bias if k is 0, also for an input of several axes."""
    given = draw(*shape), draw(7, shape[-1]), draw(7)
    found = cgt.linear(*given, activation="gelu")
    exact = F.gelu(F.linear(*given))
    torch.testing.assert_close(found, exact)
    ours, theirs = (torch.autograd.grad(x.sum(), given) for x in (found, exact))
    torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("activation", ["silu", "gelu"])
def test_gradcheck(activation: str):
    given = draw(4, 5), draw(3, 5), draw(3)
    function = partial(cgt.linear, activation=activation)
    assert torch.autograd.gradcheck(function, given)
    assert torch.autograd.gradgradcheck(function, given)


@every_activation
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.filterwarnings("ignore:`torch.jit")
def test_tangents_and_gradients_of_functions(activation: str, biased: bool):
    """`torch.func.jvp` and `torch.func.grad` agree with PyTorch's functions."""
    given = tuple(x.detach() for x in (draw(4, 5), draw(3, 5), draw(3))[: 2 + biased])
    along = tuple(torch.ones_like(x) for x in given)

    def ours(*given: Any) -> Any:
        return cgt.linear(*given, activation=activation)

    def exact(*given: Any) -> Any:
        return ACTIVATIONS[activation](F.linear(*given))

    found, right = (torch.func.jvp(f, given, along) for f in (ours, exact))
    torch.testing.assert_close(found, right)
    every = tuple(range(len(given)))
    found, right = (
        torch.func.grad(lambda *x, f=f: f(*x).sum(), argnums=every)(*given) for f in (ours, exact)
    )
    torch.testing.assert_close(found, right)


def test_gradient_of_the_bias_comes_from_the_kernel(monkeypatch: pytest.MonkeyPatch):
    """The backward pass of a bias calls no reduction of PyTorch on the gradient's matrix."""
    mode: Any = torch.utils._python_dispatch.TorchDispatchMode
    called = list[str]()

    class Log(mode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None):
            called.append(func.name())
            return func(*args, **(kwargs or {}))

    given = draw(6, 5), draw(7, 5), draw(7)
    d = cgt.linear(*given, activation="gelu")
    with Log():
        torch.autograd.grad(d, given, torch.ones_like(d))
    assert "coordgraph::activated_gradient" in called
    assert not [name for name in called if "sum" in name or "gelu" in name]


@pytest.mark.parametrize("biased", [False, True])
def test_operators_and_compile(biased: bool):
    a, b, bias = draw(6, 5), draw(5, 7), draw(7) if biased else None
    for op in ("activated_with_sums", "activated"):
        target = getattr(torch.ops.coordgraph, op).default
        tests = ("test_schema", "test_faketensor")
        torch.library.opcheck(target, (a, b, bias, "silu", False), test_utils=tests)
    function = partial(cgt.linear, activation="gelu_tanh")
    given = [x for x in (a, draw(7, 5), bias) if x is not None]
    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    one, other = compiled(*given), function(*given)
    torch.testing.assert_close(one, other)
    torch.testing.assert_close(
        torch.autograd.grad(one.sum(), given), torch.autograd.grad(other.sum(), given)
    )


def test_autocast_and_refusals():
    given = draw(6, 5, dtype=torch.float32), draw(7, 5, dtype=torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        assert cgt.linear(*given, activation="relu").dtype is torch.bfloat16
    with pytest.raises(LaunchError, match="activation = 'mish' is unknown; choose one of silu"):
        cgt.linear(*given, activation="mish")
    with pytest.raises(LaunchError, match="apply the activation to the result"):
        cgt.linear(given[0], given[1][0], activation="relu")
    with pytest.raises(LaunchError, match=r"bias is \(6,\), but \(7,\) is needed"):
        cgt.linear(*given, draw(6, dtype=torch.float32), activation="relu")


@pytest.mark.parametrize("shape", [(), (1,), (7,)], ids=str)
@pytest.mark.parametrize("rows", [(5,), (3, 5), (2, 3, 5)], ids=str)
def test_a_bias_of_one_element_is_added_to_each_column(
    rows: tuple[int, ...], shape: tuple[int, ...]
):
    given = draw(*rows), draw(7, 5), draw(*shape)
    found = cgt.linear(*given, activation="gelu")
    exact = F.gelu(F.linear(*given))
    torch.testing.assert_close(found, exact)
    ours, theirs = (torch.autograd.grad(x.sum(), given) for x in (found, exact))
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("function", [cgt.gated, partial(cgt.linear, activation="relu")])
def test_a_bias_of_another_shape_is_refused_in_terms_of_the_arguments(function: Any):
    for shape in ((5,), (3, 8)):
        with pytest.raises(LaunchError, match=r"pass an element for each row of weight"):
            function(draw(3, 5), draw(8, 5), draw(*shape))
