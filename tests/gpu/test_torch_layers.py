"""Layers of `codegen.torch` on the GPU: layouts of gradients, and layers inside of layers."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from tests.gpu.test_torch_ops import check, check_gradients, normal

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.usefixtures("gpu")


@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_the_gradient_of_an_activated_layer_s_weight_has_the_weight_s_layout(activation: str):
    import codegen.torch as cgt

    given = normal(130, 72), normal(136, 72), normal(136)
    act = getattr(torch.nn.functional, activation)
    ours = partial(cgt.linear, activation=activation)
    check_gradients(ours, lambda *x: act(torch.nn.functional.linear(*x)), *given)
    (found,) = torch.autograd.grad(ours(*given).sum(), given[1])
    assert found.is_contiguous()


def test_the_gradient_of_grouped_weights_has_the_weights_layout():
    import codegen.torch as cgt

    ends = (40, 40, 130)
    offs = torch.tensor(ends, dtype=torch.int32, device="cuda")
    x, weights = normal(130, 72), normal(3, 136, 72)

    def theirs(x: Any, weights: Any) -> Any:
        spans = zip((0, *ends), ends, strict=False)
        return torch.cat([x[i:j] @ weights[group].T for group, (i, j) in enumerate(spans)])

    def ours(x: Any, weights: Any) -> Any:
        return cgt.grouped_mm(x, weights.mT, offs=offs)

    check_gradients(ours, theirs, x, weights)
    (found,) = torch.autograd.grad(ours(x, weights).sum(), weights)
    assert found.is_contiguous()


def test_normalized_weights_of_gate_up():
    """Repeated calls multiply by the weight that each call computes."""
    import codegen.torch as cgt

    layer = cgt.SwiGLU(72, 136, device="cuda", dtype=torch.bfloat16)
    torch.nn.utils.parametrizations.weight_norm(layer.gate_up)
    x = normal(130, 72).detach()
    for _ in range(12):
        with torch.no_grad():
            gate, up = (x.float() @ layer.gate_up.weight.float().T).chunk(2, -1)
            right = torch.nn.functional.silu(gate) * up @ layer.down.weight.float().T
            check(layer(x), right)
            layer.gate_up.parametrizations.weight.original0.mul_(0.9)
    layer(x).sum().backward()
    assert layer.gate_up.parametrizations.weight.original1.grad.any()


def test_a_bias_of_one_element_is_added_before_the_activation():
    import codegen.torch as cgt

    given = normal(2, 130, 72), normal(136, 72), normal(1)
    wide = [x.detach().float().requires_grad_() for x in given]
    d, exact = cgt.linear(*given, activation="relu"), torch.nn.functional.linear(*wide).relu()
    check(d, exact)
    (found,), (right,) = (
        torch.autograd.grad(result.sum(), bias)
        for result, bias in ((d.float(), given[2]), (exact, wide[2]))
    )
    check(found, right)


@pytest.mark.filterwarnings("ignore")
def test_vectorized_jacobians_of_linear():
    import codegen.torch as cgt

    x, w = normal(2, 3, 16).detach(), normal(8, 16).detach()
    found = torch.autograd.functional.jacobian(cgt.linear, (x, w), vectorize=True)
    right = torch.autograd.functional.jacobian(
        torch.nn.functional.linear, (x.float(), w.float()), vectorize=True
    )
    for one, other in zip(found, right, strict=True):
        check(one, other)


def test_gate_and_up_are_loaded_from_different_devices():
    import codegen.torch as cgt

    gate, up, down = normal(40, 24), normal(40, 24).cpu(), normal(24, 40)
    layer = cgt.SwiGLU(24, 40, device="cuda", dtype=torch.bfloat16)
    names = ("gate_proj.weight", "up_proj.weight", "down_proj.weight")
    layer.load_state_dict(dict(zip(names, (gate, up, down), strict=True)))
    assert torch.equal(layer.gate_up.weight, torch.cat([gate, up.cuda()]))


def test_an_activated_layer_of_batches_without_k():
    import codegen.torch as cgt

    bias = normal(40)
    y = cgt.linear(normal(2, 3, 0), normal(40, 0), bias, activation="relu")
    assert torch.equal(y, bias.relu().expand(2, 3, 40))


def test_compiled_autograd_compiles_the_backward_pass():
    import codegen.torch as cgt

    x, weight = normal(130, 72), normal(136, 72)
    compiler = torch.compile(backend="eager", fullgraph=True)
    for _ in range(3):  # the later calls repeat the first one
        y = cgt.linear(x, weight)
        right = torch.autograd.grad(y.sum(), (x, weight), retain_graph=True)
        x.grad = weight.grad = None
        with torch._dynamo.compiled_autograd._enable(compiler):
            y.sum().backward()
        assert torch.equal(x.grad, right[0])
        assert torch.equal(weight.grad, right[1])


def test_distributed_tensors_are_multiplied_by_kernels():
    """On a mesh of one GPU."""
    import codegen.torch as cgt

    distributed = pytest.importorskip("torch.distributed")
    tensors = pytest.importorskip("torch.distributed.tensor")
    if not distributed.is_available() or distributed.is_initialized():
        pytest.skip("this PyTorch has no torch.distributed, or a process group is in use")
    store = distributed.HashStore()
    distributed.init_process_group("nccl", store=store, rank=0, world_size=1)
    try:
        mesh = distributed.init_device_mesh("cuda", (1,))
        x, weight, bias = (normal(*s).detach() for s in ((130, 72), (136, 72), (136,)))
        given = [
            tensors.distribute_tensor(t, mesh, [tensors.Shard(0)]).requires_grad_()
            for t in (x, weight, bias)
        ]
        y = cgt.linear(*given)
        assert torch.equal(y.full_tensor(), cgt.linear(x, weight, bias))
        y.full_tensor().sum().backward()
        assert all(t.grad.shape == t.shape for t in given)
    finally:
        distributed.destroy_process_group()
