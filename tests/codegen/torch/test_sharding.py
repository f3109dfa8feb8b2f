"""Products of `DTensor`: each device of a mesh multiplies its part of the factors by a kernel."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest


@pytest.fixture
def distributed(torch: Any) -> Iterator[Any]:
    """`torch.distributed.tensor`, in a process group of 2 devices; only the first one exists."""
    group = pytest.importorskip("torch.distributed")
    fake = pytest.importorskip("torch.testing._internal.distributed.fake_pg")
    if not group.is_available() or group.is_initialized():
        pytest.skip("this PyTorch has no torch.distributed, or a process group is in use")
    tensors = pytest.importorskip("torch.distributed.tensor")
    group.init_process_group("fake", store=fake.FakeStore(), rank=0, world_size=2)
    try:
        yield tensors
    finally:
        group.destroy_process_group()


@pytest.fixture
def mesh(torch: Any, distributed: Any) -> Any:
    """A mesh of both devices."""
    return torch.distributed.init_device_mesh("cpu", (2,))


def parts(shape: tuple[int, ...], axis: int | None) -> tuple[slice, ...]:
    """What the first device has of a tensor: its first half along an axis, or all of it."""
    return tuple(slice(n // 2 if at == axis else n) for at, n in enumerate(shape))


@pytest.mark.parametrize(
    ("of_a", "of_b", "of_result"),
    [(None, None, None), (1, None, 1), (None, 2, 2), (2, 1, "partial"), (0, 0, 0)],
)
def test_each_device_multiplies_its_part(
    torch: Any,
    distributed: Any,
    mesh: Any,
    of_a: int | None,
    of_b: int | None,
    of_result: int | str | None,
):
    """None of the tensors is moved, so the results need no other device."""
    import codegen.torch as cgt

    def placed(axis: int | str | None) -> Any:
        if axis == "partial":
            return distributed.Partial()
        return distributed.Replicate() if axis is None else distributed.Shard(axis)

    a, b = torch.randn(4, 6, 8), torch.randn(4, 8, 10)
    whole = (a, of_a), (b, of_b)
    halves = [x[parts(x.shape, axis)].contiguous() for x, axis in whole]
    given = [
        distributed.DTensor.from_local(half, mesh, [placed(axis)]).requires_grad_()
        for half, (_, axis) in zip(halves, whole, strict=True)
    ]
    d = cgt.bmm(*given)
    assert d.placements == (placed(of_result),)
    torch.testing.assert_close(d.to_local(), torch.bmm(*halves))
    assert d.grad_fn is not None


@pytest.mark.parametrize("shape", [(), (1,), (10,), (1, 10), (6, 1), (6, 10)])
def test_what_is_added_is_divided_as_the_result(
    torch: Any, distributed: Any, mesh: Any, shape: tuple[int, ...]
):
    import codegen.torch as cgt

    c, a, b = torch.randn(shape), torch.randn(6, 8), torch.randn(8, 10)
    for of_a, of_b, of_result in ((0, None, 0), (None, 1, 1)):
        given, halves = [], []
        for x, axis in ((c, of_result - 2 + c.dim()), (a, of_a), (b, of_b)):
            divided = axis is not None and axis >= 0 and x.shape[axis] > 1
            halves.append(x[parts(x.shape, axis if divided else None)].contiguous())
            kind = distributed.Shard(axis) if divided else distributed.Replicate()
            given.append(distributed.DTensor.from_local(halves[-1], mesh, [kind]))
        d = cgt.addmm(*given, beta=2, alpha=3)
        assert d.placements == (distributed.Shard(of_result),)
        torch.testing.assert_close(d.to_local(), torch.addmm(*halves, beta=2, alpha=3))


def test_a_sum_over_divided_k_adds_parts_of_c(torch: Any, distributed: Any, mesh: Any):
    import codegen.torch as cgt

    c, a, b = torch.randn(10), torch.randn(6, 4), torch.randn(4, 10)
    partial = [distributed.Partial()]
    kinds = partial, [distributed.Shard(1)], [distributed.Shard(0)]
    given = (
        distributed.DTensor.from_local(x, mesh, p) for x, p in zip((c, a, b), kinds, strict=True)
    )
    d = cgt.addmm(*given)
    assert list(d.placements) == partial
    torch.testing.assert_close(d.to_local(), torch.addmm(c, a, b))


def activated(cgt: Any, *given: Any) -> Any:
    return cgt.linear(*given, activation="gelu")


def gated(cgt: Any, *given: Any) -> Any:
    return cgt.swiglu(*given)


def recomputed(cgt: Any, *given: Any) -> Any:
    return cgt.swiglu(*given, recompute=True)


def grouped(cgt: Any, a: Any, b: Any, offs: Any) -> Any:
    return cgt.grouped_mm(a, b, offs=offs)


def gated_groups(cgt: Any, x: Any, weight: Any, offs: Any) -> Any:
    return cgt.swiglu(x, weight, offs=offs)


def losses(cgt: Any, *given: Any) -> Any:
    return cgt.cross_entropy(*given, reduction="none")


LAYER = (4, 8), (6, 8), (6,)
GROUPS = (4, 8), (2, 8, 6), "offs"
COLUMNS = (2, 6, 8), (8, 4), "offs"
TOKENS = (4, 8), (6, 8), "targets"


@pytest.mark.parametrize(
    ("function", "shapes", "axes", "of_result"),
    [
        (activated, LAYER, (None, None, None), None),
        (activated, LAYER, (0, None, None), 0),
        (activated, LAYER, (None, 0, 0), 1),
        (activated, LAYER[:2], (0, None), 0),
        (activated, LAYER[:2], (None, 0), 1),
        (gated, LAYER, (0, None, None), 0),
        (gated, LAYER[:2], (0, None), 0),
        (recomputed, LAYER, (0, None, None), 0),
        (gated_groups, ((4, 8), (2, 6, 8), "offs"), (None, None, None), None),
        (grouped, GROUPS, (None, 2, None), 1),
        (grouped, GROUPS, (1, 1, None), "partial"),
        (grouped, COLUMNS, (1, None, None), 0),
        (grouped, ((6, 4), (4, 8), "offs"), (0, None, None), 1),
        (grouped, ((6, 4), (4, 8), "offs"), (None, 1, None), 2),
        (losses, TOKENS, (0, None, 0), 0),
    ],
)
def test_functions_are_divided(
    torch: Any,
    distributed: Any,
    mesh: Any,
    function: Any,
    shapes: tuple[Any, ...],
    axes: tuple[int | None, ...],
    of_result: int | str | None,
):
    """Each device computes with its parts, also in the backward pass."""
    import codegen.torch as cgt

    def placed(axis: int | str | None) -> Any:
        if axis == "partial":
            return distributed.Partial()
        return distributed.Replicate() if axis is None else distributed.Shard(axis)

    integers = {
        "offs": torch.tensor([1, 4], dtype=torch.int32),
        "targets": torch.tensor([3, -100, 0, 5]),
    }
    local = [integers[x] if isinstance(x, str) else torch.randn(x) for x in shapes]
    given = [
        distributed.DTensor.from_local(x, mesh, [placed(axis)])
        for x, axis in zip(local, axes, strict=True)
    ]
    for x in (*local, *given):
        x.requires_grad_(x.is_floating_point())
    ours, exact = function(cgt, *given), function(cgt, *local)
    assert ours.placements == (placed(of_result),)
    torch.testing.assert_close(ours.to_local(), exact)
    gradient = torch.randn_like(exact)
    ours.to_local().backward(gradient)
    exact.backward(gradient)
    for x, of_local, axis in zip(given, local, axes, strict=True):
        if x.requires_grad:
            assert x.grad.shape == x.shape
            if axis is not None:  # the gradients of the other tensors are sums over the devices
                torch.testing.assert_close(x.grad.to_local(), of_local.grad)


def test_replaced_layers_are_divided(torch: Any, distributed: Any, mesh: Any):
    """The first layer by columns, the second by rows of its transposed weight, with gradients."""
    import codegen.torch as cgt

    parallel = pytest.importorskip("torch.distributed.tensor.parallel")
    model = torch.nn.Sequential(torch.nn.Linear(8, 6), torch.nn.Linear(6, 8))
    assert cgt.replace_linears(model) == ["0", "1"]
    styles = {"0": parallel.ColwiseParallel(), "1": parallel.RowwiseParallel()}
    parallel.parallelize_module(model, mesh, styles)
    y = model(torch.randn(2, 5, 8))
    assert y.shape == (2, 5, 8)
    y.sum().backward()
    for layer, axis in zip(model, (0, 1), strict=True):
        assert layer.weight.grad.placements == (distributed.Shard(axis),)
