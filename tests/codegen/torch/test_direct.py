"""Calls with plain tensors bypass PyTorch's dispatcher; results equal the custom operators'."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from coordgraph import LaunchError
from tests.codegen.torch.conftest import Make


def dispatched(torch: Any, work: Callable[[], Any]) -> list[str]:
    """The custom operators that a function calls by PyTorch's dispatcher."""
    with torch.autograd.profiler.profile() as profile:
        work()
    return [e.name for e in profile.function_events if e.name.startswith("coordgraph::")]


def by_dispatcher(torch: Any, work: Callable[[], Any]) -> Any:
    """Call a function in a `TorchFunctionMode`, in which products go through the dispatcher."""

    class Mode(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None):
            return func(*args, **(kwargs or {}))

    with Mode():
        assert dispatched(torch, work)
        return work()


def equal(torch: Any, ours: Any, theirs: Any) -> None:
    """Assert that sequences of tensors, or of None, have the same bits, types and strides."""
    assert len(ours) == len(theirs)
    for x, y in zip(ours, theirs, strict=True):
        assert (x is None) == (y is None)
        if x is not None:
            assert (x.dtype, x.shape, x.stride()) == (y.dtype, y.shape, y.stride())
            assert torch.equal(x, y)


X, W, BIAS, A, B = (2, 5, 8), (6, 8), (6,), (5, 8), (8, 6)
CASES: dict[str, tuple[Callable[..., Any], list[tuple[int, ...]]]] = {
    "linear": (lambda t, x, w: t.linear(x, w), [X, W]),
    "linear with bias": (lambda t, x, w, b: t.linear(x, w, b), [X, W, BIAS]),
    "linear, column-major weight": (lambda t, x, w, b: t.linear(x, w.t(), b), [X, (8, 6), BIAS]),
    "linear, a column": (lambda t, x, w, b: t.linear(x, w, b), [(10, 8), W, (10, 1)]),
    "linear of a vector": (lambda t, x, w, b: t.linear(x, w, b), [(8,), W, BIAS]),
    "matmul": (lambda t, a, b: t.matmul(a, b), [A, B]),
    "matmul, transposed": (lambda t, a, b: t.matmul(a.t(), b.t()), [(8, 5), W]),
    "matmul, every second column": (lambda t, a, b: t.matmul(a[:, ::2], b), [(5, 16), B]),
    "matmul, broadcast": (lambda t, a, b: t.matmul(a, b), [(2, 1, 5, 8), (3, 8, 6)]),
    "invariant": (lambda t, a, b: t.matmul(a, b, invariant=True), [A, B]),
    "bmm": (lambda t, a, b: t.bmm(a, b), [(3, 5, 8), (3, 8, 6)]),
    "addmm": (lambda t, c, a, b: t.addmm(c, a, b, beta=0.5, alpha=2), [(5, 6), A, B]),
    "addmm, a column": (lambda t, c, a, b: t.addmm(c, a, b), [(5, 1), A, B]),
    "addmm, a scaled row": (lambda t, c, a, b: t.addmm(c, a, b, alpha=3), [BIAS, A, B]),
    "addmm, alpha 0": (lambda t, c, a, b: t.addmm(c, a, b, alpha=0), [(5, 6), A, B]),
    "gated": (lambda t, x, w, b: t.gated(x, w, b), [X, W, BIAS]),
    "gated, recomputed": (lambda t, x, w: t.gated(x, w, recompute=True), [X, W]),
}


def results(torch: Any, function: Callable[..., Any], given: list[Any], twice: bool) -> list[Any]:
    """A function's result, its gradients and, if `twice`, the gradients of the gradients."""
    import codegen.torch as cgt

    d = function(cgt, *given)
    if not d.requires_grad:
        return [d]
    wanted = [x for x in given if x.requires_grad]
    seed = torch.arange(d.numel(), dtype=d.dtype).view_as(d) / 8
    options = {"create_graph": twice, "allow_unused": True}
    first = torch.autograd.grad(d, wanted, seed, **options)
    found = [d.detach(), *(None if x is None else x.detach() for x in first)]
    total: Any = sum((x * x).sum() for x in first if x is not None)
    if twice and total.requires_grad:
        found += torch.autograd.grad(total, wanted, allow_unused=True)
    return found


@pytest.mark.parametrize("name", CASES)
def test_both_paths_are_equal(torch: Any, make: Make, name: str):
    function, shapes = CASES[name]
    plain = [make(*s).detach() for s in shapes]
    every = [x.clone().requires_grad_() for x in plain]
    last = [*plain[:-1], every[-1]]
    for given, twice in ((plain, False), (every, False), (every, True), (last, False)):
        work = lambda given=given, twice=twice: results(torch, function, given, twice)  # noqa: E731
        assert not dispatched(torch, work)
        equal(torch, work(), by_dispatcher(torch, work))


def test_groups(torch: Any, make: Make):
    import codegen.torch as cgt

    ends = torch.tensor([2, 2, 4], dtype=torch.int32)
    for of_a, of_b in (((5, 8), (3, 8, 6)), ((3, 5, 8), (8, 6)), ((5, 8), (8, 6))):

        def work(a: Any = make(*of_a), b: Any = make(*of_b)) -> Any:  # noqa: B008
            d = cgt.grouped_mm(a, b, offs=ends)
            return d.detach(), *torch.autograd.grad(d.square().sum(), (a, b))

        assert not dispatched(torch, work)
        equal(torch, work(), by_dispatcher(torch, work))


@pytest.mark.parametrize("recompute", [False, True])
def test_gated_groups(torch: Any, make: Make, recompute: bool):
    """Calls with `offs` need no dispatcher; every operator with an `offs` of a subclass uses it."""
    ends = torch.tensor([2, 2, 4], dtype=torch.int32)
    given = [make(5, 8), make(3, 6, 8), make(3, 6)]
    subclass = type("Subclass", (torch.Tensor,), {})

    def function(t: Any, *given: Any, offs: Any = ends) -> Any:
        return t.gated(*given, offs=offs, recompute=recompute)

    def work() -> Any:
        return results(torch, function, given, True)

    assert not dispatched(torch, work)
    equal(torch, work(), by_dispatcher(torch, work))
    of_subclass = partial(function, offs=ends.as_subclass(subclass))
    found = dispatched(torch, lambda: results(torch, of_subclass, given, False))
    names = ("gated_with_sums", "gated_gradient"), ("gated", "gated_gradient_of_product")
    assert {*found} == {f"coordgraph::{name}" for name in (*names[recompute], "grouped_mm")}


@pytest.mark.parametrize("name", ["bfloat16", "float16"])
def test_autocast(torch: Any, make: Make, name: str):
    import codegen.torch as cgt

    x, w, bias = (make(*s, dtype=torch.float32) for s in (X, W, BIAS))

    def work() -> Any:
        with torch.autocast("cpu", dtype=getattr(torch, name)):
            d = cgt.linear(x, w, bias), cgt.gated(x, w), cgt.matmul(x.double(), w.double().t())
        loss = sum(y.double().sum() for y in d)
        return *(y.detach() for y in d), *torch.autograd.grad(loss, (x, w, bias))

    assert not dispatched(torch, work)
    found = work()
    assert [y.dtype for y in found[:3]] == [getattr(torch, name)] * 2 + [torch.float64]
    equal(torch, found, by_dispatcher(torch, work))


@pytest.mark.parametrize("mode", ["no_grad", "inference_mode"])
def test_without_gradients(torch: Any, make: Make, mode: str):
    import codegen.torch as cgt

    x, layer = make(2, 5, 8), cgt.Linear(8, 6, dtype=torch.float64)

    def work() -> Any:
        with getattr(torch, mode)():
            return (layer(x),)

    assert not dispatched(torch, work)
    (d,) = work()
    assert not d.requires_grad
    assert d.is_inference() == (mode == "inference_mode")
    equal(torch, work(), by_dispatcher(torch, work))


def test_results_can_be_changed_in_place(torch: Any, make: Make):
    import codegen.torch as cgt

    c, a, b, x, w = (make(*s) for s in ((5, 6), A, B, X, W))
    for work in (
        lambda: cgt.linear(x, w),
        lambda: cgt.matmul(a, b),
        lambda: cgt.addmm(c, a, b, alpha=0),
        lambda: cgt.gated(x, w),
    ):
        d = work()
        right = (d.detach() + 1) * 2
        assert torch.equal(d.add_(1).mul_(2), right)
        d.sum().backward()


def test_out(torch: Any, make: Make):
    import codegen.torch as cgt

    a, b, out = make(*A), make(*B), torch.empty(5, 6, dtype=torch.float64)
    with torch.no_grad():
        assert not dispatched(torch, lambda: cgt.matmul(a, b, out=out))
        assert torch.equal(out, cgt.matmul(a, b))
    with pytest.raises(LaunchError, match="requires a gradient"):
        cgt.matmul(a, b, out=out)


def test_tensors_for_the_dispatcher(torch: Any, make: Make):
    """Subclasses, lazily negated tensors and tensors without memory are dispatched."""
    import codegen.torch as cgt

    class Own(torch.Tensor):
        pass

    a, b = make(5, 8).detach(), make(8, 1).detach()
    own = a.as_subclass(Own)
    assert dispatched(torch, lambda: cgt.matmul(own, b))
    assert type(cgt.matmul(own, b)) is Own
    negated = torch.view_as_complex(torch.stack([a[:, 0], a[:, 1]], -1)).conj().imag
    assert negated.is_neg()
    column, row = negated[:, None], b.t()[:, :3]
    torch.testing.assert_close(cgt.matmul(column, row), column @ row)
    with torch._subclasses.FakeTensorMode() as mode:
        fake = mode.from_tensor(a)
        assert type(cgt.matmul(fake, mode.from_tensor(b))) is type(fake)
    assert cgt.matmul(a.to("meta"), b.to("meta")).is_meta


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch.jit is deprecated
def test_transforms_and_traces_are_dispatched(torch: Any, make: Make):
    import codegen.torch as cgt

    a, b = make(5, 8).detach(), make(8, 6).detach()
    batch = make(3, 5, 8).detach()
    assert dispatched(torch, lambda: torch.vmap(lambda x: cgt.matmul(x, b))(batch))
    traced = torch.jit.trace(lambda a, b: cgt.matmul(a, b), (a, b))
    assert "coordgraph::matmul" in str(traced.graph)
    torch.testing.assert_close(traced(a + 1, b), (a + 1) @ b)
    graph = torch.fx.experimental.proxy_tensor.make_fx(lambda a, b: cgt.matmul(a, b))(a, b)
    assert "coordgraph.matmul" in graph.code
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(a, a)
        assert dispatched(torch, lambda: cgt.matmul(dual, b))


def test_gradients_that_pytorch_does_not_record(torch: Any, make: Make):
    """Under `_AutoDispatchBelowAutograd`, neither PyTorch's product nor ours records gradients."""
    import codegen.torch as cgt

    a, b = make(5, 8), make(8, 6)
    with torch._C._AutoDispatchBelowAutograd():
        assert not (a @ b).requires_grad
        assert not cgt.matmul(a, b).requires_grad


def test_a_pytorch_without_the_needed_functions(
    torch: Any, make: Make, monkeypatch: pytest.MonkeyPatch
):
    import codegen.torch as cgt
    from codegen.torch import direct

    assert direct._known
    monkeypatch.setattr(direct, "_known", False)
    a, b = make(5, 8), make(8, 6)
    assert dispatched(torch, lambda: cgt.matmul(a, b)) == ["coordgraph::matmul"]


def test_errors_are_those_of_the_operators(torch: Any, make: Make):
    import codegen.torch as cgt

    for a, b in ((make(5, 8), make(7, 6)), (make(5, 8), make(8, 6).float())):
        with pytest.raises(LaunchError) as ours:
            cgt.matmul(a, b)
        with pytest.raises(LaunchError) as theirs:
            torch.ops.coordgraph.matmul(a, b)
        assert str(ours.value) == str(theirs.value)
