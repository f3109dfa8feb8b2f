"""`matmul(invariant=True)` on a GPU: bits of a row of D depend on no m, plan or other row of A.

The tests also check what is assumed of the hardware: that a multiply instruction gives the same
bits for an element of D wherever the element is in the instruction's tile, whatever the extents of
that tile are, and whichever operand is A.
"""

from __future__ import annotations

import os
import random
from typing import Any

import pytest

import codegen
from codegen.call.compile_workers import CompileWorkers
from codegen.call.describe import describe
from codegen.call.request import PlanRequest
from coordgraph import CodegenError, LaunchError
from coordgraph import epilogue as ep
from passes.choosing import rank
from tests.gpu.invariant_plans import compiled_plans

torch: Any = pytest.importorskip("torch")
pytestmark = pytest.mark.usefixtures("gpu")

LAYERS = ((4096, 4096), (512, 7168), (1024, 4096), (264, 1000), (136, 1001))
"""Extents (n, k) of weights. The second layer's k is summed in two segments; TMA cannot load the
rows of the last layer.
"""
MOST = 8192
INT = {torch.bfloat16: torch.int16, torch.float16: torch.int16, torch.float32: torch.int32}
"""An integer type of the size of each type of D; NaNs and signs of zeros are then compared too."""


def layer(n: int, k: int, m: int = MOST, kind: Any = torch.bfloat16) -> tuple[Any, Any]:
    """(A of m x k, B of k x n), both random; B is the transpose of row-major weights."""
    generator = torch.Generator("cuda").manual_seed(n + k)
    make = {"device": "cuda", "dtype": kind, "generator": generator}
    return torch.randn(m, k, **make), torch.randn(n, k, **make).t()


def changed(found: Any, whole: Any) -> Any:
    """Number of rows in which two results differ in at least one bit, as a tensor on the GPU."""
    kind = INT[found.dtype]
    return (found.view(kind) != whole.view(kind)).any(dim=-1).sum()


def request_of(a: Any, b: Any) -> PlanRequest:
    arrays = {"A": a, "B": b, "C": None, "D": None}
    options = {"transpose_a": False, "transpose_b": False, "invariant": True}
    return describe(arrays, beta=0.0, **options).request


def some_rows(seed: int) -> list[int]:
    drawn = random.Random(seed)
    powers = [1 << power for power in range(13)]
    near = [m + by for m in (64, 128, 256, 1024) for by in (-1, 1)]
    return sorted({*powers, *near, *(drawn.randrange(1, MOST) for _ in range(12)), MOST})


@pytest.mark.parametrize(("n", "k"), LAYERS)
def test_bits_of_a_row_do_not_depend_on_m(n: int, k: int):
    a, b = layer(n, k)
    rows = some_rows(n)
    compiled_plans(request_of(a, b), rows)
    whole = codegen.matmul(a, b, invariant=True)
    wrong = {m: changed(codegen.matmul(a[:m], b, invariant=True), whole[:m]) for m in rows}
    assert not {m: int(count) for m, count in wrong.items() if count}
    want = a[:64].double() @ b.double()
    assert ((whole[:64].double() - want).norm() / want.norm()).item() < 4e-3


@pytest.mark.parametrize(("n", "k"), LAYERS[:2])
@pytest.mark.parametrize("m", [48, 300, 2048])
def test_bits_do_not_depend_on_the_plan(n: int, k: int, m: int):
    """Plans with every kind of tile give equal bits.

    Tiles are computed by one or two warpgroups, by pingpong warpgroups or by clusters, and with A
    or B as the left operand of wgmma.
    """
    a, b = layer(n, k, m)
    request = request_of(a, b)
    if request.constants is None:
        pytest.skip("without a cost model there is one plan")
    choices = rank(request.gemm, request.constants, 400, order=request.order)
    kinds = {(c.plan.tile, c.plan.cluster, c.plan.consumers): c.plan for c in choices}
    plans = [*kinds.values()]
    plans = plans[:: max(1, len(plans) // 16)]
    with CompileWorkers(request, os.cpu_count()) as workers:
        workers.compile(plans)
    whole = codegen.matmul(a, b, invariant=True)
    ran = 0
    for plan in plans:
        try:
            found = codegen.matmul(a, b, invariant=True, plan=plan)
        except CodegenError:
            continue  # the device refuses the kernel, for example for its registers
        assert not int(changed(found, whole)), plan
        ran += 1
    assert ran > 6


def test_rows_before_and_after_do_not_matter():
    a, b = layer(512, 7168, 700)
    whole = codegen.matmul(a, b, invariant=True)
    for first in (1, 8, 64, 129, 500):
        assert not int(changed(codegen.matmul(a[first:], b, invariant=True), whole[first:]))
    order = torch.randperm(len(a), device="cuda")
    assert not int(changed(codegen.matmul(a[order], b, invariant=True), whole[order]))


@pytest.mark.parametrize("kind", [torch.float16, torch.float32])
def test_other_types_of_the_result(kind: Any):
    a, b = layer(512, 7168, 300, torch.float16)
    out = torch.empty(300, 512, device="cuda", dtype=kind)
    whole = codegen.matmul(a, b, out=out, invariant=True)
    for m in (1, 17, 200):
        part = torch.empty(m, 512, device="cuda", dtype=kind)
        assert not int(changed(codegen.matmul(a[:m], b, out=part, invariant=True), whole[:m]))


def test_batches_and_groups():
    a, b = layer(512, 7168, 3 * 96)
    whole = codegen.matmul(a, b, invariant=True)
    factors = torch.stack([b.t().contiguous()] * 3).mT
    batch = codegen.matmul(a.view(3, 96, -1), factors, invariant=True)
    assert not int(changed(batch.reshape(-1, 512), whole))
    stacked = factors.contiguous()
    first = codegen.grouped_matmul(
        a,
        stacked,
        torch.tensor([0, 96, 192, 288], dtype=torch.int32, device="cuda"),
        invariant=True,
    )
    for offsets in ([0, 1, 200, 288], [0, 288, 288, 288]):
        starts = torch.tensor(offsets, dtype=torch.int32, device="cuda")
        assert not int(changed(codegen.grouped_matmul(a, stacked, starts, invariant=True), first))


def test_c_and_scalars():
    a, b = layer(512, 7168, 500)
    c = torch.randn(500, 512, device="cuda", dtype=torch.bfloat16)
    whole = codegen.matmul(a, b, c, None, 0.7, -1.3, invariant=True)
    for m in (1, 33, 256):
        found = codegen.matmul(a[:m], b, c[:m], None, 0.7, -1.3, invariant=True)
        assert not int(changed(found, whole[:m]))


def test_launches_of_a_cuda_graph_have_the_same_bits():
    a, b = layer(512, 7168, 64)
    whole, out = (
        codegen.matmul(a, b, invariant=True),
        torch.empty(64, 512, device="cuda").bfloat16(),
    )
    codegen.matmul(a, b, out=out, invariant=True)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        codegen.matmul(a, b, out=out, invariant=True)
    for _ in range(3):
        out.fill_(float("nan"))
        graph.replay()
        assert not int(changed(out, whole))


def test_stream_k_changes_bits():
    """Stream-K, which adds in another order, gives other bits.

    The test shows that comparisons of bits, which other tests of this file make, can fail.
    """
    a, b = layer(512, 7168, 64)
    split = codegen.matmul(a, b, plan="64x64x64 stream-k{owner=last} on 100")
    assert int(changed(split, codegen.matmul(a, b, invariant=True)))


def test_what_cannot_be_invariant_is_refused():
    a, b = layer(512, 7168, 64)
    with pytest.raises(LaunchError, match="m decides the alignment"):
        codegen.matmul(a.t().contiguous().t(), b, invariant=True)
    moved = torch.empty(a.numel() + 1, device="cuda", dtype=a.dtype)[1:].view(a.shape)
    with pytest.raises(LaunchError, match="pass a contiguous copy of a"):
        codegen.matmul(moved, b, invariant=True)


def test_operators_of_pytorch():
    from codegen.torch import use_kernels

    linear = torch.nn.Linear(7168, 512, device="cuda", dtype=torch.bfloat16)
    x = layer(512, 7168, 300)[0]
    with torch.no_grad(), use_kernels(invariant=True):
        whole = linear(x)
        for m in (1, 40, 256):
            assert not int(changed(linear(x[:m]), whole[:m]))
        turned = x.t().contiguous().t()
        assert not int(changed(linear(turned), whole))


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("n", "k"), LAYERS[:3])
def test_every_m(n: int, k: int):
    """The bits of a row are the same for every m from 1 to 8192."""
    a, b = layer(n, k)
    rows = range(1, MOST + 1)
    plans = compiled_plans(request_of(a, b), rows)
    whole = codegen.matmul(a, b, invariant=True)
    wrong = torch.zeros(MOST + 1, dtype=torch.int64, device="cuda")
    for m in rows:
        try:
            found = codegen.matmul(a[:m], b, invariant=True, plan=plans[m])
        except CodegenError:  # the device refuses this plan; the next one is tried
            found = codegen.matmul(a[:m], b, invariant=True)
        wrong[m] = changed(found, whole[:m])
    assert not [m for m, count in enumerate(wrong.tolist()) if count]


@ep.epilogue(total=ep.output("m", reduce="sum"), exponential=ep.output("m", reduce="logsumexp"))
def with_reductions(acc: Any) -> Any:
    return acc, acc, acc


@pytest.mark.parametrize(("n", "k"), [(4096, 1024), (264, 1000), (136, 1001)])
def test_reductions_of_rows_have_the_same_bits_for_every_m(n: int, k: int):
    a, b = layer(n, k, 2048)
    whole = codegen.matmul(a, b, invariant=True, epilogue=with_reductions)
    for m in (1, 16, 65, 300, 1024, 2047):
        found = codegen.matmul(a[:m], b, invariant=True, epilogue=with_reductions)
        for one, every in zip(found, whole, strict=True):
            different = one.contiguous().view(torch.uint8) != every[:m].contiguous().view(
                torch.uint8
            )
            assert not different.any(), m


def test_losses_and_groups_have_the_same_bits_for_every_m():
    import codegen.torch as cgt

    hidden, weight = layer(5000, 512, 600)
    targets = torch.arange(600, device="cuda")

    def losses(tokens: int) -> tuple[Any, Any]:
        rows = hidden[:tokens].clone().requires_grad_()
        options: Any = {"reduction": "none", "invariant": True}
        found = cgt.cross_entropy(rows, weight.t(), targets[:tokens], **options)
        return found.detach(), torch.autograd.grad(found.sum(), rows)[0]

    whole = losses(600)
    for tokens in (1, 65, 300):
        for one, every in zip(losses(tokens), whole, strict=True):
            assert torch.equal(one, every[:tokens]), tokens
    experts = torch.stack([weight, weight.flip(0)])

    def of_group(rows: int) -> Any:
        ends = torch.tensor([rows, 600], device="cuda", dtype=torch.int32)
        return cgt.grouped_mm(hidden, experts, offs=ends, invariant=True)

    assert torch.equal(of_group(33)[:33], of_group(600)[:33])
