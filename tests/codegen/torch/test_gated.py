"""`codegen.torch.gated` and `swiglu` against PyTorch's product and activation."""

from __future__ import annotations

from typing import Any

import pytest

from coordgraph import LaunchError
from tests.codegen.torch.conftest import Make

ACTIVATIONS = ("silu", "gelu", "gelu_tanh", "relu")
either_operator = pytest.mark.parametrize("operator", ["gated", "gated_with_sums"])
biased_or_not = pytest.mark.parametrize("biased", [False, True])


def expected(torch: Any, x: Any, weight: Any, bias: Any = None, activation: str = "silu") -> Any:
    functional = torch.nn.functional
    gate, up = functional.linear(x, weight, bias).chunk(2, -1)
    if activation == "gelu_tanh":
        return functional.gelu(gate, approximate="tanh") * up
    return getattr(functional, activation)(gate) * up


def check_gradients(torch: Any, ours: Any, theirs: Any, given: list[Any], **close: Any) -> None:
    """Compare the results of `ours` and `theirs` for the arguments `given`, and their gradients.

    The gradients are those of a randomly weighted sum of a result's elements.
    """
    found, right = ours(*given), theirs(*given)
    torch.testing.assert_close(found, right, **close)
    weights = torch.randn_like(right)
    for one, other in zip(
        torch.autograd.grad((found * weights).sum(), given),
        torch.autograd.grad((right * weights).sum(), given),
        strict=True,
    ):
        torch.testing.assert_close(one, other, **close)


@pytest.mark.parametrize("shape", [(), (1,)], ids=str)
@pytest.mark.parametrize("rows", [14, 0])
def test_a_bias_of_one_element_is_added_to_all_columns(torch: Any, rows: int, shape: Any):
    import codegen.torch as cgt

    given = [torch.randn(s, requires_grad=True) for s in ((5, 12), (rows, 12), shape)]
    check_gradients(torch, cgt.gated, lambda *t: expected(torch, *t), given)


@pytest.mark.filterwarnings("ignore:`torch.jit")
def test_tangents_round_the_sums_with_their_bias_once(torch: Any):
    """Sums near 0 keep their sign, on which the tangent of `relu` depends.

    The products are 1 + 2^-12, which float16 rounds to 1, and the bias is -1.
    """
    import codegen.torch as cgt

    x = torch.tensor([[1.0, 2.0**-6]]).half()
    weight = torch.tensor([[1.0, 2.0**-6]] * 2).half()
    bias = torch.tensor([-1.0, 1.0]).half()
    _, tangent = torch.func.jvp(
        lambda x: cgt.gated(x, weight, bias, activation="relu"), (x,), (torch.ones_like(x),)
    )
    assert tangent.item() > 1  # 0 if the sum of gate were rounded to 0


SHAPES = (((5, 12), 14), ((2, 3, 12), 34), ((12,), 14), ((0, 12), 14), ((5, 12), 0))


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_gradients(torch: Any, activation: str, recompute: bool):
    """Gradients are PyTorch's for vectors, matrices and batches, also without rows or columns."""
    import codegen.torch as cgt

    for shape, rows in SHAPES if activation == "silu" else SHAPES[:1]:
        for biased in (False, True) if activation == "silu" else (True,):
            given = [torch.randn(s, requires_grad=True) for s in (shape, (rows, 12), (rows,))]

            def right(x: Any, weight: Any, bias: Any = None) -> Any:
                return expected(torch, x, weight, bias, activation)

            check_gradients(
                torch,
                lambda *t: cgt.gated(*t, activation=activation, recompute=recompute),
                right,
                given if biased else given[:2],
            )


@either_operator
@pytest.mark.parametrize(
    ("activation", "batch", "biased"),
    [
        ("silu", (), False),
        ("silu", (2,), True),
        ("gelu", (), True),
        ("gelu_tanh", (), False),
        ("relu", (), True),
    ],
    ids=str,
)
def test_operator(
    torch: Any, make: Make, operator: str, activation: str, batch: tuple[int, ...], biased: bool
):
    """First derivatives, and second ones except relu's, agree with finite differences."""
    op = getattr(torch.ops.coordgraph, operator).default
    given = [make(*batch, 3, 4), make(*batch, 4, 6), *([make(6)] if biased else [])]

    def call(a: Any, b: Any, bias: Any = None) -> Any:
        found = op(a, b, bias, activation)
        return found if operator == "gated" else torch.cat(found, -1)  # the sums have gradients too

    assert torch.autograd.gradcheck(call, given)
    if activation != "relu":
        assert torch.autograd.gradgradcheck(call, given)


@either_operator
@pytest.mark.parametrize(("batch", "biased"), [((), False), ((3,), True)], ids=str)
def test_opcheck(torch: Any, make: Make, operator: str, batch: tuple[int, ...], biased: bool):
    op = getattr(torch.ops.coordgraph, operator).default
    given = (make(*batch, 5, 12), make(*batch, 12, 14), make(14) if biased else None)
    torch.library.opcheck(op, (*given, "gelu"))


def test_opcheck_of_gradients(torch: Any):
    ops = torch.ops.coordgraph
    grad, sums, a, b, bias = (torch.randn(s) for s in ((5, 7), (5, 14), (5, 12), (12, 14), (14,)))
    torch.library.opcheck(ops.gated_gradient.default, (grad, sums, "silu"))
    product = ops.gated_gradient_of_product.default
    torch.library.opcheck(product, (grad, a, b, bias, "relu", False))
    torch.testing.assert_close(
        product(grad, a, b, None, "relu", False), ops.gated_gradient(grad, a @ b, "relu")
    )


@pytest.mark.parametrize("recompute", [False, True])
def test_half_precision(torch: Any, recompute: bool):
    """Gradients of bf16 tensors, also expanded ones, are as close as PyTorch's to those of f32."""
    import codegen.torch as cgt

    x, weight = torch.randn(9, 24), torch.randn(2 * 16, 24) / 5
    given = [t.bfloat16().requires_grad_() for t in (x, weight)]
    exact = [t.detach().float().requires_grad_() for t in given]
    cgt.swiglu(*given, recompute=recompute).sum().backward()
    expected(torch, *exact).sum().backward()
    for t, right in zip(given, exact, strict=True):
        torch.testing.assert_close(t.grad.float(), right.grad, atol=3e-2, rtol=3e-2)


def saved_bytes(torch: Any, function: Any) -> int:
    """The bytes of the storages that PyTorch keeps for the backward pass of `function()`."""
    found: dict[int, int] = {}

    def pack(tensor: Any) -> Any:
        storage = tensor.untyped_storage()
        found[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        function().sum()
    return sum(found.values())


@biased_or_not
def test_memory(torch: Any, make: Make, biased: bool):
    """Less is kept for the backward pass than by PyTorch; with `recompute`, inputs only."""
    import codegen.torch as cgt

    m, n, k = 64, 32, 16
    given = [make(m, k), make(2 * n, k), *([make(2 * n)] if biased else [])]
    inputs = sum(t.untyped_storage().nbytes() for t in given)
    ours = saved_bytes(torch, lambda: cgt.swiglu(*given))
    assert ours == inputs + m * 2 * n * 8
    assert ours < saved_bytes(torch, lambda: expected(torch, *given))
    assert saved_bytes(torch, lambda: cgt.swiglu(*given, recompute=True)) == inputs


@pytest.mark.parametrize("recompute", [False, True])
def test_compiled_in_one_graph(torch: Any, make: Make, recompute: bool):
    import codegen.torch as cgt

    def layer(function: Any, *given: Any) -> Any:
        return torch.tanh(function(*given)) + 1

    def ours(*given: Any) -> Any:
        return layer(lambda *t: cgt.gated(*t, activation="gelu", recompute=recompute), *given)

    compiled = torch.compile(ours, fullgraph=True, backend="aot_eager")
    given = [make(2, 5, 12), make(14, 12), make(14)]
    check_gradients(
        torch,
        compiled,
        lambda *t: layer(lambda x, w, b: expected(torch, x, w, b, "gelu"), *t),
        given,
    )


def calls_of(torch: Any, function: Any, *given: Any) -> list[str]:
    """The operators that a function calls, in order, without those that only make views."""
    make_fx = pytest.importorskip("torch.fx.experimental.proxy_tensor").make_fx
    graph = make_fx(function)(*given)
    return [str(node.target) for node in graph.graph.nodes if node.op == "call_function"]


def test_one_operator_without_gradients(torch: Any):
    import codegen.torch as cgt

    layer = cgt.SwiGLU(16, 24, bias=True)
    x = torch.randn(3, 16)
    with torch.no_grad():
        calls = calls_of(torch, layer, x)
        assert "coordgraph.gated.default" in calls
        assert not any("silu" in call or "gated_with_sums" in call for call in calls)
        fused = layer(x)
    torch.testing.assert_close(fused, layer(x))


def test_kernels_of_a_gradient(torch: Any, make: Make):
    """Forward and backward are four operators of this library; PyTorch computes nothing."""
    import codegen.torch as cgt

    def step(x: Any, weight: Any, grad: Any) -> Any:
        return torch.autograd.grad(cgt.swiglu(x, weight), (x, weight), grad)

    calls = calls_of(torch, step, make(5, 12), make(14, 12), torch.randn(5, 7).double())
    views = ("aten.t.", "aten.transpose.", "aten.detach.", "aten.alias.", "getitem")
    assert [name for name in calls if not any(view in name for view in views)] == [
        "coordgraph.gated_with_sums.default",
        "coordgraph.gated_gradient.default",
        "coordgraph.matmul.default",
        "coordgraph.matmul.default",
    ]


def test_vmap(torch: Any, make: Make):
    """`torch.vmap` maps `swiglu` and its gradients over inputs, weights and biases, also nested."""
    import codegen.torch as cgt

    x, weight, bias = make(3, 5, 12), make(14, 12, 3), make(3, 14)
    for axes in ((0, None, None), (0, 2, None), (0, 2, 0), (None, 2, None), (0, None, 0)):
        given = [
            t if axis is not None else t.select(at, 0)
            for t, axis, at in zip((x, weight, bias), axes, (0, 2, 0), strict=True)
        ]
        for recompute in (False, True):
            ours = torch.vmap(lambda *t, again=recompute: cgt.swiglu(*t, recompute=again), axes)
            check_gradients(torch, ours, torch.vmap(lambda *t: expected(torch, *t), axes), given)
    inner = torch.vmap(lambda x, w, b: cgt.swiglu(x, w, b), (0, 0, None))
    twice = torch.vmap(inner, (0, 0, 0))(make(2, 3, 5, 12), make(2, 3, 14, 12), make(2, 14))
    assert twice.shape == (2, 3, 5, 7)


@pytest.mark.parametrize("recompute", [False, True])
def test_vmap_of_gradients(torch: Any, make: Make, recompute: bool):
    """`is_grads_batched` maps the backward pass over several gradients of one result."""
    import codegen.torch as cgt

    x, weight, grads = make(5, 12), make(14, 12), torch.randn(4, 5, 7).double()
    found, right = (
        torch.autograd.grad(d, (x, weight), grads, is_grads_batched=True)
        for d in (cgt.swiglu(x, weight, recompute=recompute), expected(torch, x, weight))
    )
    for one, other in zip(found, right, strict=True):
        torch.testing.assert_close(one, other)


def test_autocast(torch: Any):
    import codegen.torch as cgt

    x, weight = torch.randn(4, 12), torch.randn(14, 12, requires_grad=True)
    for recompute in (False, True):
        with torch.autocast("cpu", torch.bfloat16):
            d = cgt.swiglu(x, weight, recompute=recompute)
            with torch.no_grad():
                assert cgt.swiglu(x, weight).dtype is torch.bfloat16
        assert d.dtype is torch.bfloat16
        (grad,) = torch.autograd.grad(d.float().square().sum(), weight)
        (right,) = torch.autograd.grad(expected(torch, x, weight).square().sum(), weight)
        assert grad.dtype is torch.float32
        torch.testing.assert_close(grad, right, atol=0.2, rtol=5e-2)


def test_refusals(torch: Any):
    import codegen.torch as cgt

    x, weight = torch.randn(4, 12), torch.randn(14, 12)
    with pytest.raises(LaunchError, match="2n x k is needed"):
        cgt.swiglu(x, weight[:13])
    with pytest.raises(LaunchError, match="k would be 11 and 12; pass a weight of n x k"):
        cgt.swiglu(x[:, :11], weight)
    with pytest.raises(LaunchError, match="is needed; pass an element for each row of weight"):
        cgt.swiglu(x, weight, torch.randn(7))
    with pytest.raises(LaunchError, match="'tanh' is unknown; choose one of silu, gelu"):
        cgt.gated(x, weight, activation="tanh")
