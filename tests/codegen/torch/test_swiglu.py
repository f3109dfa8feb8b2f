"""`SwiGLU` against the same layer of three `torch.nn.Linear`."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import pytest

from tests.codegen.torch.conftest import Make


def layers(torch: Any, bias: bool) -> tuple[Any, Any]:
    """(our layer, a dict of PyTorch's linear layers with the same weights).

    The keys are Hugging Face's names, such as `gate_proj`.
    """
    import codegen.torch as cgt

    nn = torch.nn
    stock = nn.ModuleDict(
        {
            "gate_proj": nn.Linear(7, 10, bias, dtype=torch.float64),
            "up_proj": nn.Linear(7, 10, bias, dtype=torch.float64),
            "down_proj": nn.Linear(10, 7, bias, dtype=torch.float64),
        }
    )
    ours = cgt.SwiGLU(7, 10, bias, dtype=torch.float64)
    state = stock.state_dict()
    ours.load_state_dict(state)
    assert "gate_proj.weight" in state  # `load_state_dict` does not change its argument
    return ours, stock


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("shape", [(7,), (5, 7), (2, 3, 7)], ids=str)
def test_values_and_gradients(torch: Any, make: Make, shape: tuple[int, ...], bias: bool):
    ours, stock = layers(torch, bias)
    x = make(*shape)
    gate, up = stock["gate_proj"], stock["up_proj"]
    right = stock["down_proj"](torch.nn.functional.silu(gate(x)) * up(x))
    d = ours(x)
    torch.testing.assert_close(d, right)
    for kind in ("weight", "bias") if bias else ("weight",):
        joined = torch.cat(
            torch.autograd.grad(
                right.sum(), [getattr(gate, kind), getattr(up, kind)], retain_graph=True
            )
        )
        ours_of = [getattr(ours.gate_up, kind), getattr(ours.down, kind), x]
        found = torch.autograd.grad(d.sum(), ours_of, retain_graph=True)
        rest = torch.autograd.grad(
            right.sum(), [getattr(stock["down_proj"], kind), x], retain_graph=True
        )
        for one, other in zip(found, (joined, *rest), strict=True):
            torch.testing.assert_close(one, other)


def test_state_dict(torch: Any):
    """In a model, `SwiGLU` loads its own `state_dict`, or one of three layers (`gate_proj`, …)."""
    import codegen.torch as cgt

    ours, stock = layers(torch, False)
    assert list(ours.state_dict()) == ["gate_up.weight", "down.weight"]
    again = torch.nn.Sequential(cgt.SwiGLU(7, 10, dtype=torch.float64))
    for source in (ours, stock):
        states = {f"0.{name}": x for name, x in source.state_dict().items()}
        again[0].gate_up.weight.data.zero_()
        again.load_state_dict(states)
        torch.testing.assert_close(again[0].gate_up.weight, ours.gate_up.weight)
    incomplete = {"0.gate_proj.weight": stock["gate_proj"].weight}
    with pytest.raises(RuntimeError, match=r'Missing key.*"0\.up_proj\.weight"'):
        again.load_state_dict(incomplete)


def test_one_product_of_gate_and_up(torch: Any, make: Make):
    """`SwiGLU` computes two products, not three, and is compiled without a graph break."""
    ours, _ = layers(torch, False)
    graphs = torch._dynamo.testing.EagerAndRecordGraphs()
    x = make(5, 7)
    torch.testing.assert_close(torch.compile(ours, fullgraph=True, backend=graphs)(x), ours(x))
    code = graphs.graphs[0].code
    assert code.count("coordgraph.gated_with_sums") == code.count("coordgraph.matmul") == 1


@pytest.mark.parametrize("name", ["GeGLU", "ReGLU"])
def test_other_activations(torch: Any, make: Make, name: str):
    import codegen.torch as cgt

    functional = torch.nn.functional
    layer = getattr(cgt, name)(7, 10, dtype=torch.float64, recompute=True)
    x = make(5, 7)
    gate, up = functional.linear(x, layer.gate_up.weight).chunk(2, -1)
    act = functional.gelu(gate, approximate="tanh") if name == "GeGLU" else functional.relu(gate)
    right, d = functional.linear(act * up, layer.down.weight), layer(x)
    torch.testing.assert_close(d, right)
    given = (x, layer.gate_up.weight)
    for one, other in zip(
        torch.autograd.grad(d.sum(), given), torch.autograd.grad(right.sum(), given), strict=True
    ):
        torch.testing.assert_close(one, other)


def test_weights_of_different_shapes_are_not_joined(torch: Any):
    """20 rows of gate and 28 rows of up are as many as 24 and 24, but gate would get rows of up."""
    import codegen.torch as cgt

    weights = {"gate_proj": (20, 16), "up_proj": (28, 16), "down_proj": (16, 24)}
    state = {f"0.{name}.weight": torch.zeros(shape) for name, shape in weights.items()}
    model = torch.nn.Sequential(cgt.SwiGLU(16, 24))
    for strict in (True, False):
        with pytest.raises(RuntimeError, match=r"0\.gate_proj\.weight is \(20, 16\), but"):
            model.load_state_dict(state, strict=strict)


def of_stock(torch: Any, layer: Any, x: Any, sums: Any) -> Any:
    """The result of a `SwiGLU` whose gate and up are the halves of `sums`, by PyTorch."""
    gate, up = sums.chunk(2, -1)
    functional = torch.nn.functional
    return functional.linear(functional.silu(gate) * up, layer.down.weight)


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("how", ["spectral_norm", "weight_norm", "prune", "parametrize"])
def test_what_changes_the_weight_of_gate_up_has_effect(
    torch: Any, make: Make, how: str, recompute: bool
):
    """Normalizations and pruning compute the weight before each call of the layer."""
    import codegen.torch as cgt

    prune = import_module("torch.nn.utils.prune")
    utils, x = torch.nn.utils, make(5, 7)
    layer = cgt.SwiGLU(7, 10, dtype=torch.float64, recompute=recompute)
    stock = torch.nn.Linear(7, 20, bias=False, dtype=torch.float64)
    stock.load_state_dict(layer.gate_up.state_dict())
    changes = {
        "spectral_norm": utils.spectral_norm,
        "weight_norm": utils.parametrizations.weight_norm,
        "prune": lambda given: prune.l1_unstructured(given, "weight", 0.5),
        "parametrize": lambda given: utils.parametrize.register_parametrization(
            given, "weight", torch.nn.Tanh()
        ),
    }
    for given in (layer.gate_up, stock):
        torch.manual_seed(1)
        changes[how](given)
        given.eval()  # else each call changes the norm that `spectral_norm` estimates
    before = layer(x)
    torch.testing.assert_close(before, of_stock(torch, layer, x, stock(x)))
    with torch.no_grad():
        for parameter in (*layer.gate_up.parameters(), *stock.parameters()):
            parameter.mul_(torch.linspace(0.5, 2, len(parameter), dtype=torch.float64)[:, None])
    assert not torch.equal(layer(x), before)
    torch.testing.assert_close(layer(x), of_stock(torch, layer, x, stock(x)))


def test_hooks_of_gate_up_are_called(torch: Any, make: Make):
    """A forward hook gets the layer's result, `silu(gate) * up`; what it returns is used."""
    import codegen.torch as cgt

    layer, x = cgt.SwiGLU(7, 10, dtype=torch.float64), make(5, 7)
    called: list[tuple[int, ...]] = []

    def double(module: Any, inputs: Any, output: Any) -> Any:
        called.append(tuple(output.shape))
        return 2 * output

    right = 2 * layer(x)
    layer.gate_up.register_forward_hook(double)
    torch.testing.assert_close(layer(x), right)
    assert called == [(5, 10)]


def test_a_wrapper_of_gate_up_adds_an_adapter(torch: Any, make: Make):
    """A wrapper that adds products to the result of the layer that it wraps can replace it."""
    import codegen.torch as cgt

    class Adapter(torch.nn.Module):
        def __init__(self, base: Any) -> None:
            super().__init__()
            self.base = base
            self.down = torch.nn.Linear(7, 2, bias=False, dtype=torch.float64)
            self.up = torch.nn.Linear(2, 20, bias=False, dtype=torch.float64)

        def forward(self, x: Any) -> Any:
            return self.base(x) + self.up(self.down(x))

    layer, x = cgt.SwiGLU(7, 10, dtype=torch.float64), make(5, 7)
    weight = layer.gate_up.weight
    layer.gate_up = adapter = Adapter(layer.gate_up)
    both = weight + adapter.up.weight @ adapter.down.weight
    right = of_stock(torch, layer, x, torch.nn.functional.linear(x, both))
    torch.testing.assert_close(layer(x), right)
    layer.gate_up = torch.nn.Linear(7, 20, bias=False, dtype=torch.float64)
    layer.gate_up.weight = weight
    right = of_stock(torch, layer, x, torch.nn.functional.linear(x, weight))
    torch.testing.assert_close(layer(x), right)


@pytest.mark.parametrize("assign", [False, True])
@pytest.mark.parametrize("first", ["gate_proj", "up_proj"])
def test_gate_and_up_may_be_in_different_files(torch: Any, first: str, assign: bool):
    """Each `load_state_dict` changes its half of the parameter, and reports the other half."""
    import codegen.torch as cgt

    ours, stock = layers(torch, True)
    state = {f"0.{name}": x for name, x in stock.state_dict().items()}
    part = {name: state.pop(name) for name in list(state) if first in name}
    again = torch.nn.Sequential(cgt.SwiGLU(7, 10, True, dtype=torch.float64))
    before = again[0].gate_up.weight.detach().clone()
    found = again.load_state_dict(part, strict=False, assign=assign)
    other = "up_proj" if first == "gate_proj" else "gate_proj"
    assert {f"0.{other}.weight", f"0.{other}.bias"} <= {*found.missing_keys}
    assert not found.unexpected_keys
    kept = slice(10, None) if first == "gate_proj" else slice(10)
    assert torch.equal(again[0].gate_up.weight[kept], before[kept])
    again.load_state_dict(state, strict=False, assign=assign)
    for name, x in ours.state_dict().items():
        assert torch.equal(again[0].state_dict()[name], x), name
    assert f"0.{first}.weight" in part  # `load_state_dict` does not change its argument


def test_a_half_that_does_not_fit_is_refused(torch: Any):
    import codegen.torch as cgt

    for device, rows, message in (
        ("cpu", 20, r"gate_proj\.weight is \(20, 7\), but \(10, 7\) is needed; load"),
        ("meta", 10, r"gate_up\.weight has no memory, .* load it together with up_proj\.weight"),
    ):
        layer = cgt.SwiGLU(7, 10, device=device)
        with pytest.raises(RuntimeError, match=message):
            layer.load_state_dict({"gate_proj.weight": torch.zeros(rows, 7)}, strict=False)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ([[1.0]], r"gate_proj\.weight is a list, but a tensor is needed; load a tensor"),
        ("meta", r"gate_proj\.weight has no memory.*; load weights that both have memory"),
    ],
)
def test_weights_that_cannot_be_joined_are_reported(torch: Any, wrong: Any, message: str):
    """`load_state_dict` lists them with the other errors, also if only one of two is wrong."""
    import codegen.torch as cgt

    gate = torch.zeros(10, 7, device="meta") if wrong == "meta" else wrong
    for strict in (True, False):
        with pytest.raises(RuntimeError, match=message):
            cgt.SwiGLU(7, 10).load_state_dict(
                {"gate_proj.weight": gate, "up_proj.weight": torch.zeros(10, 7)}, strict=strict
            )
