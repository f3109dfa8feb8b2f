"""Repeated calls that record a gradient only launch, and so do the products of their gradients."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

import pytest

from codegen.call.prepared_calls import forget_prepared
from tests.codegen.torch.test_direct import dispatched
from tests.codegen.torch.test_repeated_calls import Launches, launches, random
from tests.codegen.torch.test_repeats import K, M, N, gpu, only_launched

__all__ = ["gpu", "launches"]
pytestmark = pytest.mark.usefixtures("forgotten")

CALLS: dict[str, tuple[str, list[tuple[int, ...]], dict[str, Any]]] = {
    "linear": ("linear", [(M, K), (N, K), (N,)], {}),
    "linear, no bias": ("linear", [(M, K), (N, K)], {}),
    "linear, three axes": ("linear", [(2, 32, K), (N, K), (N,)], {}),
    "linear, vector": ("linear", [(K,), (N, K), (N,)], {}),
    "linear, invariant": ("linear", [(M, K), (N, K), (N,)], {"invariant": True}),
    "matmul": ("matmul", [(M, K), (K, N)], {}),
    "bmm": ("bmm", [(3, M, K), (3, K, N)], {}),
    "matmul of batches": ("matmul", [(3, M, K), (3, K, N)], {}),
    "addmm": ("addmm", [(M, N), (M, K), (K, N)], {"beta": 0.5, "alpha": 2}),
}
"""For each name: a function of `codegen.torch`, the shapes of its tensors, and its options."""


def made(torch: Any, name: str) -> tuple[Callable[..., Any], list[Any]]:
    """The call that CALLS[name] names, as a function of tensors, and new tensors with gradients."""
    import codegen.torch as cgt

    function, shapes, options = CALLS[name]
    call = getattr(cgt, function)
    return lambda *given: call(*given, **options), [
        random(torch, *shape).requires_grad_() for shape in shapes
    ]


def gradients(torch: Any, d: Any, given: list[Any]) -> list[Any]:
    """The gradients of `d` for the tensors of `given` that require one, from a gradient of ones."""
    wanted = [x for x in given if x.requires_grad]
    return [*torch.autograd.grad(d, wanted, torch.ones_like(d))]


def repeat(torch: Any, call: Callable[..., Any], given: list[Any], times: int = 8) -> None:
    """Make a call and compute its gradients so often that all only launch."""
    for _ in range(times):
        gradients(torch, call(*given), given)


def unchecked(work: Callable[[], Any], monkeypatch: pytest.MonkeyPatch) -> Any:
    """Call `work` while functions and operators that check the shapes of tensors raise an error."""
    ops = import_module("codegen.torch.ops")

    def fail(*_: Any) -> None:
        raise AssertionError("the call was checked")

    with monkeypatch.context() as patch:
        patch.setattr(ops, "_shape", fail)
        return only_launched(work, monkeypatch)


def layouts(found: list[Any]) -> list[Any]:
    return [(x.shape, x.stride(), x.dtype) for x in found]


@pytest.mark.parametrize("name", CALLS)
def test_a_repeated_call_and_its_gradients_are_only_launched(
    torch: Any, launches: Launches, name: str, monkeypatch: pytest.MonkeyPatch
):
    """Repeated calls launch the kernels that first calls launch, on the new tensors."""
    call, given = made(torch, name)
    d = call(*given)
    expected = [d, *gradients(torch, d, given)]
    count = len(launches.made)
    first = [x[0].function for x in launches.made]
    repeat(torch, call, given)
    _, given = made(torch, name)
    launches.made.clear()
    d = unchecked(lambda: call(*given), monkeypatch)
    assert d.requires_grad
    found = [d, *unchecked(lambda: gradients(torch, d, given), monkeypatch)]
    assert layouts(found) == layouts(expected)
    assert [x[0].function for x in launches.made[:count]] == first
    assert len(launches.made) == count
    pointers = [x[1] for x in launches.made]
    factors = given[1:] if name == "addmm" else given[:2]
    assert {x.data_ptr() for x in factors} <= {*pointers[0]}
    for x in factors:  # the gradient of each factor is a product with the other factor
        assert sum(x.data_ptr() in launched for launched in pointers[1:]) == 1
    if name == "addmm":  # PyTorch computes this gradient, for which nothing is launched
        assert torch.equal(found[1], torch.full((M, N), 0.5, dtype=torch.bfloat16))
    of_factors = found[2:] if name == "addmm" else found[1:3]
    assert {x.data_ptr() for x in of_factors} <= {at for each in pointers[1:] for at in each}


WANTED = [(0,), (1,), (2,), (0, 1), (1, 2), (0, 1, 2)]


@pytest.mark.parametrize("wanted", WANTED)
def test_only_some_tensors_require_a_gradient(torch: Any, launches: Launches, wanted: Any):
    """After calls that record all gradients or none, a call records those of its own tensors."""
    call, given = made(torch, "linear, three axes")
    repeat(torch, call, given)
    plain = [x.detach() for x in given]
    for _ in range(8):
        assert not call(*plain).requires_grad
    some = [x.detach().requires_grad_(index in wanted) for index, x in enumerate(given)]
    for _ in range(6):
        launches.made.clear()
        d = call(*some)
        found = gradients(torch, d, some)
        assert [x.shape for x in found] == [given[index].shape for index in wanted]
        assert len(launches.made) == 1 + sum(index < 2 for index in wanted)
        assert not call(*plain).requires_grad
        with torch.no_grad():
            assert not call(*given).requires_grad
        assert call(*given).requires_grad


def test_other_layouts(torch: Any, launches: Launches, monkeypatch: pytest.MonkeyPatch):
    """A call with other strides, types or shapes launches what it launches as a first call."""
    call, given = made(torch, "linear")
    repeat(torch, call, given)
    x, w, bias = (y.detach() for y in given)
    for other in (
        [random(torch, M, 2 * K)[:, :K], w, bias],
        [x, random(torch, K, N).t(), bias],
        [random(torch, M + 8, K), w, bias],
        [y.half() for y in (x, w, bias)],
        [x, w, random(torch, 1, N)],
    ):
        fresh = [y.requires_grad_() for y in other]
        d = call(*fresh)
        found = [d, *gradients(torch, d, fresh)]
        ours, seen = launches.made[-3:], len(launches.made)
        forget_prepared()
        d = call(*fresh)
        assert layouts(found) == layouts([d, *gradients(torch, d, fresh)])
        for before, after in zip(ours, launches.made[seen:], strict=True):
            assert before[0].function is after[0].function
            assert before[1][0] == after[1][0] or before[1][1] == after[1][1]
        repeat(torch, call, given)
    unchecked(lambda: call(*given), monkeypatch)


@pytest.mark.parametrize("name", CALLS)
def test_tensors_changed_before_the_backward_pass_are_refused(
    torch: Any, launches: Launches, name: str
):
    """PyTorch notices that a factor was changed in place after a repeated call."""
    call, given = made(torch, name)
    repeat(torch, call, given)
    for index in (-1, -2) if name in ("addmm", "bmm", "matmul") else (0, 1):
        d = call(*given)
        with torch.no_grad():
            given[index].add_(1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            gradients(torch, d, given)
        gradients(torch, call(*given), given)


@pytest.mark.parametrize("name", CALLS)
def test_the_same_tensors_are_saved(torch: Any, launches: Launches, name: str):
    """Repeated calls save the tensors that first calls save, as activation checkpointing needs."""
    call, given = made(torch, name)
    saved: list[list[Any]] = []

    def keep(x: Any) -> Any:
        saved[-1].append((x.shape, x.dtype, x.data_ptr()))
        return x

    for _ in range(9):
        saved.append([])
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
            d = call(*given)
        gradients(torch, d, given)
    assert saved[0]
    assert all(each == saved[0] for each in saved)


@pytest.mark.parametrize("name", CALLS)
def test_gradients_of_gradients(torch: Any, launches: Launches, name: str):
    """Gradients of a repeated call can be differentiated, as those of a first call."""
    call, given = made(torch, name)
    first: list[Any] = []
    for number in range(9):
        d = call(*given)
        ones = torch.ones_like(d).requires_grad_()
        of_factors = torch.autograd.grad(d, given, ones, create_graph=True)
        assert all(x.requires_grad for x in of_factors)
        total = sum(x.float().sum() for x in of_factors)
        found = torch.autograd.grad(total, [ones, *given], allow_unused=True)
        shapes = [None if x is None else layouts([x]) for x in found]
        first = first if number else shapes
        assert shapes == first
        assert [x is None for x in found[1:3]] == [False] * 2 or name in ("addmm",)


def test_hooks_and_accumulated_gradients(torch: Any, launches: Launches):
    """Hooks of tensors run once for each backward pass, and gradients add up in `.grad`."""
    import codegen.torch as cgt

    layer: Any = cgt.Linear(K, N, dtype=torch.bfloat16)
    x, seen = random(torch, M, K), list[str]()
    layer.weight.register_hook(lambda grad: seen.append("weight"))
    layer.bias.register_post_accumulate_grad_hook(lambda p: seen.append("bias"))
    for number in range(1, 9):
        d = layer(x)
        d.register_hook(lambda grad: seen.append("d"))
        d.backward(torch.ones_like(d))
        assert sorted(seen) == sorted(["weight", "bias", "d"] * number)
        assert torch.equal(layer.bias.grad, torch.full((N,), M * number, dtype=torch.bfloat16))


def test_results_are_not_views(torch: Any, launches: Launches):
    """A result may be changed in place, and its gradient is that of the changed result."""
    call, given = made(torch, "linear, three axes")
    for _ in range(8):
        d = call(*given)
        assert not d._is_view()
        d.mul_(2)
        (of_bias,) = torch.autograd.grad(d, given[2:], torch.ones_like(d))
        assert torch.equal(of_bias, torch.full((N,), 2.0 * M, dtype=torch.bfloat16))


def test_calls_that_record_nothing(torch: Any, launches: Launches):
    """Where autograd's dispatch key is excluded, repeated calls record no gradient."""
    call, given = made(torch, "linear")
    repeat(torch, call, given)
    with torch._C._AutoDispatchBelowAutograd():
        assert not call(*given).requires_grad
    with torch.inference_mode():
        assert call(*given).is_inference()
    assert call(*given).requires_grad


def test_the_dispatcher_sees_calls_in_modes(torch: Any, launches: Launches):
    """Calls in modes and transforms are dispatched, also after repeated calls with gradients."""
    call, given = made(torch, "linear")
    repeat(torch, call, given)
    x = given[0]
    assert not dispatched(torch, lambda: call(*given))
    assert dispatched(torch, lambda: torch.vmap(lambda y: call(y, *given[1:]))(x[None]))
    assert dispatched(torch, lambda: torch.func.grad(lambda y: call(y, *given[1:]).sum())(x))
    with torch.autograd.forward_ad.dual_level():
        assert dispatched(torch, lambda: call(*given))
    assert not dispatched(torch, lambda: call(*given))


def test_expanded_gradients(torch: Any, launches: Launches):
    """An expanded gradient, such as that of a sum, is copied; products of others only launch."""
    call, given = made(torch, "linear, three axes")
    repeat(torch, call, given)
    for _ in range(9):
        found = torch.autograd.grad(call(*given).sum(), given)
        assert [x.shape for x in found] == [x.shape for x in given]
        assert torch.equal(found[2], torch.full((N,), float(M), dtype=torch.bfloat16))


def test_activations(torch: Any, launches: Launches, monkeypatch: pytest.MonkeyPatch):
    """A repeated call with an activation launches the kernel that also stores the sums."""
    import codegen.torch as cgt

    activated = import_module("codegen.torch.activated")

    def fail(*_: Any) -> None:
        raise AssertionError("the operator was called")

    given = [random(torch, *shape).requires_grad_() for shape in ((M, K), (N, K), (N,))]
    for _ in range(8):
        d = cgt.linear(*given, activation="relu")
        assert [x.shape for x in gradients(torch, d, given)] == [x.shape for x in given]
    launches.made.clear()
    with monkeypatch.context() as patch:
        patch.setattr(activated, "_check", fail)
        d = cgt.linear(*given, activation="relu")
    assert d.requires_grad
    assert len(launches.made) == 1
    assert {d.data_ptr(), d.grad_fn.saved_tensors[2].data_ptr()} <= {*launches.made[0][1]}
