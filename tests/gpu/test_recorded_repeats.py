"""Repeated calls of `codegen.torch` that record a gradient: values, devices and threads."""

from __future__ import annotations

import threading
from collections.abc import Callable
from importlib import import_module
from typing import Any

import pytest

from tests.gpu.test_torch_ops import check_gradients, normal

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.usefixtures("gpu")

M, N, K = 64, 96, 128
CALLS: dict[str, tuple[Callable[..., Any], Callable[..., Any], list[tuple[int, ...]]]] = {
    "linear": (
        lambda t, *x: t.linear(*x),
        torch.nn.functional.linear,
        [(2, 32, K), (N, K), (N,)],
    ),
    "linear, no bias": (
        lambda t, *x: t.linear(*x),
        torch.nn.functional.linear,
        [(M, K), (N, K)],
    ),
    "linear, gelu": (
        lambda t, *x: t.linear(*x, activation="gelu"),
        lambda *x: torch.nn.functional.gelu(torch.nn.functional.linear(*x)),
        [(M, K), (N, K), (N,)],
    ),
    "addmm": (
        lambda t, *x: t.addmm(*x, beta=0.5, alpha=2),
        lambda *x: torch.addmm(*x, beta=0.5, alpha=2),
        [(M, N), (M, K), (K, N)],
    ),
    "bmm": (lambda t, *x: t.bmm(*x), torch.bmm, [(3, M, K), (3, K, N)]),
}
"""For each name: a call, PyTorch's function that computes the same, and the shapes of tensors."""


@pytest.mark.parametrize("name", CALLS)
def test_values_and_gradients_of_each_call(name: str):
    """Each of many equal calls multiplies its own tensors, and so do its gradients."""
    import codegen.torch as cgt

    ours, theirs, shapes = CALLS[name]
    for _ in range(10):
        check_gradients(lambda *x: ours(cgt, *x), theirs, *(normal(*shape) for shape in shapes))


def test_a_repeated_call_and_its_gradients_only_launch(monkeypatch: pytest.MonkeyPatch):
    """Arguments are not checked again, even in autograd's thread and during a graph capture."""
    import codegen.torch as cgt

    ops, functions = (import_module(f"codegen.torch.{x}") for x in ("ops", "functions"))
    x, weight, bias = normal(2, 32, K), normal(N, K), normal(N)
    grad = torch.randn(2, 32, N, device="cuda").bfloat16()

    def work() -> Any:
        d = cgt.linear(x, weight, bias)
        return d, *torch.autograd.grad(d, (x, weight, bias), grad)

    def fail(*_: Any) -> None:
        raise AssertionError("the call was checked")

    for _ in range(9):
        work()
    # Without the graph of `d`: as long as it lives, PyTorch's nodes for the gradients of the leaves
    # belong to the stream of this call, and no capture may wait for that stream.
    expected = [tensor.detach() for tensor in work()]
    monkeypatch.setattr(ops, "_shape", fail)
    monkeypatch.setattr(functions, "check_dense", fail)
    for ours, right in zip(work(), expected, strict=True):
        assert torch.equal(ours, right)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = work()
    with torch.no_grad():
        x.mul_(2)
    graph.replay()
    assert torch.equal(captured[2], 2 * expected[2])  # the gradient of the weight is linear in x


def test_changed_factors_are_refused():
    """PyTorch notices a weight that is changed between a repeated call and its backward pass."""
    import codegen.torch as cgt

    x, weight = normal(M, K), normal(N, K)
    for _ in range(9):
        d = cgt.linear(x, weight)
        torch.autograd.grad(d, (x, weight), torch.ones_like(d))
    d = cgt.linear(x, weight)
    with torch.no_grad():
        weight.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        torch.autograd.grad(d, (x, weight), torch.ones_like(d))


def test_autocast():
    """Calls whose weights autocast converts record the gradients of the weights as they are."""
    import codegen.torch as cgt

    x, weight, bias = (normal(*s, dtype=torch.float32) for s in ((M, K), (N, K), (N,)))
    for number in range(50):
        with torch.autocast("cuda", dtype=torch.bfloat16):
            d = cgt.linear(x, weight, bias)
        assert d.dtype is torch.bfloat16
        found = torch.autograd.grad(d, (x, weight, bias), torch.ones_like(d))
        assert [y.dtype for y in found] == [torch.float32] * 3
        if not number:
            exact = torch.ones(M, N, device="cuda").t() @ x.detach()
            torch.testing.assert_close(found[1], exact, rtol=2e-2, atol=2e-1)


def test_threads_and_devices():
    """Repeated calls in other threads, and on a second GPU if there is one, return their own D."""
    import codegen.torch as cgt

    failures: list[BaseException] = []

    def work(device: str) -> None:
        try:
            torch.manual_seed(0)
            for _ in range(12):
                x, weight = (
                    torch.randn(*s, device=device).bfloat16().requires_grad_()
                    for s in ((M, K), (N, K))
                )
                d = cgt.linear(x, weight)
                ones = torch.ones_like(d)
                of_x, of_weight = torch.autograd.grad(d, (x, weight), ones)
                near: Any = {"rtol": 2e-2, "atol": 2e-1}
                torch.testing.assert_close(d, torch.nn.functional.linear(x, weight), **near)
                torch.testing.assert_close(of_x, ones @ weight, **near)
                torch.testing.assert_close(of_weight, ones.t() @ x, **near)
        except BaseException as error:
            failures.append(error)

    devices = [f"cuda:{index}" for index in range(min(2, torch.cuda.device_count()))]
    threads = [threading.Thread(target=work, args=(device,)) for device in devices * 2]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures[0]
    for device in devices * 2:
        work(device)
    assert not failures, failures[0]
