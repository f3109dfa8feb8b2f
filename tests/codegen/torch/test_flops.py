"""PyTorch's `FlopCounterMode` counts the operations of each operator that multiplies."""

from __future__ import annotations

from typing import Any

import pytest

from tests.codegen.torch.conftest import Make


def count(torch: Any, work: Any) -> int:
    """The number of operations that PyTorch counts in a call of `work`."""
    counter = pytest.importorskip("torch.utils.flop_counter").FlopCounterMode(display=False)
    with counter:
        work()
    return counter.get_total_flops()


def test_products_count_as_those_of_pytorch(torch: Any, make: Make):
    """Forward passes, and forward and backward passes together, of functions that PyTorch has."""
    import codegen.torch as cgt

    functional = torch.nn.functional
    x, w, bias = make(2, 3, 7), make(5, 7), make(5)
    batch = make(2, 7, 5)
    for ours, theirs in (
        (lambda: cgt.matmul(x, w.t()), lambda: torch.matmul(x, w.t())),
        (lambda: cgt.linear(x, w, bias), lambda: functional.linear(x, w, bias)),
        (lambda: cgt.addmm(bias, x[0], w.t()), lambda: torch.addmm(bias, x[0], w.t())),
        (lambda: cgt.bmm(x, batch), lambda: torch.bmm(x, batch)),
        (
            lambda: cgt.linear(x, w, bias, activation="relu"),
            lambda: functional.linear(x, w, bias).relu(),
        ),
        (
            lambda: cgt.gated(x, w[:4]),
            lambda: functional.silu(functional.linear(x, w[:2])) * functional.linear(x, w[2:4]),
        ),
    ):
        right = count(torch, theirs)
        assert right > 0
        assert count(torch, ours) == right
        with torch.no_grad():
            assert count(torch, ours) == right
        assert count(torch, lambda: ours().sum().backward()) == 3 * right  # noqa: B023
        assert count(torch, lambda: theirs().sum().backward()) == 3 * right  # noqa: B023


def test_products_that_are_computed_again_count_again(torch: Any, make: Make):
    import codegen.torch as cgt

    x, w = make(6, 7), make(10, 7)
    one = 2 * 6 * 7 * 10
    gated = count(torch, lambda: cgt.gated(x, w, recompute=True).sum().backward())
    assert gated == 4 * one
    targets = torch.arange(6)
    assert count(torch, lambda: cgt.cross_entropy(x, w, targets)) == one
    assert count(torch, lambda: cgt.cross_entropy(x, w, targets).backward()) == 4 * one
    fixed = w.detach()
    assert count(torch, lambda: cgt.cross_entropy(x, fixed, targets).backward()) == 3 * one


def test_groups_count_all_their_products(torch: Any, make: Make):
    import codegen.torch as cgt

    offs = torch.tensor([2, 2, 6], dtype=torch.int32)
    one = 2 * 6 * 7 * 10
    for a, b in (
        (make(6, 7), make(3, 7, 10)),
        (make(3, 10, 7), make(7, 6)),
        (make(7, 6), make(6, 10)),
    ):
        assert count(torch, lambda: cgt.grouped_mm(a, b, offs=offs)) == one  # noqa: B023
        backward = count(torch, lambda: cgt.grouped_mm(a, b, offs=offs).sum().backward())  # noqa: B023
        assert backward == 3 * one
    x, experts = make(6, 7), make(3, 10, 7)
    for recompute, products in ((False, 3), (True, 4)):
        options = {"offs": offs, "recompute": recompute}
        work = lambda: cgt.gated(x, experts, **options).sum().backward()  # noqa: B023, E731
        assert count(torch, work) == products * one


def test_float8(torch: Any):
    import codegen.torch as cgt

    a, b = torch.ones(32, 16).to(torch.float8_e4m3fn), torch.ones(48, 16).to(torch.float8_e4m3fn)
    scale = torch.ones(())
    work = lambda: cgt.scaled_mm(a, b.t(), scale, "TensorWise", scale, "TensorWise")  # noqa: E731
    assert count(torch, work) == 2 * 32 * 16 * 48


def test_every_operator_that_multiplies_has_a_formula(torch: Any):
    """Only two have none, which compute the gradients of activations."""
    formulas = pytest.importorskip("codegen.torch.flops").FORMULAS
    names = {op.name() for op in formulas}
    defined = {
        name for name in torch._C._dispatch_get_all_op_names() if name.startswith("coordgraph::")
    }
    assert defined - names == {"coordgraph::activated_gradient", "coordgraph::gated_gradient"}
