"""`codegen.torch.cross_entropy` against PyTorch's linear layer and cross entropy."""

from __future__ import annotations

from typing import Any

import pytest

from coordgraph import LaunchError
from tests.codegen.torch.conftest import Make
from tests.support.sampling import quick_cases

CLASSES, WIDTH = 601, 24
SHAPES = ((7,), (2, 3), (), (0,))


def expected(torch: Any, hidden: Any, weight: Any, targets: Any, **options: Any) -> Any:
    functional = torch.nn.functional
    logits = functional.linear(hidden, weight).reshape(-1, len(weight))
    found = functional.cross_entropy(logits, targets.reshape(-1), **options)
    return found.reshape(targets.shape) if options.get("reduction") == "none" else found


def check(torch: Any, given: tuple[Any, ...], close: float, **options: Any) -> None:
    """Compare loss and gradients with those of PyTorch, in float32 or in float64."""
    import codegen.torch as cgt

    hidden, weight, targets = given
    kind = torch.float64 if hidden.dtype == torch.float64 else torch.float32
    exact = [x.detach().to(kind).requires_grad_() for x in (hidden, weight)]
    found = cgt.cross_entropy(hidden, weight, targets, **options)
    right = expected(torch, exact[0], exact[1], targets, **options)
    assert found.dtype == kind
    near: dict[str, Any] = {"atol": close, "rtol": close, "equal_nan": True}
    torch.testing.assert_close(found, right, **near)
    grad = torch.randn_like(right)
    ours = torch.autograd.grad(found, [hidden, weight], grad)
    theirs = torch.autograd.grad(right, exact, grad)
    for one, other, x in zip(ours, theirs, (hidden, weight), strict=True):
        assert one.dtype == x.dtype
        torch.testing.assert_close(one.to(kind), other, **near)


@quick_cases(4)
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize(
    ("kind", "close"), [("float32", 2e-5), ("bfloat16", 3e-2), ("float64", 1e-10)]
)
@pytest.mark.parametrize("blocks", [1, 3])
def test_against_pytorch(
    torch: Any,
    make: Make,
    monkeypatch: pytest.MonkeyPatch,
    blocks: int,
    kind: str,
    close: float,
    shape: tuple[int, ...],
    reduction: str,
):
    """Loss and gradients agree, also if the classes are divided into blocks, the last ragged."""
    if blocks > 1:
        monkeypatch.setattr("codegen.torch.token_losses.BLOCK", 0)
    dtype = getattr(torch, kind)
    targets = torch.randint(0, CLASSES, shape)
    if len(shape):
        targets.flatten()[1:2] = -100
    given = make(*shape, WIDTH, dtype=dtype), make(CLASSES, WIDTH, dtype=dtype), targets
    check(torch, given, close, reduction=reduction)


def test_ignored_tokens_and_layouts(torch: Any, make: Make):
    """`ignore_index` may be a class; tensors may be transposes, and targets i32."""
    hidden, weight = make(WIDTH, 9, dtype=torch.float32), make(WIDTH, 30, dtype=torch.float32)
    targets = torch.tensor([3, 0, 3, 29, 7, 3, 1, 0, 2])
    check(torch, (hidden.t(), weight.t(), targets), 2e-5, ignore_index=3)
    import codegen.torch as cgt

    narrow = cgt.cross_entropy(hidden.t(), weight.t(), targets.int())
    torch.testing.assert_close(narrow, expected(torch, hidden.t(), weight.t(), targets))
    nothing = cgt.cross_entropy(hidden.t(), weight.t(), torch.full((9,), -100))
    assert torch.isnan(nothing)  # the mean over no token


def test_large_logits_and_one_gradient(torch: Any):
    """Logits beyond the range of exp do not overflow; a frozen weight gets no gradient."""
    import codegen.torch as cgt

    hidden, weight = torch.eye(4) * 300, torch.randn(5, 4)
    hidden.requires_grad_()
    targets = torch.tensor([0, 1, 2, 4])
    found, right = (f(hidden, weight, targets) for f in (cgt.cross_entropy, _plain(torch)))
    torch.testing.assert_close(found, right)
    (ours,), (theirs,) = (torch.autograd.grad(x, [hidden]) for x in (found, right))
    torch.testing.assert_close(ours, theirs)


def _plain(torch: Any) -> Any:
    return lambda *given: expected(torch, *given)


def test_gradcheck_and_no_second_derivative(torch: Any, make: Make):
    import codegen.torch as cgt

    targets = torch.tensor([0, 6, -100, 2, 2])
    hidden, weight = make(5, 4), make(7, 4)
    assert torch.autograd.gradcheck(
        lambda x, y: cgt.cross_entropy(x, y, targets, reduction="sum"), (hidden, weight)
    )
    loss = cgt.cross_entropy(hidden, weight, targets)
    (grad,) = torch.autograd.grad(loss, hidden, create_graph=True)
    with pytest.raises(LaunchError, match="gradient of cross_entropy cannot be differentiated; co"):
        grad.sum().backward()


def test_operators(torch: Any, make: Make):
    op = torch.ops.coordgraph.cross_entropy.default
    given = make(5, 12, dtype=torch.float32), make(7, 12, dtype=torch.float32)
    targets = torch.tensor([0, 6, -100, 2, 2])
    torch.library.opcheck(op, (*given, targets, -100))
    hidden, weight = (x.detach() for x in given)
    losses, totals = op(hidden, weight, targets, -100)
    gradient = torch.ops.coordgraph.cross_entropy_gradient.default
    for needs in ((True, True), (True, False)):
        arguments = (losses, totals, hidden, weight, targets, -100, *needs)
        torch.library.opcheck(gradient, arguments)


@pytest.mark.slow
def test_compile_and_autocast(torch: Any, make: Make):
    import codegen.torch as cgt

    hidden, weight = make(5, 12, dtype=torch.float32), make(7, 12, dtype=torch.float32)
    targets = torch.tensor([0, 6, -100, 2, 2])
    compiled = torch.compile(cgt.cross_entropy, fullgraph=True, backend="aot_eager")
    grads = []
    for function in (compiled, cgt.cross_entropy):
        loss = function(hidden, weight, targets)
        grads.append((loss, *torch.autograd.grad(loss, [hidden, weight])))
    for one, other in zip(*grads, strict=True):
        torch.testing.assert_close(one, other)
    with torch.autocast("cpu", torch.bfloat16):
        cast = cgt.cross_entropy(hidden, weight, targets)
    narrow = cgt.cross_entropy(hidden.bfloat16(), weight.bfloat16(), targets)
    assert torch.equal(cast, narrow)


def test_refusals(torch: Any):
    import codegen.torch as cgt

    hidden, weight, targets = torch.randn(3, 4), torch.randn(5, 4), torch.tensor([0, 1, 4])
    cases: tuple[tuple[Any, dict[str, Any], str], ...] = (
        ((hidden, weight, targets), {"reduction": "max"}, "'max' is unknown; choose one of mean"),
        ((hidden, weight, targets + 1), {}, "target 5 is neither ignore_index = -100 nor a class"),
        ((hidden, weight, targets[:2]), {}, "pass a target for each row"),
        ((hidden, weight[:, :3], targets), {}, "pass hidden as tokens x k, weight as classes x k"),
        ((hidden, weight.double(), targets), {}, "convert them to one type"),
        ((hidden, weight, targets.float()), {}, "targets holds torch.float32"),
        ((hidden, weight, targets.to("meta")), {}, "lie on cpu and meta"),
    )
    for given, options, message in cases:
        with pytest.raises(LaunchError, match=message):
            cgt.cross_entropy(*given, **options)


def test_a_loss_does_not_depend_on_the_other_tokens(
    torch: Any, make: Make, monkeypatch: pytest.MonkeyPatch
):
    """With `invariant=True` the losses and gradients of the first tokens have the same bits."""
    import codegen.torch as cgt
    from codegen.torch import token_losses

    monkeypatch.setattr(token_losses, "PINNED_CLASSES", 256)  # several blocks of classes
    monkeypatch.setattr(token_losses, "BLOCK", 1 << 15)
    hidden, weight = torch.randn(200, 96), torch.randn(CLASSES, 96)
    targets = torch.arange(200)

    def results(tokens: int) -> tuple[Any, Any]:
        rows = hidden[:tokens].clone().requires_grad_()
        options: Any = {"reduction": "none", "invariant": True}
        losses = cgt.cross_entropy(rows, weight, targets[:tokens], **options)
        return losses.detach(), torch.autograd.grad(losses.sum(), rows)[0]

    whole = results(200)
    for tokens in (1, 3, 65):
        for part, every in zip(results(tokens), whole, strict=True):
            assert torch.equal(part, every[:tokens])
    with pytest.raises(LaunchError, match="invariant"):
        cgt.cross_entropy(hidden, weight, targets, invariant="no")  # type: ignore[arg-type]


def test_the_option_reaches_every_kernel(torch: Any, monkeypatch: pytest.MonkeyPatch):
    """`invariant=True` is asked of the product and of both products for the gradient of hidden."""
    import codegen.torch as cgt
    from codegen.torch import launching, token_losses

    asked = list[bool]()
    matmul = token_losses.matmul

    def noting(*arrays: Any, invariant: bool = False, **options: Any) -> Any:
        asked.append(invariant)
        return matmul(*arrays, invariant=invariant, **options)

    monkeypatch.setattr(token_losses, "matmul", noting)
    monkeypatch.setattr(launching, "matmul", noting)
    hidden, weight = torch.randn(5, 8, requires_grad=True), torch.randn(20, 8, requires_grad=True)
    cgt.cross_entropy(hidden, weight, torch.arange(5), invariant=True).backward()
    assert sorted(asked) == [False, True, True, True]  # the gradient of weight sums over tokens
