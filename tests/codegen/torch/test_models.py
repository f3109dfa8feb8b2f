"""`Linear`, `replace_linears` and `use_kernels`: PyTorch models that call generated kernels."""

from __future__ import annotations

import pickle
from typing import Any, cast

import pytest

from coordgraph import LaunchError
from tests.codegen.torch.conftest import Make


def operators(torch: Any, work: Any) -> list[str]:
    """The names of the PyTorch operators that a function calls."""
    mode: Any = torch.utils._python_dispatch.TorchDispatchMode
    called: list[str] = []

    class Record(mode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None):
            called.append(str(func))
            return func(*args, **(kwargs or {}))

    with Record():
        work()
    return called


def test_replace_linears(torch: Any, make: Make):
    import codegen.torch as cgt

    class Own(torch.nn.Linear):
        pass

    nn = torch.nn
    model = nn.Sequential(nn.Linear(7, 6), nn.ReLU(), nn.Sequential(nn.Linear(6, 4)), Own(4, 4))
    x, states = make(5, 7, dtype=torch.float32), list(model.state_dict())
    before = model(x)
    assert cgt.replace_linears(model, lambda name, layer: name != "0") == ["2.0"]
    assert cgt.replace_linears(model) == ["0"]
    assert [type(layer) for layer in model] == [cgt.Linear, nn.ReLU, nn.Sequential, Own]
    torch.testing.assert_close(model(x), before)
    called = operators(torch, lambda: model(x))
    assert called.count("coordgraph.addmm.default") == 2
    assert list(model.state_dict()) == states
    copied = torch.nn.Linear(7, 6, bias=False)
    assert cgt.replace_linears(copied) == [""]
    assert "coordgraph.matmul.default" in operators(torch, lambda: copied(x))


def test_models_are_traced_symbolically(torch: Any, make: Make):
    """`torch.fx.symbolic_trace` records calls of the functions, by layers and in other code."""
    import codegen.torch as cgt

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = torch.nn.Linear(7, 6), cgt.SwiGLU(6, 5)

        def forward(self, x: Any, weight: Any) -> Any:
            return cgt.matmul(self.second(self.first(x)), weight)

    model = Model()
    assert cgt.replace_linears(model) == ["first"]
    traced = torch.fx.symbolic_trace(model)
    x, weight = make(3, 7, dtype=torch.float32), make(6, 2, dtype=torch.float32)
    assert torch.equal(traced(x, weight), model(x, weight))
    called = [node.target.__name__ for node in traced.graph.nodes if node.op == "call_function"]
    assert called == ["linear", "gated", "linear", "matmul"]


def test_linear_is_a_layer(torch: Any, make: Make):
    import codegen.torch as cgt

    layer = cgt.Linear(7, 6, dtype=torch.float64)
    again, x = pickle.loads(pickle.dumps(layer)), make(5, 7)
    torch.testing.assert_close(again(x), torch.nn.functional.linear(x, layer.weight, layer.bias))
    assert torch.autograd.gradcheck(layer, (x,))


def test_use_kernels(torch: Any, make: Make):
    import codegen.torch as cgt

    linear = torch.nn.functional.linear
    x, w, bias = (make(*s, dtype=torch.bfloat16) for s in ((5, 7), (6, 7), (6,)))
    works = {
        "linear": lambda: linear(x, weight=w, bias=bias),
        "@": lambda: x @ w.T,
        "matmul": lambda: torch.matmul(x, other=w.T),
        "mm": lambda: x.mm(w.T),
        "addmm": lambda: torch.addmm(bias, x, w.T, alpha=2),
        "bmm": lambda: torch.bmm(x[None], w.T[None]),
    }
    for name, work in works.items():
        right = work()
        with cgt.use_kernels(devices=("cpu",)):
            assert any(op.startswith("coordgraph.") for op in operators(torch, work)), name
            torch.testing.assert_close(work(), right, atol=2e-2, rtol=2e-2)
        assert not any(op.startswith("coordgraph.") for op in operators(torch, work))


def test_products_that_do_not_fit_are_those_of_pytorch(torch: Any, make: Make):
    import codegen.torch as cgt

    a, b = make(5, 7, dtype=torch.bfloat16), make(7, 6, dtype=torch.bfloat16)
    works = {
        "on the CPU": (cgt.use_kernels(), lambda: a @ b),
        "float64": (cgt.use_kernels(devices=("cpu",)), lambda: a.double() @ b.double()),
        "out": (
            cgt.use_kernels(devices=("cpu",)),
            lambda: torch.mm(a.detach(), b.detach(), out=torch.empty_like(a @ b)),
        ),
    }
    for name, (mode, work) in works.items():
        with mode:
            called = operators(torch, work)
        assert any(op.startswith("aten.mm.") for op in called), name
        assert "out" in name or "coordgraph.matmul.default" not in called, name
    with pytest.raises(RuntimeError), cgt.use_kernels(devices=("cpu",)):
        torch.matmul(a, b.double())  # PyTorch, not coordgraph, raises this error


@pytest.mark.filterwarnings("ignore:This overload of addmm is deprecated:UserWarning")
def test_deprecated_signatures_are_those_of_pytorch(torch: Any):
    """`addmm` still takes beta and alpha before the tensors that they multiply."""
    import codegen.torch as cgt

    c, a = torch.randn(5, 6).bfloat16(), torch.randn(5, 7).bfloat16()
    b, old = torch.randn(7, 6).bfloat16(), torch.addmm
    for work in (
        lambda: old(2, c, 3, a, b),
        lambda: old(2, c, a, b),
        lambda: c.addmm(2, 3, a, b),
        lambda: c.addmm(2, a, b),
    ):
        right = work()
        with cgt.use_kernels(devices=("cpu",)):
            assert torch.equal(work(), right)


def test_tensors_of_classes_that_override_operators_are_left_to_pytorch(torch: Any):
    """Such a class, as DTensor, has rules for PyTorch's operators alone."""
    import codegen.torch as cgt

    class OwnOperators(torch.Tensor):
        @classmethod
        def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None):
            assert func.namespace == "aten", func
            with torch._C._DisableTorchDispatch():
                return func(*args, **(kwargs or {}))

    class OwnFunctions(torch.Tensor):
        @classmethod
        def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None):
            assert func in (torch.matmul, torch.Tensor.matmul)
            return "own"

    class Named(torch.Tensor):
        """A class that overrides nothing."""

    a, b = torch.randn(5, 7).bfloat16(), torch.randn(7, 6).bfloat16()
    mode = cgt.use_kernels(devices=("cpu",))
    own = torch.Tensor._make_subclass(OwnOperators, a)
    with mode:
        torch.testing.assert_close(torch.matmul(own, b), a @ b, atol=2e-2, rtol=2e-2)
        assert torch.matmul(torch.Tensor._make_subclass(OwnFunctions, a), b) == "own"
    named = a.as_subclass(Named)

    def product() -> None:
        with mode:
            torch.matmul(named, b)

    assert "coordgraph.matmul.default" in operators(torch, product)


def test_traces_inside_of_use_kernels_have_operators_of_kernels(torch: Any):
    """Fake tensors, which a trace computes with, override operators too."""
    import codegen.torch as cgt

    make_fx = pytest.importorskip("torch.fx.experimental.proxy_tensor").make_fx
    a, b = torch.randn(5, 7).bfloat16(), torch.randn(7, 6).bfloat16()
    with cgt.use_kernels(devices=("cpu",)):
        graph = make_fx(lambda a, b: a @ b, tracing_mode="fake")(a, b)
    assert "coordgraph.matmul" in graph.code


def test_distributed_tensors_are_left_to_pytorch(torch: Any):
    import codegen.torch as cgt

    distributed = pytest.importorskip("torch.distributed")
    if not distributed.is_available() or distributed.is_initialized():
        pytest.skip("this PyTorch has no torch.distributed, or a process group is in use")
    tensors = pytest.importorskip("torch.distributed.tensor")
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    try:
        mesh = distributed.init_device_mesh("cpu", (1,))
        a, b = torch.randn(4, 7).bfloat16(), torch.randn(7, 6).bfloat16()
        sharded = tensors.distribute_tensor(a, mesh, [tensors.Shard(0)])
        whole = tensors.distribute_tensor(b, mesh, [tensors.Replicate()])
        with cgt.use_kernels(devices=("cpu",)):
            d = sharded @ whole
        torch.testing.assert_close(d.to_local(), a @ b)
    finally:
        distributed.destroy_process_group()


@pytest.mark.parametrize("outside", [False, True])
def test_use_kernels_is_compiled(torch: Any, make: Make, outside: bool):
    import codegen.torch as cgt

    a, b = make(5, 7), make(7, 6)
    mode = cgt.use_kernels(dtypes=(torch.float64,), devices=("cpu",))
    graphs = torch._dynamo.testing.EagerAndRecordGraphs()

    def product(a: Any, b: Any) -> Any:
        if outside:
            return a @ b
        with mode:
            return a @ b

    compiled = torch.compile(product, fullgraph=True, backend=graphs)
    if outside:
        with mode:
            d = compiled(a, b)
    else:
        d = compiled(a, b)
    torch.testing.assert_close(d, a @ b)
    assert "coordgraph.matmul" in graphs.graphs[0].code


def test_use_kernels_decorates_functions(torch: Any, make: Make):
    import codegen.torch as cgt

    @cgt.use_kernels(dtypes=(torch.float64,), devices=("cpu",))
    def product(a: Any, b: Any) -> Any:
        """A docstring."""
        return a @ b

    assert product.__doc__ == "A docstring."
    a, b = make(5, 7), make(7, 6)
    for _ in "twice":
        called = operators(torch, lambda: torch.testing.assert_close(product(a, b), a @ b))
        assert "coordgraph.matmul.default" in called
    assert "coordgraph.matmul.default" not in operators(torch, lambda: a @ b)
    graphs = torch._dynamo.testing.EagerAndRecordGraphs()
    compiled = torch.compile(product, fullgraph=True, backend=graphs)
    torch.testing.assert_close(compiled(a, b), a @ b)
    assert "coordgraph.matmul" in graphs.graphs[0].code


def test_use_kernels_refuses_what_has_no_kernels(torch: Any):
    import codegen.torch as cgt

    cases: tuple[tuple[dict[str, Any], str], ...] = (
        ({"devices": "cpu"}, r"devices = 'cpu' is no sequence; .* devices=\('cpu',\)"),
        ({"devices": ["gpu"]}, r"'gpu' in devices is unknown; choose among \('cpu', 'cuda'\)"),
        ({"dtypes": torch.float32}, r"pass a tuple, as dtypes=\(torch.float32,\)"),
        ({"dtypes": ["bf16"]}, r"'bf16' in dtypes is unknown; choose among \(torch.bfloat16"),
    )
    for options, message in cases:
        with pytest.raises(LaunchError, match=message):
            cgt.use_kernels(**options)


def test_autocast_inside_of_use_kernels(torch: Any, make: Make):
    import codegen.torch as cgt

    a, b = make(5, 7, dtype=torch.float32), make(7, 6, dtype=torch.float32)
    with cgt.use_kernels(devices=("cpu",)), torch.autocast("cpu", dtype=torch.bfloat16):
        called = operators(torch, lambda: a @ b)
        assert (a @ b).dtype == torch.bfloat16
    assert "coordgraph.matmul.default" in called


def test_rows_do_not_depend_on_the_batch(torch: Any, make: Make):
    """In `use_kernels(invariant=True)`, a row has the same result and gradient in every batch."""
    import codegen.torch as cgt

    layer = torch.nn.Linear(200, 24)
    x = torch.randn(70, 200, generator=torch.Generator().manual_seed(0))
    kind = {"dtypes": (torch.float32,), "devices": ("cpu",)}

    def results(rows: Any) -> tuple[Any, Any]:
        rows = rows.detach().requires_grad_()
        with cgt.use_kernels(**kind, invariant=True):
            d = layer(rows)
        return d.detach(), torch.autograd.grad(d.sum(), rows)[0]

    whole = results(x)
    for m in (1, 2, 33):
        for part, all_rows in zip(results(x[:m]), whole, strict=True):
            assert torch.equal(part, all_rows[:m])
    assert torch.equal(results(x.t().contiguous().t())[0], whole[0])
    with pytest.raises(LaunchError, match="invariant"):
        cgt.use_kernels(invariant=cast(Any, None))
