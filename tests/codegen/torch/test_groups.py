"""`grouped_mm` against PyTorch's, and against one product for each group."""

from __future__ import annotations

from typing import Any

import pytest

import codegen
from coordgraph import LaunchError
from tests.codegen.torch.conftest import Make

ENDS = ([3, 3, 7], [4, 6, 9], [0, 0, 0])
"""Three cases: the index at which each of three groups ends, along an axis of extent 9.

In the first case a group is empty and two indices belong to no group; in the second the groups have
all indices; in the third all groups are empty.
"""
SHAPES = {"rows": ((9, 5), (3, 5, 4)), "columns": ((3, 4, 5), (5, 9)), "terms": ((4, 9), (9, 5))}


def one_by_one(torch: Any, a: Any, b: Any, ends: Any) -> Any:
    """The products of all groups, one after another; rows that belong to no group are 0."""
    if a.dim() == 3:
        return one_by_one(torch, b.mT, a.mT, ends).mT
    spans = list(zip([0, *ends.tolist()], ends.tolist(), strict=False))
    if b.dim() == 2:
        return torch.stack([a[:, first:end] @ b[first:end] for first, end in spans])
    parts = [a[first:end] @ b[group] for group, (first, end) in enumerate(spans)]
    rest = a.shape[0] - spans[-1][1]
    return torch.cat([*parts, a.new_zeros(rest, b.shape[-1])])


def compare(torch: Any, d: Any, right: Any, *inputs: Any) -> None:
    """Compare the results `d` and `right`, and their gradients with respect to `inputs`."""
    torch.testing.assert_close(d, right)
    assert d.stride() == d.contiguous().stride()
    grad = torch.randn_like(right)
    gradients = (torch.autograd.grad(x, inputs, grad) for x in (d, right))
    for ours, theirs in zip(*gradients, strict=True):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("shapes", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("ends", ENDS, ids=str)
def test_every_group(torch: Any, make: Make, shapes: Any, ends: list[int]):
    import codegen.torch as cgt

    offs = torch.tensor(ends, dtype=torch.int32)
    a, b = (make(*shape) for shape in shapes)
    compare(torch, cgt.grouped_mm(a, b, offs=offs), one_by_one(torch, a, b, offs), a, b)


@pytest.mark.parametrize("shapes", SHAPES.values(), ids=SHAPES)
def test_strides(torch: Any, make: Make, shapes: Any):
    """Transposes, slices with gaps, and expanded matrices give the same results as copies."""
    import codegen.torch as cgt

    offs = torch.tensor(ENDS[0], dtype=torch.int32)

    def views(shape: tuple[int, ...]) -> list[Any]:
        *batch, rows, columns = shape
        gaps = make(*batch, rows, 2 * columns)[..., ::2]
        return [make(*batch, columns, rows).mT, gaps, make(columns).expand(shape)]

    for a in views(shapes[0]):
        for b in views(shapes[1]):
            compare(torch, cgt.grouped_mm(a, b, offs=offs), one_by_one(torch, a, b, offs), a, b)


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (lambda make: make(9, 8)[:, :5], lambda make: make(6, 5, 7)[::2, :, :4]),
        (lambda make: make(9, 5), lambda make: make(6, 4, 7)[::2, :, :5].mT),
        (lambda make: make(9, 5), lambda make: make(5, 4).expand(3, 5, 4)),
        (lambda make: make(3, 4, 8)[:, :, :5], lambda make: make(9, 8)[:, :5].mT),
        (lambda make: make(4, 12)[:, :9], lambda make: make(9, 8)[:, :5]),
        (lambda make: make(9, 8)[:, :4].mT, lambda make: make(5, 12)[:, :9].mT),
    ],
)
def test_gaps_are_read_in_place(
    torch: Any, make: Make, monkeypatch: pytest.MonkeyPatch, a: Any, b: Any
):
    """Gaps between rows and between matrices are passed to the kernel, without a copy."""
    import codegen.torch as cgt
    from codegen.torch import launching

    read = list[int]()

    def grouped_matmul(a: Any, b: Any, *rest: Any, **options: Any) -> Any:
        read.extend(x.__array_interface__["data"][0] for x in (a, b))
        return codegen.grouped_matmul(a, b, *rest, **options)

    monkeypatch.setattr(launching, "grouped_matmul", grouped_matmul)
    offs = torch.tensor(ENDS[0], dtype=torch.int32)
    a, b = a(make).detach(), b(make).detach()
    torch.testing.assert_close(cgt.grouped_mm(a, b, offs=offs), one_by_one(torch, a, b, offs))
    assert sorted(read) == sorted((a.data_ptr(), b.data_ptr()))


def test_a_batch_of_equal_groups(torch: Any, make: Make):
    import codegen.torch as cgt

    a, b = make(3, 5, 7), make(3, 7, 6)
    compare(torch, cgt.grouped_mm(a, b), torch.bmm(a, b), a, b)


@pytest.mark.parametrize("shapes", [((0, 5), (3, 5, 4)), ((9, 0), (3, 0, 4)), ((9, 5), (3, 5, 0))])
def test_no_elements(torch: Any, make: Make, shapes: Any):
    import codegen.torch as cgt

    offs = torch.tensor([0, 0, shapes[0][0]], dtype=torch.int32)
    a, b = (make(*shape) for shape in shapes)
    compare(torch, cgt.grouped_mm(a, b, offs=offs), one_by_one(torch, a, b, offs), a, b)
    nothing = cgt.grouped_mm(make(2, 5), make(0, 5, 4), offs=offs[:0])
    torch.testing.assert_close(nothing, torch.zeros_like(nothing))


def test_as_pytorch(torch: Any, make: Make):
    import codegen.torch as cgt

    if not hasattr(torch.nn.functional, "grouped_mm"):
        pytest.skip("this PyTorch has no grouped_mm")
    offs = torch.tensor([3, 3, 8], dtype=torch.int32)
    a, b = make(8, 16, dtype=torch.bfloat16), make(3, 16, 24, dtype=torch.bfloat16)
    right = torch.nn.functional.grouped_mm(a, b, offs=offs)
    torch.testing.assert_close(cgt.grouped_mm(a, b, offs=offs), right, atol=2e-2, rtol=2e-2)
    with cgt.use_kernels(devices=("cpu",)):
        d = torch.nn.functional.grouped_mm(a, b, offs=offs)
        plain = torch.nn.functional.grouped_mm(a.double().float(), b.float(), offs=offs)
    assert "coordgraph" in type(d.grad_fn).__name__
    assert "coordgraph" not in type(plain.grad_fn).__name__
    torch.testing.assert_close(d, right, atol=2e-2, rtol=2e-2)


@pytest.mark.parametrize("shapes", SHAPES.values(), ids=SHAPES)
def test_opcheck_and_gradients_of_gradients(torch: Any, make: Make, shapes: Any):
    import codegen.torch as cgt

    offs = torch.tensor(ENDS[0], dtype=torch.int32)
    a, b = (make(*shape) for shape in shapes)
    torch.library.opcheck(torch.ops.coordgraph.grouped_mm.default, (a, b, offs))
    assert torch.autograd.gradgradcheck(lambda a, b: cgt.grouped_mm(a, b, offs=offs), (a, b))


def test_compiled_and_autocast(torch: Any, make: Make):
    import codegen.torch as cgt

    offs = torch.tensor(ENDS[0], dtype=torch.int32)
    counter: Any = torch._dynamo.testing.CompileCounter()
    compiled = torch.compile(cgt.grouped_mm, fullgraph=True, backend=counter, dynamic=True)
    for rows, groups in ((9, 3), (17, 4), (30, 7)):
        offs = torch.arange(2, 2 + groups, dtype=torch.int32)
        a, b = make(rows, 5), make(groups, 5, 4)
        compare(torch, compiled(a, b, offs=offs), one_by_one(torch, a, b, offs), a, b)
    assert counter.frame_count == 1
    a, b = make(9, 5, dtype=torch.float32), make(7, 5, 4, dtype=torch.bfloat16)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        d = cgt.grouped_mm(a, b, offs=offs)
    assert d.dtype == torch.bfloat16
    assert torch.autograd.grad(d.sum(), a)[0].dtype == torch.float32


def test_errors(torch: Any, make: Make):
    import codegen.torch as cgt

    a, b, offs = make(9, 5), make(3, 5, 4), torch.tensor(ENDS[0], dtype=torch.int32)
    with pytest.raises(LaunchError, match="pass offs, an i32 tensor"):
        cgt.grouped_mm(a, b)
    with pytest.raises(LaunchError, match="no rows or columns to divide into groups"):
        cgt.grouped_mm(b, b.mT, offs=offs)
    with pytest.raises(LaunchError, match="no bias; leave it out and add it"):
        cgt.grouped_mm(a, b, offs=offs, bias=make(4))
    with pytest.raises(LaunchError, match=r"out_dtype = torch\.float32, but the factors"):
        cgt.grouped_mm(a, b, offs=offs, out_dtype=torch.float32)
    with pytest.raises(LaunchError, match=r"torch\.int64, but a vector of torch\.int32"):
        cgt.grouped_mm(a, b, offs=offs.long())
    with pytest.raises(LaunchError, match="mat_b has 3 matrices, but offs has 2 entries, one for"):
        cgt.grouped_mm(a, b, offs=offs[:2])
    with pytest.raises(LaunchError, match="k would be 5 and 4; pass tensors with the same k"):
        cgt.grouped_mm(a, b.mT, offs=offs)
    with pytest.raises(LaunchError, match="with offs pass two matrices, or a matrix and a tensor"):
        cgt.grouped_mm(a[0], b, offs=offs)
    with pytest.raises(LaunchError, match="offs lies on meta and mat_a on cpu; move them"):
        cgt.grouped_mm(a, b, offs=offs.to("meta"))
    # Each group of rows, of columns and of k has an end in the 9 that are divided.
    for factors in ((a, b), (b.mT, a.mT), (a.mT, a)):
        with pytest.raises(LaunchError, match=r"offs\[2\] = 12, but .* are 9 rows or columns to"):
            cgt.grouped_mm(*factors, offs=torch.tensor([3, 3, 12], dtype=torch.int32))
    with pytest.raises(LaunchError, match=r"offs\[1\] = 2, but the group begins at 3"):
        cgt.grouped_mm(a, b, offs=torch.tensor([3, 2, 9], dtype=torch.int32))
    with pytest.raises(LaunchError, match=r"offs\[0\] = -1, but the group begins at 0"):
        cgt.grouped_mm(a, b, offs=torch.tensor([-1, 2, 9], dtype=torch.int32))


def test_rows_do_not_depend_on_other_groups(torch: Any):
    """With `invariant=True` a row has the same bits, and the same gradient, in every group size."""
    import codegen.torch as cgt

    a, b = torch.randn(90, 200), torch.randn(2, 200, 24)

    def results(first: int, rows: int) -> tuple[Any, Any]:
        part = a[first : first + rows].clone().requires_grad_()
        offs = torch.tensor([rows, rows], dtype=torch.int32)
        d = cgt.grouped_mm(part, b, offs=offs, invariant=True)
        return d.detach(), torch.autograd.grad(d.sum(), part)[0]

    whole = results(0, 90)
    for first, rows in ((0, 1), (3, 17), (20, 65)):
        for one, every in zip(results(first, rows), whole, strict=True):
            assert torch.equal(one, every[first : first + rows])


@pytest.mark.parametrize("switch", [False, True])
def test_groups_are_invariant_or_refused(torch: Any, monkeypatch: pytest.MonkeyPatch, switch: bool):
    """The option, and `use_kernels(invariant=True)`, reach the kernels of groups of rows or columns
    and batches; a product whose groups divide k is refused.
    """
    import codegen.torch as cgt
    from codegen.torch import launching

    if switch and not hasattr(torch, "_grouped_mm"):
        pytest.skip("this PyTorch has no grouped_mm")
    asked = list[bool]()

    def noting(multiply: Any) -> Any:
        def call(*arrays: Any, invariant: bool = False, **options: Any) -> Any:
            asked.append(invariant)
            return multiply(*arrays, invariant=invariant, **options)

        return call

    for name in ("matmul", "grouped_matmul"):
        monkeypatch.setattr(launching, name, noting(getattr(launching, name)))

    def product(a: Any, b: Any, offs: Any) -> Any:
        if not switch:
            return cgt.grouped_mm(a, b, offs=offs, invariant=True)
        with cgt.use_kernels(dtypes=(torch.float32,), devices=("cpu",), invariant=True):
            return torch._grouped_mm(a, b, offs)

    offs = torch.tensor(ENDS[0], dtype=torch.int32)
    for kind in ("rows", "columns"):
        a, b = (torch.randn(*shape) for shape in SHAPES[kind])
        torch.testing.assert_close(product(a, b, offs), one_by_one(torch, a, b, offs))
    product(torch.randn(3, 4, 5), torch.randn(3, 5, 6), None)
    assert asked == [True] * 3
    a, b = (torch.randn(*shape) for shape in SHAPES["terms"])
    with pytest.raises(LaunchError, match="every group has its own k; leave out invariant"):
        product(a, b, offs)


@pytest.mark.parametrize("shapes", SHAPES.values(), ids=SHAPES)
def test_vmap(torch: Any, make: Make, shapes: Any):
    """vmap over factors and over the ends of groups calls the operator for each index."""
    import codegen.torch as cgt

    ends = torch.tensor(ENDS, dtype=torch.int32)
    a, b = (make(*shape) for shape in shapes)
    many = make(*shapes[0], 3)
    for given, axes in (((many, b, ends), (-1, None, 0)), ((a, b, ends), (None, None, 0))):
        d = torch.vmap(lambda a, b, offs: cgt.grouped_mm(a, b, offs=offs), axes)(*given)
        parts = [
            one_by_one(torch, a if axes[0] is None else many[..., i], b, ends[i]) for i in range(3)
        ]
        compare(torch, d, torch.stack(parts), given[0], b)
