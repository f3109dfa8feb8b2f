"""`codegen.matmul` on a GPU of tensors with gaps between rows and matrices, against float64.

Gaps of inputs hold NaN, so a result without NaN has not read them; gaps of `out` must stay NaN.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

import codegen
from codegen.call import matmul
from coordgraph import epilogue as ep
from tests.gpu.grouped import normal, poisoned

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.usefixtures("gpu")

TOLERANCE = 4e-3
"""Largest relative error of a result, in the Frobenius norm; bf16 rounds each element to 2⁻⁹."""
SIZES = ((1000, 776, 2048), (512, 768, 1024), (300, 100, 260), (129, 257, 65), (16, 4096, 512))
"""Extents m, n and k: with and without rows that are multiples of 16 bytes."""
STEPS = (8, 2, 1)
"""Numbers of elements; each test makes distances between rows multiples of one of them.

8 bf16 elements are 16 bytes, as TMA needs; multiples of 2 or 1 elements may be unaligned.
"""
ORDERS = ("lmn", "mln", "lnm", "nlm")
"""Orders of a batch's axes in memory, outermost axis first; l is the number of the matrix."""


def check(found: Any, want: Any) -> None:
    error = ((found.double() - want).norm() / want.norm().clamp(min=1e-30)).item()
    assert error < TOLERANCE


def spread(values: Any, step: int = 8, order: str = "lmn", dtype: str = "bf16") -> tuple[Any, Any]:
    """The matrix or batch in memory with gaps of NaN: (all memory, the view of the elements).

    Args:
        values: the elements.
        step: the distance between rows is a multiple of this number of elements.
        order: the order of the axes in memory.
        dtype: the element type.
    """
    batch = values if values.dim() == 3 else values[None]
    axes = ["lmn".index(axis) for axis in order]
    first, second, last = (batch.shape[axis] for axis in axes)
    width = (last // step + 2) * step
    memory = poisoned(first + 1, second + 1, width, dtype=dtype)
    part = memory[:first, :second, :last]
    view = part.permute([axes.index(axis) for axis in range(3)])
    view.copy_(batch)
    return memory, view if values.dim() == 3 else view[0]


def only_written(memory: Any, view: Any) -> bool:
    """Whether all memory outside of `view` is NaN still; overwrites the view."""
    view.fill_(float("nan"))
    return bool(memory.isnan().all())


@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize(("m", "n", "k"), SIZES)
def test_rows_with_gaps(m: int, n: int, k: int, step: int, layout: str):
    a, b, c = normal(m, k), normal(k, n), normal(m, n)
    want = a.double() @ b.double()
    (_, a), (_, b) = (
        spread(x, step, "lnm" if side == "t" else "lmn")
        for x, side in zip((a, b), layout, strict=True)
    )
    check(codegen.matmul(a, b), want)
    for order in ("lmn", "lnm"):
        memory, out = spread(torch.zeros_like(c), step, order)
        for _ in range(2):
            assert codegen.matmul(a, b, out=out) is out
            check(out, want)
        assert only_written(memory, out)
        for order_of_c in ("lmn", "lnm"):
            _, strided = spread(c, step, order_of_c)
            codegen.matmul(a, b, strided, out, 1.5, -0.5)
            check(out, 1.5 * want - 0.5 * c.double())
        assert only_written(memory, out)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("which", ["ab", "a", "b"])
def test_batches_in_any_order(order: str, step: int, which: str):
    count, m, n, k = 5, 200, 136, 328
    a = normal(count, m, k) if "a" in which else normal(m, k)
    b = normal(count, k, n) if "b" in which else normal(k, n)
    want = a.double() @ b.double()
    (_, a), (_, b) = spread(a, step, order), spread(b, step, order)
    check(codegen.matmul(a, b), want)
    memory, out = spread(torch.zeros(count, m, n, device="cuda"), step, order)
    c = normal(count, m, n)
    _, strided = spread(c, step, order)
    for _ in range(2):
        codegen.matmul(a, b, strided, out, beta=2.0)
        check(out, want + 2 * c.double())
    assert only_written(memory, out)


@ep.epilogue(residual="lmn", bias="n")
def add_both(acc: Any, residual: Any, bias: Any) -> Any:
    return acc + residual + bias


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("batch", [(), (3,)])
def test_operands_of_an_epilogue(batch: tuple[int, ...], step: int, order: str):
    m, n, k = 300, 264, 520
    a, b = normal(*batch, m, k), normal(*batch, k, n)
    residual, bias = normal(*batch, m, n), normal(n)
    want = a.double() @ b.double() + residual.double() + bias.double()
    _, strided = spread(residual, step, order)
    operands: dict[str, Any] = {"bias": bias, "epilogue": add_both}
    check(codegen.matmul(a, b, residual=strided, **operands), want)
    for order_of_d in ("mln", "lnm"):
        memory, out = spread(torch.zeros_like(residual), step, order_of_d)
        codegen.matmul(a, b, residual=strided, out=out, **operands)
        check(out, want)
        assert only_written(memory, out)


@pytest.mark.parametrize("plan", ["128x256x64 stream-k{owner=last}", "64x64x64 data-parallel"])
@pytest.mark.parametrize("dtype", ["bf16", "f16"])
def test_results_are_those_of_contiguous_arrays(plan: str, dtype: str):
    """With one plan, arrays with gaps give the bits of contiguous arrays."""
    a, b = normal(500, 1000, dtype=dtype), normal(1000, 600, dtype=dtype)
    want = codegen.matmul(a, b, plan=plan)
    (_, strided_a), (_, strided_b) = spread(a, dtype=dtype), spread(b, dtype=dtype)
    assert torch.equal(codegen.matmul(strided_a, strided_b, plan=plan), want)


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("n", [256, 100, 264, 65])
@pytest.mark.parametrize("order", ["lmn", "lnm", "mln"])
def test_groups_of_rows(order: str, n: int, step: int):
    """Results of groups that end at any row are right, and gaps of `out` are not written.

    Threads store the boxes of D in which a group ends, since TMA would also write the next rows.
    """
    ends = [0, 300, 300, 301, 990, 1000]
    offsets = torch.tensor(ends, dtype=torch.int32, device="cuda")
    a, b, c = normal(1000, 328), normal(5, 328, n), normal(1000, n)
    pairs = enumerate(pairwise(ends))
    want = torch.cat([a[i:j].double() @ b[g].double() for g, (i, j) in pairs])
    (_, a), (_, b), (_, strided) = spread(a, step), spread(b, step, order), spread(c, step)
    memory, out = spread(torch.zeros_like(c), step)
    codegen.grouped_matmul(a, b, offsets, c=strided, beta=2.0, out=out)
    check(out, want + 2 * c.double())
    assert only_written(memory, out)
    codegen.grouped_matmul(a, b, offsets, out=out)
    check(out, want)
    assert only_written(memory, out)
    check(codegen.grouped_matmul(a, b[:1].expand(5, -1, -1), offsets), a.double() @ b[0].double())


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("n", [256, 100, 65])
@pytest.mark.parametrize("order", ["lmn", "mln"])
def test_groups_of_k(order: str, n: int, step: int):
    ends = [5, 300, 300, 301, 990]
    offsets = torch.tensor(ends, dtype=torch.int32, device="cuda")
    a, b = normal(200, 1000), normal(1000, n)
    want = torch.stack([a[:, i:j].double() @ b[i:j].double() for i, j in pairwise(ends)])
    (_, a), (_, b) = spread(a, step, "lnm"), spread(b, step)
    memory, out = spread(torch.zeros(4, 200, n, device="cuda"), step, order)
    codegen.grouped_matmul(a, b, offsets, group_axis="k", out=out)
    check(out, want)
    assert only_written(memory, out)


def test_d_in_the_gaps_of_a():
    every = normal(512, 1024)
    a, out, b = every[:, :512], every[:, 512:], normal(512, 512)
    kept, want = a.clone(), a.double() @ b.double()
    codegen.matmul(a, b, out=out)
    check(out, want)
    assert torch.equal(a, kept)


def test_rows_more_than_2_to_the_31_elements_apart():
    """The offset of a row is a product of 64 bits: here the last row begins at 2^32 elements."""
    step = 2**31 // 8 + 8
    need = 2 * 17 * step
    if torch.cuda.mem_get_info()[0] < need + 2**30:
        pytest.skip(f"needs {need / 2**30:.0f} GiB of GPU memory")
    memory = torch.empty(17 * step, dtype=torch.bfloat16, device="cuda")
    a = memory.as_strided((17, 64), (step, 1))
    a.copy_(normal(17, 64))
    b = normal(64, 48)
    check(codegen.matmul(a, b), a.double() @ b.double())
    out = memory.as_strided((17, 48), (step, 1), 64)
    codegen.matmul(a, b, out=out)
    check(out, a.double() @ b.double())


def test_a_cuda_graph_and_repeated_calls():
    _, a = spread(normal(256, 512))
    _, b = spread(normal(512, 384))
    memory, out = spread(torch.zeros(256, 384, device="cuda"))
    codegen.matmul(a, b, out=out)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        codegen.matmul(a, b, out=out)
    out.zero_()
    graph.replay()
    check(out, a.double() @ b.double())
    assert only_written(memory, out)
    matmul.forget()
