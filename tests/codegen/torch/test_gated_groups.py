"""`codegen.torch.gated` of groups of rows against one product and activation for each group."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from coordgraph import LaunchError
from tests.codegen.torch.conftest import Make
from tests.codegen.torch.test_gated import (
    ACTIVATIONS,
    biased_or_not,
    calls_of,
    check_gradients,
    either_operator,
    expected,
    saved_bytes,
)

ENDS = ([3, 3, 7], [1, 8, 9], [0, 0, 0], [0, 9, 9])
"""Four cases: the index at which each of three groups of 9 rows ends.

In the first case a group is empty and two rows belong to no group; in the second two groups have
one row; in the third all groups are empty; in the fourth one group has all rows.
"""
SHAPES = ((9, 5), (3, 8, 5), (3, 8))
recomputed_or_not = pytest.mark.parametrize("recompute", [False, True])


def one_by_one(
    torch: Any, x: Any, weight: Any, bias: Any = None, *, offs: Any, activation: str = "silu"
) -> Any:
    """`gated` of all groups, one after another; rows that belong to no group are 0."""
    spans = zip([0, *offs.tolist()], offs.tolist(), strict=False)
    parts = [
        expected(torch, x[first:end], weight[g], None if bias is None else bias[g], activation)
        for g, (first, end) in enumerate(spans)
    ]
    left = x.shape[0] - (offs.tolist() or [0])[-1]
    return torch.cat([*parts, x.new_zeros(left, weight.shape[1] // 2)])


def ends_of(torch: Any, ends: list[int]) -> Any:
    return torch.tensor(ends, dtype=torch.int32)


def tensors(make: Make, biased: bool, **options: Any) -> list[Any]:
    """Random arguments of `gated`: input, weight and, if `biased`, a bias."""
    return [make(*shape, **options) for shape in SHAPES[: 2 + biased]]


@recomputed_or_not
@biased_or_not
@pytest.mark.parametrize("ends", ENDS, ids=str)
def test_gradients(torch: Any, make: Make, ends: list[int], biased: bool, recompute: bool):
    import codegen.torch as cgt

    offs = ends_of(torch, ends)
    check_gradients(
        torch,
        partial(cgt.swiglu, offs=offs, recompute=recompute),
        partial(one_by_one, torch, offs=offs),
        tensors(make, biased),
    )


@recomputed_or_not
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_activations(torch: Any, make: Make, activation: str, recompute: bool):
    import codegen.torch as cgt

    options: Any = {"offs": ends_of(torch, ENDS[0]), "activation": activation}
    check_gradients(
        torch,
        partial(cgt.gated, recompute=recompute, **options),
        partial(one_by_one, torch, **options),
        tensors(make, True),
    )


@recomputed_or_not
def test_strides(torch: Any, make: Make, recompute: bool):
    """Transposes, slices with gaps, and expanded tensors give the same results as copies."""
    import codegen.torch as cgt

    offs = ends_of(torch, ENDS[0])
    inputs = make(5, 9).mT, make(9, 10)[:, ::2], make(5).expand(9, 5), make(9, 8)[:, :5]
    weights = make(3, 5, 8).mT, make(6, 8, 7)[::2, :, :5], make(8, 5).expand(3, 8, 5), make(3, 8, 5)
    biases = make(8, 3).mT, make(3, 16)[:, ::2], make(8).expand(3, 8), make(6, 8)[::2]
    for given in zip(inputs, weights, biases, strict=True):
        check_gradients(
            torch,
            partial(cgt.swiglu, offs=offs, recompute=recompute),
            partial(one_by_one, torch, offs=offs),
            list(given),
        )


@recomputed_or_not
@pytest.mark.parametrize(
    "shapes",
    [((0, 5), (3, 8, 5), (3, 8)), ((9, 0), (3, 8, 0), (3, 8)), ((9, 5), (3, 0, 5), (3, 0))],
    ids=str,
)
def test_no_elements(torch: Any, make: Make, shapes: Any, recompute: bool):
    """Without rows, columns or groups nothing is computed; with k = 0 the bias is gated."""
    import codegen.torch as cgt

    offs = ends_of(torch, [0, 0, min(7, shapes[0][0])])
    for biased in (False, True):
        check_gradients(
            torch,
            partial(cgt.swiglu, offs=offs, recompute=recompute),
            partial(one_by_one, torch, offs=offs),
            [make(*shape) for shape in shapes[: 2 + biased]],
        )
    given = [make(4, 5), make(0, 8, 5), make(0, 8)]
    d = cgt.swiglu(*given, offs=offs[:0], recompute=recompute)
    for x in (d, *torch.autograd.grad(d.sum(), given)):
        torch.testing.assert_close(x, torch.zeros_like(x))


@recomputed_or_not
def test_rows_of_no_group_are_not_read(torch: Any, make: Make, recompute: bool):
    """A NaN in a row of no group, or in its gradient, is in no result."""
    import codegen.torch as cgt

    offs, (x, *rest) = ends_of(torch, ENDS[0]), tensors(make, True)
    rows = torch.arange(9).unsqueeze(1) < ENDS[0][-1]
    given = [torch.where(rows, x, torch.nan).detach().requires_grad_(), *rest]
    d = cgt.swiglu(*given, offs=offs, recompute=recompute)
    assert d.isfinite().all()
    grad = torch.where(rows, torch.ones_like(d), torch.nan)
    for found in torch.autograd.grad(d, given, grad):
        assert found.isfinite().all()
    a, b, bias = given[0], given[1].mT, given[2]
    for found in torch.ops.coordgraph.gated_with_sums(a, b, bias, ends=offs):
        assert not found[ENDS[0][-1] :].any()


@recomputed_or_not
def test_half_precision(torch: Any, make: Make, recompute: bool):
    """Gradients of bf16 tensors are close to those of float64."""
    import codegen.torch as cgt

    offs = ends_of(torch, ENDS[0])
    given = tensors(make, True, dtype=torch.bfloat16)
    exact = [x.detach().double().requires_grad_() for x in given]
    d, right = (
        cgt.swiglu(*given, offs=offs, recompute=recompute),
        one_by_one(torch, *exact, offs=offs),
    )
    torch.testing.assert_close(d.double(), right, atol=3e-2, rtol=3e-2)
    for one, other in zip(
        torch.autograd.grad(d.sum(), given), torch.autograd.grad(right.sum(), exact), strict=True
    ):
        assert one.dtype is torch.bfloat16
        torch.testing.assert_close(one.double(), other, atol=6e-2, rtol=3e-2)


@either_operator
@pytest.mark.parametrize(("activation", "biased"), [("silu", True), ("relu", False)], ids=str)
def test_operator(torch: Any, make: Make, operator: str, activation: str, biased: bool):
    """First derivatives, and second ones except relu's, agree with finite differences."""
    op, offs = getattr(torch.ops.coordgraph, operator).default, ends_of(torch, [2, 2, 3])
    given = [make(4, 3), make(3, 3, 4), *([make(3, 4)] if biased else [])]

    def call(a: Any, b: Any, bias: Any = None) -> Any:
        found = op(a, b, bias, activation, False, offs)
        return found if operator == "gated" else torch.cat(found, -1)  # the sums have gradients too

    assert torch.autograd.gradcheck(call, given)
    if activation != "relu":
        assert torch.autograd.gradgradcheck(call, given)


@either_operator
@biased_or_not
def test_opcheck(torch: Any, make: Make, operator: str, biased: bool):
    op, offs = getattr(torch.ops.coordgraph, operator).default, ends_of(torch, ENDS[0])
    given = (make(9, 5), make(3, 5, 8), make(3, 8) if biased else None)
    torch.library.opcheck(op, (*given, "gelu", False, offs))


def test_opcheck_of_gradients(torch: Any):
    ops, offs = torch.ops.coordgraph, ends_of(torch, ENDS[0])
    grad, a, b, bias = (torch.randn(s) for s in ((9, 4), (9, 5), (3, 5, 8), (3, 8)))
    product = ops.gated_gradient_of_product.default
    torch.library.opcheck(product, (grad, a, b, bias, "relu", False, offs))
    sums = ops.grouped_mm(a, b, offs)
    torch.testing.assert_close(
        product(grad, a, b, None, "gelu", False, offs), ops.gated_gradient(grad, sums, "gelu")
    )


@biased_or_not
def test_kernels_of_a_gradient(torch: Any, make: Make, biased: bool):
    """Operators of this library compute everything; the bias's gradient is one more product."""
    import codegen.torch as cgt

    offs, given = ends_of(torch, ENDS[0]), tensors(make, biased)

    def step(grad: Any, *given: Any) -> Any:
        return torch.autograd.grad(cgt.swiglu(*given, offs=offs), given, grad)

    calls = calls_of(torch, step, torch.randn(9, 4).double(), *given)
    assert [name for name in calls if "coordgraph" in name] == [
        "coordgraph.gated_with_sums.default",
        "coordgraph.gated_gradient.default",
        *["coordgraph.grouped_mm.default"] * (2 + biased),
    ]
    views = ("coordgraph", ".t.", ".transpose.", ".detach.", ".alias.", "getitem", ".select.")
    assert all(any(view in name for view in (*views, ".new_ones.")) for name in calls)


def test_memory(torch: Any, make: Make):
    """Inputs and the sums are kept for the backward pass; with `recompute`, inputs only."""
    import codegen.torch as cgt

    offs, given = ends_of(torch, ENDS[0]), tensors(make, True)
    inputs = sum(x.untyped_storage().nbytes() for x in (*given, offs))
    assert saved_bytes(torch, lambda: cgt.swiglu(*given, offs=offs)) == inputs + 9 * 8 * 8
    assert saved_bytes(torch, lambda: cgt.swiglu(*given, offs=offs, recompute=True)) == inputs


def test_gradients_of_weights_have_their_layout(torch: Any, make: Make):
    """PyTorch need not transpose the gradient of a weight when it accumulates the gradient."""
    import codegen.torch as cgt

    _, weight, bias = given = tensors(make, True)
    for d in (
        cgt.swiglu(*given, offs=ends_of(torch, ENDS[0])),
        cgt.swiglu(given[0], weight[1], bias[1]),
    ):
        (found,) = torch.autograd.grad(d.sum(), weight, retain_graph=True)
        assert found.is_contiguous()


@recomputed_or_not
def test_compiled_in_one_graph(torch: Any, make: Make, recompute: bool):
    """One graph serves all numbers of rows and of groups."""
    import codegen.torch as cgt

    def layer(x: Any, weight: Any, bias: Any, offs: Any) -> Any:
        return torch.tanh(cgt.swiglu(x, weight, bias, offs=offs, recompute=recompute)) + 1

    counter: Any = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(layer, fullgraph=True, backend=counter, dynamic=True)
    for rows, groups in ((9, 3), (17, 4), (30, 7)):
        offs = torch.arange(2, 2 + groups, dtype=torch.int32)
        check_gradients(
            torch,
            lambda *t, offs=offs: compiled(*t, offs),
            lambda *t, offs=offs: torch.tanh(one_by_one(torch, *t, offs=offs)) + 1,
            [make(rows, 5), make(groups, 8, 5), make(groups, 8)],
        )
    assert counter.frame_count == 1


@recomputed_or_not
def test_vmap(torch: Any, make: Make, recompute: bool):
    """vmap over inputs, weights, biases and ends of groups calls the operator for each index."""
    import codegen.torch as cgt

    ends = torch.tensor(ENDS[:3], dtype=torch.int32)
    many = make(9, 5, 3), make(3, 3, 8, 5), make(3, 3, 8)
    one = tensors(make, True)

    def ours(x: Any, weight: Any, bias: Any, offs: Any) -> Any:
        return cgt.swiglu(x, weight, bias, offs=offs, recompute=recompute)

    for mapped in ((0, 3), (1, 2), (3,)):
        axes = [(-1, 0, 0, 0)[i] if i in mapped else None for i in range(4)]
        given = [many[i] if i in mapped else one[i] for i in range(3)]
        offs = ends if 3 in mapped else ends[0]

        def theirs(*t: Any, axes: Any = axes, offs: Any = offs) -> Any:
            parts = [
                [x if axis is None else x.select(axis, i) for x, axis in zip(t, axes, strict=False)]
                for i in range(3)
            ]
            every = [offs if axes[3] is None else offs[i] for i in range(3)]
            return torch.stack(
                [one_by_one(torch, *p, offs=e) for p, e in zip(parts, every, strict=True)]
            )

        check_gradients(
            torch,
            lambda *t, axes=axes, offs=offs: torch.vmap(ours, tuple(axes))(*t, offs),
            theirs,
            given,
        )


@recomputed_or_not
def test_vmap_of_gradients(torch: Any, make: Make, recompute: bool):
    """`is_grads_batched` maps the backward pass over several gradients of one result."""
    import codegen.torch as cgt

    offs, given = ends_of(torch, ENDS[0]), tensors(make, True)
    grads = torch.randn(4, 9, 4).double()
    found, right = (
        torch.autograd.grad(d, given, grads, is_grads_batched=True)
        for d in (
            cgt.swiglu(*given, offs=offs, recompute=recompute),
            one_by_one(torch, *given, offs=offs),
        )
    )
    for one, other in zip(found, right, strict=True):
        torch.testing.assert_close(one, other)


def test_autocast(torch: Any):
    import codegen.torch as cgt

    offs = ends_of(torch, ENDS[0])
    x, weight = torch.randn(9, 5), torch.randn(3, 8, 5, requires_grad=True)
    for recompute in (False, True):
        with torch.autocast("cpu", torch.bfloat16):
            d = cgt.swiglu(x, weight, offs=offs, recompute=recompute)
        assert d.dtype is torch.bfloat16
        (grad,) = torch.autograd.grad(d.float().square().sum(), weight)
        right = one_by_one(torch, x, weight, offs=offs).square().sum()
        assert grad.dtype is torch.float32
        (exact,) = torch.autograd.grad(right, weight)
        torch.testing.assert_close(grad, exact, atol=0.3, rtol=5e-2)


@recomputed_or_not
def test_rows_do_not_depend_on_other_groups(torch: Any, recompute: bool):
    """With `invariant=True` a row has the same bits, and the same gradient, in every group size."""
    import codegen.torch as cgt

    a, weight, bias = torch.randn(90, 200), torch.randn(2, 48, 200), torch.randn(2, 48)

    def results(first: int, rows: int) -> tuple[Any, Any]:
        part = a[first : first + rows].clone().requires_grad_()
        options: Any = {"recompute": recompute, "invariant": True}
        d = cgt.swiglu(part, weight, bias, offs=ends_of(torch, [rows, rows]), **options)
        return d.detach(), torch.autograd.grad(d.sum(), part)[0]

    whole = results(0, 90)
    for first, rows in ((0, 1), (3, 17), (20, 65)):
        for one, every in zip(results(first, rows), whole, strict=True):
            assert torch.equal(one, every[first : first + rows])


def test_invariance_reaches_the_kernels(torch: Any, make: Make, monkeypatch: pytest.MonkeyPatch):
    """All kernels are asked for invariance, except those that sum over the rows of a group."""
    import codegen.torch as cgt
    from codegen.torch import launching

    asked = list[tuple[str, bool]]()
    multiply = launching.grouped_matmul

    def noting(*arrays: Any, group_axis: str, invariant: bool = False, **options: Any) -> Any:
        asked.append((group_axis, invariant))
        return multiply(*arrays, group_axis=group_axis, invariant=invariant, **options)

    monkeypatch.setattr(launching, "grouped_matmul", noting)
    offs, given = ends_of(torch, ENDS[0]), tensors(make, True)
    for recompute in (False, True):
        d = cgt.swiglu(*given, offs=offs, recompute=recompute, invariant=True)
        torch.autograd.grad(d.sum(), given)
        again = [("m", True)] if recompute else []
        sums = [("k", False)] * 2
        assert sorted(asked) == sorted([("m", True), *again, ("m", True), *sums])
        asked.clear()


def test_refusals(torch: Any, make: Make):
    import codegen.torch as cgt

    (x, weight, bias), offs = tensors(make, True), ends_of(torch, ENDS[0])
    with pytest.raises(LaunchError, match=r"without groups 2n x k is needed; pass offs, an i32"):
        cgt.swiglu(x, weight)
    with pytest.raises(LaunchError, match=r"with offs groups x 2n x k is needed; join both"):
        cgt.swiglu(x, weight[0], offs=offs)
    with pytest.raises(LaunchError, match=r"with offs groups x 2n x k is needed; join both"):
        cgt.swiglu(x, weight[:, :7], offs=offs)
    with pytest.raises(LaunchError, match=r"with offs one matrix of m x k is needed; pass the"):
        cgt.swiglu(x.unsqueeze(0), weight, offs=offs)
    with pytest.raises(LaunchError, match="k would be 4 and 5; pass a weight of n x k"):
        cgt.swiglu(x[:, :4], weight, offs=offs)
    with pytest.raises(LaunchError, match="with offs pass a matrix of m x k, and a matrix of k"):
        torch.ops.coordgraph.gated(x, weight[0].mT, ends=offs)
    with pytest.raises(LaunchError, match=r"bias is \(8,\), but \(3, 8\) is needed; pass a row"):
        cgt.swiglu(x, weight, bias[0], offs=offs)
    with pytest.raises(LaunchError, match=r"torch\.int64, but a vector of torch\.int32"):
        cgt.swiglu(x, weight, offs=offs.long())
    with pytest.raises(LaunchError, match="weight has 3 matrices, but offs has 2 entries, one for"):
        cgt.swiglu(x, weight, offs=offs[:2])
    with pytest.raises(LaunchError, match="offs lies on meta and input on cpu; move them"):
        cgt.swiglu(x, weight, offs=offs.to("meta"))
    with pytest.raises(
        LaunchError, match=r"offs\[2\] = 12, but the group begins at 8 and there are 9 rows"
    ):
        cgt.swiglu(x, weight, offs=offs + 5)
    several: Any = [3, 3, 7]
    with pytest.raises(LaunchError, match="offs is a list, but a tensor is needed; pass one"):
        cgt.swiglu(x, weight, offs=several)
