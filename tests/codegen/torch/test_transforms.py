"""`torch.func` and forward-mode differentiation of each function agree with PyTorch's functions."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from importlib import import_module
from typing import Any

import pytest

from coordgraph import LaunchError
from tests.codegen.torch.conftest import Make

ENDS = (2, 2, 5)
# PyTorch's forward mode uses its own deprecated torch.jit. A warning about an operator without a
# rule for vmap makes a test fail.
pytestmark = [
    pytest.mark.filterwarnings("ignore:`torch.jit"),
    pytest.mark.filterwarnings("ignore:Attempted to insert a get_attr Node:UserWarning"),
]


def grouped(torch: Any) -> Any:
    """`grouped_mm` of rows as products of PyTorch; the last rows belong to no group."""

    def function(a: Any, b: Any) -> Any:
        spans = zip((0, *ENDS), ENDS, strict=False)
        parts = [a[first:end] @ b[group] for group, (first, end) in enumerate(spans)]
        return torch.cat([*parts, a[ENDS[-1] :, :1] * 0 * b[0, :1]])

    return function


def gate(torch: Any) -> Any:
    def function(x: Any, w: Any, bias: Any) -> Any:
        first, second = torch.nn.functional.linear(x, w, bias).chunk(2, -1)
        return first * first.sigmoid() * second  # PyTorch's silu_backward has no forward mode

    return function


def gated_groups(torch: Any) -> Any:
    def function(x: Any, w: Any, bias: Any) -> Any:
        spans = zip([0, *ENDS], ENDS, strict=False)
        parts = [gate(torch)(x[i:j], w[group], bias[group]) for group, (i, j) in enumerate(spans)]
        return torch.cat([*parts, x[ENDS[-1] :, :1] * 0 * bias[0, :2]])

    return function


def functions(torch: Any) -> dict[str, tuple[Any, Any, tuple[tuple[int, ...], ...]]]:
    """By name: a function of this package, PyTorch's function, and the shapes of arguments."""
    import codegen.torch as cgt

    offs = torch.tensor(ENDS, dtype=torch.int32)
    factors: Any = {"beta": 2, "alpha": 0.5}
    linear = torch.nn.functional.linear

    def silu_of_linear(*given: Any) -> Any:
        x = linear(*given)
        return x * x.sigmoid()

    return {
        "matmul": (cgt.matmul, torch.matmul, ((4, 3), (3, 2))),
        "vector": (cgt.matmul, torch.matmul, ((3,), (2, 3, 2))),
        "bmm": (cgt.bmm, torch.bmm, ((2, 4, 3), (2, 3, 2))),
        "linear": (cgt.linear, linear, ((2, 2, 3), (2, 3), (2,))),
        "addmm": (
            lambda c, a, b: cgt.addmm(c, a, b, **factors),
            lambda c, a, b: torch.addmm(c, a, b, **factors),
            ((4, 1), (4, 3), (3, 2)),
        ),
        "without C": (
            lambda c, a, b: cgt.addmm(c, a, b, beta=0),
            lambda c, a, b: a @ b + 0 * c,
            ((4, 2), (4, 3), (3, 2)),
        ),
        "C alone": (
            lambda c, a, b: cgt.addmm(c, a, b, alpha=0),
            lambda c, a, b: c + 0 * (a @ b),
            ((4, 2), (4, 3), (3, 2)),
        ),
        "gated": (cgt.gated, gate(torch), ((4, 3), (4, 3), (4,))),
        "recomputed": (
            lambda x, w, bias: cgt.gated(x, w, bias, recompute=True),
            gate(torch),
            ((4, 3), (4, 3), (4,)),
        ),
        "activated": (
            lambda x, w, bias: cgt.linear(x, w, bias, activation="silu"),
            silu_of_linear,
            ((4, 3), (2, 3), (2,)),
        ),
        "activated without bias": (
            lambda x, w: cgt.linear(x, w, activation="silu"),
            silu_of_linear,
            ((4, 3), (2, 3)),
        ),
        "grouped": (
            lambda a, b: cgt.grouped_mm(a, b, offs=offs),
            grouped(torch),
            ((6, 3), (3, 3, 2)),
        ),
        "gated groups": (
            lambda x, w, bias: cgt.gated(x, w, bias, offs=offs),
            gated_groups(torch),
            ((6, 3), (3, 4, 3), (3, 4)),
        ),
        "recomputed groups": (
            lambda x, w, bias: cgt.gated(x, w, bias, offs=offs, recompute=True),
            gated_groups(torch),
            ((6, 3), (3, 4, 3), (3, 4)),
        ),
    }


NAMES = (
    *("matmul", "vector", "bmm", "linear", "addmm", "without C", "C alone"),
    *("gated", "recomputed", "activated", "activated without bias", "grouped"),
    *("gated groups", "recomputed groups"),
)


def scalar(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of the result with second derivatives that are not zero."""
    return lambda *given: (function(*given).sin() * 3).exp().sum()


def by_duals(torch: Any) -> Any:
    def tangent(function: Any, given: Any) -> Any:
        forward = torch.autograd.forward_ad
        with forward.dual_level():
            return forward.unpack_dual(
                function(*(forward.make_dual(x, x.cos()) for x in given))
            ).tangent

    return tangent


def duals_of_gradients(torch: Any) -> Any:
    """Tangents of gradients: with and without gradients that can be differentiated again."""

    def tangents(function: Any, given: Any) -> Any:
        forward = torch.autograd.forward_ad
        with forward.dual_level():
            duals = [forward.make_dual(x.requires_grad_(), x.detach().cos()) for x in given]
            found = [
                torch.autograd.grad(function(*duals), duals, create_graph=twice)
                for twice in (False, True)
            ]
            return [forward.unpack_dual(x).tangent for each in found for x in each]

    return tangents


def transforms(torch: Any) -> dict[str, Any]:
    """By name: what is computed from a function and its arguments."""
    func = torch.func

    def every(given: Any) -> tuple[int, ...]:
        return tuple(range(len(given)))

    def batched(given: Any) -> list[Any]:
        return [torch.stack([x, x.cos(), x * 2]) for x in given]

    def first_mapped(function: Any, given: Any) -> Any:
        axes = (0, *(None for _ in given[1:]))
        first, *rest = given
        inner = func.grad(function, argnums=every(given))
        return torch.vmap(inner, in_dims=axes)(batched([first])[0], *rest)

    return {
        "grad": lambda f, x: func.grad(f, argnums=every(x))(*x),
        "vjp": lambda f, x: func.vjp(f, *x)[1](torch.ones((), dtype=x[0].dtype)),
        "jvp": lambda f, x: func.jvp(f, tuple(x), tuple(y.cos() for y in x)),
        "jvp of the last": lambda f, x: func.jvp(lambda y: f(*x[:-1], y), (x[-1],), (x[-1].cos(),)),
        "jacfwd": lambda f, x: func.jacfwd(f, argnums=every(x))(*x),
        "hessian": lambda f, x: func.hessian(f)(*x),
        "jacfwd twice": lambda f, x: func.jacfwd(func.jacfwd(f))(*x),
        "jacrev of jacfwd": lambda f, x: func.jacrev(func.jacfwd(f))(*x),
        "vmap of grad": lambda f, x: torch.vmap(func.grad(f, argnums=every(x)))(*batched(x)),
        "vmap of one": first_mapped,
        "grad of vmap": lambda f, x: func.grad(
            lambda *y: torch.vmap(f)(*y).sum(), argnums=every(x)
        )(*batched(x)),
        "duals": by_duals(torch),
        "duals of gradients": duals_of_gradients(torch),
    }


TRANSFORMS = (
    *("grad", "vjp", "jvp", "jvp of the last", "jacfwd", "hessian", "jacfwd twice"),
    *("jacrev of jacfwd", "vmap of grad", "vmap of one", "grad of vmap"),
    *("duals", "duals of gradients"),
)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("transform", TRANSFORMS)
def test_a_transform_agrees_with_pytorch(torch: Any, make: Make, name: str, transform: str):
    ours, theirs, shapes = functions(torch)[name]
    given = [make(*shape).detach() / 4 for shape in shapes]
    found = transforms(torch)[transform](scalar(ours), given)
    right = transforms(torch)[transform](scalar(theirs), given)
    torch.testing.assert_close(found, right)


def test_linearize(torch: Any, make: Make):
    import codegen.torch as cgt

    a, b, tangent = make(4, 3).detach(), make(3, 2).detach(), make(4, 3).detach()
    d, linear = torch.func.linearize(lambda a: cgt.matmul(a, b), a)
    torch.testing.assert_close((d, linear(tangent)), (a @ b, tangent @ b))


@pytest.mark.parametrize("transform", ["grad", "jacfwd", "jacrev"])
def test_compiled_transforms(torch: Any, make: Make, transform: str):
    import codegen.torch as cgt

    a, b = make(4, 3).detach(), make(3, 2).detach()
    change = getattr(torch.func, transform)
    compiled = torch.compile(
        lambda a: change(scalar(lambda a: cgt.matmul(a, b)))(a), backend="aot_eager", fullgraph=True
    )
    right = change(scalar(lambda a: a @ b))(a)
    torch.testing.assert_close(compiled(a), right)


def test_transforms_of_the_operators(torch: Any, make: Make):
    """Calls of `torch.ops.coordgraph` have the same derivatives as calls of the functions."""
    a, b = make(4, 3).detach(), make(3, 2).detach()
    op, tangents = torch.ops.coordgraph.matmul, (a.cos(), b.cos())
    _, found = torch.func.jvp(op, (a, b), tangents)
    torch.testing.assert_close(found, tangents[0] @ b + a @ tangents[1])
    ours = torch.func.grad(lambda a: op(a, b).sin().sum())(a)
    torch.testing.assert_close(ours, (a @ b).cos() @ b.t())


def test_cross_entropy(torch: Any, make: Make):
    """Gradients and vmap agree with PyTorch's function, also if vmap maps the weight."""
    import codegen.torch as cgt

    hidden, weight = make(3, 5, 4).detach(), make(3, 7, 4).detach()
    targets = torch.randint(0, 7, (3, 5))
    entropy = torch.nn.functional.cross_entropy
    ours = cgt.cross_entropy
    theirs = lambda x, w, t: entropy(x @ w.mT, t)  # noqa: E731
    for axes in ((0, None, 0), (0, 0, 0), (None, 0, 0), (0, 0, None), (0, None, None)):
        given = [
            x if axis == 0 else x[0]
            for x, axis in zip((hidden, weight, targets), axes, strict=True)
        ]
        for argnums in (0, 1, (0, 1)):
            found, right = (
                torch.vmap(torch.func.grad_and_value(f, argnums=argnums), in_dims=axes)(*given)
                for f in (ours, theirs)
            )
            torch.testing.assert_close(found, right)


@pytest.mark.parametrize("axes", [(0, None, 0), (0, 0, 0)])
def test_invariant_losses_stay_invariant_under_vmap(
    torch: Any, make: Make, monkeypatch: pytest.MonkeyPatch, axes: tuple[Any, ...]
):
    """`torch.vmap` passes `invariant` to the losses' kernel and to the gradients' kernel."""
    import codegen.torch as cgt

    module = import_module("codegen.torch.cross_entropy")  # the package has a function of this name
    asked = list[bool]()

    def noting(compute: Any) -> Any:
        def call(*given: Any, invariant: bool = False) -> Any:
            asked.append(invariant)
            return compute(*given, invariant=invariant)

        return call

    for name in ("token_losses", "token_loss_gradients"):
        monkeypatch.setattr(module, name, noting(getattr(module, name)))
    hidden, weight = make(3, 5, 4).detach(), make(3, 7, 4).detach()
    weight = weight if axes[1] == 0 else weight[0]
    loss = lambda x, w, t: cgt.cross_entropy(x, w, t, invariant=True)  # noqa: E731
    given = hidden, weight, torch.randint(0, 7, (3, 5))
    torch.vmap(torch.func.grad(loss), in_dims=axes)(*given)
    assert len(asked) >= 2
    assert all(asked)


def test_what_has_no_derivative_is_refused(torch: Any, make: Make):
    import codegen.torch as cgt

    hidden, weight, targets = make(5, 4).detach(), make(7, 4).detach(), torch.arange(5)
    loss = lambda x: cgt.cross_entropy(x, weight, targets)  # noqa: E731
    message = "cannot be differentiated in forward mode; compute the logits by codegen.torch.linear"
    with pytest.raises(LaunchError, match=message):
        torch.func.jvp(loss, (hidden,), (hidden,))
    with pytest.raises(LaunchError, match=message):
        by_duals(torch)(loss, [hidden])
    with pytest.raises(LaunchError, match=message):
        torch.func.hessian(loss)(hidden)
    with pytest.raises(LaunchError, match="gradient of cross_entropy cannot be differentiated; c"):
        torch.func.grad(lambda x: torch.func.grad(loss)(x).square().sum())(hidden)
    sums, grad = make(4, 6), make(4, 3)
    of_sums = torch.ops.coordgraph.gated_gradient(grad, sums, "silu")
    with pytest.raises(LaunchError, match=r"cannot be differentiated; call codegen\.torch\.gated"):
        of_sums.sum().backward()


def test_vmap_of_nothing(torch: Any, make: Make):
    """A mapped axis of extent 0 gives results of extent 0."""
    import codegen.torch as cgt

    offs, experts = torch.tensor([2, 5], dtype=torch.int32), make(2, 3, 4).detach()
    mapped = torch.vmap(lambda x: cgt.grouped_mm(x, experts, offs=offs))
    assert mapped(make(0, 5, 3).detach()).shape == (0, 5, 4)


def test_tangents_without_gradients(torch: Any, make: Make):
    """Under `no_grad`, a tangent of tensors that require gradients requires none."""
    import codegen.torch as cgt

    a, b = make(4, 3), make(3, 2)
    with torch.no_grad():
        found = torch.func.jvp(cgt.matmul, (a, b), (a.cos(), b.cos()))
    assert not any(x.requires_grad for x in found)
    found = torch.func.jvp(cgt.matmul, (a, b), (a.cos(), b.cos()))
    assert all(x.requires_grad for x in found)


def test_no_context_keeps_a_tensor(torch: Any, make: Make):
    """A tensor that the gradients do not need is freed before the backward pass."""
    c = make(4, 2).detach()
    freed = weakref.ref(c)
    d = torch.ops.coordgraph.addmm(c, make(4, 3), make(3, 2), 1.0, 1.0)
    del c
    gc.collect()
    assert freed() is None
    assert d.requires_grad


@pytest.mark.parametrize("shape", [(7,), (5, 7), (2, 3, 7), (2, 1, 3, 7)], ids=str)
@pytest.mark.parametrize("biased", [False, True])
def test_vectorized_jacobians_of_linear(
    torch: Any, make: Make, shape: tuple[int, ...], biased: bool
):
    """These map the gradients of a recorded call by a vmap of their own."""
    import codegen.torch as cgt

    given = (make(*shape), make(4, 7), make(4))[: 2 + biased]
    options = {"vectorize": True, "create_graph": True}
    found = torch.autograd.functional.jacobian(cgt.linear, given, **options)
    right = torch.autograd.functional.jacobian(torch.nn.functional.linear, given, **options)
    for one, other in zip(found, right, strict=True):
        torch.testing.assert_close(one, other)
    d = cgt.linear(*given)
    grads = torch.randn(3, *d.shape, dtype=torch.float64)
    mapped = torch.autograd.grad(d, given, grads, is_grads_batched=True, retain_graph=True)
    for index, each in enumerate(grads):
        for one, other in zip(
            mapped, torch.autograd.grad(d, given, each, retain_graph=True), strict=True
        ):
            torch.testing.assert_close(one[index], other)
