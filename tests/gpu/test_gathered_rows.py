"""Gathered rows of A and scattered rows of D on the GPU, against PyTorch's indexing."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

import codegen
from coordgraph import Gemm
from passes import DataParallel, StreamK
from passes.lowering import LowerToHopper
from tests.codegen.nvptx.test_gathering import LOWERINGS

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.usefixtures("gpu")

FAMILIES = {"sm_80": ("mma.sync", 32), "sm_90a": ("wgmma", 64)}
"""For each architecture: the matrix instructions, and the extent of a tile in k."""
BOUND = 2e-2
"""Largest error of 16-bit results (sums are in f32), relative to the largest element."""


def normal(*shape: int) -> Any:
    return torch.randn(shape, device="cuda").to(torch.bfloat16)


def check(ours: Any, exact: Any) -> None:
    """Compare a 16-bit result with that of the same product in f32."""
    assert ours.shape == exact.shape
    assert (ours.float() - exact).abs().max() <= BOUND * exact.abs().max()


def tables(rows: int, m: int, targets: int) -> tuple[Any, Any]:
    """m random row numbers below `rows`, some repeated, and m distinct ones below `targets`."""
    found = torch.randint(rows, (m,), device="cuda", dtype=torch.int32)
    return found, torch.randperm(targets, device="cuda")[:m].to(torch.int32)


@pytest.mark.parametrize("shape", [(300, 256, 512), (37, 136, 72), (1000, 130, 200)], ids=str)
@pytest.mark.parametrize("what", ["rows", "targets", "both"])
def test_matmul_gathers_and_scatters(shape: tuple[int, int, int], what: str):
    m, n, k = shape
    rows, targets = tables(500, m, m + 50)
    a, b = normal(m if what == "targets" else 500, k), normal(n, k)
    left = a if what == "targets" else a[rows.long()]
    exact = left.float() @ b.float().T
    if what == "rows":
        check(codegen.matmul(a, b, transpose_b=True, rows=rows), exact)
        return
    out = torch.full((m + 50, n), float("nan"), device="cuda", dtype=torch.bfloat16)
    given = {"targets": targets} if what == "targets" else {"rows": rows, "targets": targets}
    for _ in range(3):
        codegen.matmul(a, b, transpose_b=True, out=out, **given)
    check(out[targets.long()], exact)
    assert int(out.isnan().all(1).sum()) == 50


@pytest.mark.parametrize("architecture", ["sm_80", "sm_90a"])
@pytest.mark.parametrize(
    "schedule", [DataParallel(persistent=True), StreamK(owner="last")], ids=str
)
def test_groups_of_a_mixture_of_experts(architecture: str, schedule: Any):
    """Tokens are gathered by expert and scattered back; the host never reads the tables."""
    experts, tokens, n, k = 4, 700, 256, 320
    offsets = torch.tensor([0, 200, 200, 655, 690], device="cuda", dtype=torch.int32)
    rows, targets = tables(tokens, 690, 900)
    a, b = normal(tokens, k), normal(experts, n, k)
    gemm = Gemm("bf16", grouped=True, transpose_b=True, gathered_rows=True, scattered_rows=True)
    family, depth = FAMILIES[architecture]
    scheduled = schedule(gemm.graph((128, 128, depth)))
    kernel = codegen.compile(scheduled, architecture, instructions=family)
    out = torch.full((900, n), float("nan"), device="cuda", dtype=torch.bfloat16)
    for _ in range(3):
        kernel(a, b, rows=rows, targets=targets, offsets=offsets, out=out)
    left, ends = a[rows.long()], offsets.tolist()
    for group, (start, end) in enumerate(itertools.pairwise(ends)):
        if start < end:
            exact = left[start:end].float() @ b[group].float().T
            check(out[targets[start:end].long()], exact)
    assert int(out.isnan().all(1).sum()) == 900 - 690


@pytest.mark.parametrize("shape", [(1000, 328, 520), (300, 256, 64), (131, 1024, 4096)], ids=str)
@pytest.mark.parametrize("case", range(len(LOWERINGS)))
def test_lowerings_gather(case: int, shape: tuple[int, int, int]):
    """Threads gather rows of A into the ring that TMA fills with B, for every kind of lowering."""
    schedule, tile, options = LOWERINGS[case]
    m, n, k = shape
    rows, _ = tables(700, m, m)
    a, b = normal(700, k), normal(n, k)
    graph = schedule(Gemm("bf16", transpose_b=True, gathered_rows=True).graph(tile))
    kernel = codegen.compile(graph, "sm_90a", lowering=LowerToHopper(**options))
    exact = a[rows.long()].float() @ b.float().T
    for _ in range(5):
        out = torch.full((m, n), float("nan"), device="cuda", dtype=torch.bfloat16)
        check(kernel(a, b, rows=rows, out=out), exact)


@pytest.mark.parametrize("what", ["rows", "targets"])
def test_a_column_major_out_has_the_rows_of_the_table(what: str):
    """The kernel gathers and scatters rows, not columns, also if D is square."""
    a, b = normal(256, 320), normal(256, 320)
    entries = torch.randperm(256, device="cuda").to(torch.int32)
    out = torch.full((256, 256), float("nan"), device="cuda", dtype=torch.bfloat16).T
    codegen.matmul(a, b, transpose_b=True, out=out, **{what: entries})
    left = a[entries.long()] if what == "rows" else a
    check(out if what == "rows" else out[entries.long()], left.float() @ b.float().T)


def test_rows_that_are_no_multiple_of_16_bytes_are_gathered():
    """Elements in the gap between rows are not read, even if they are NaN."""
    whole = torch.full((500, 72), float("nan"), device="cuda", dtype=torch.bfloat16)
    a, b = whole[:, :68], normal(128, 72)[:, :68]
    a.copy_(normal(500, 68))
    rows, _ = tables(500, 300, 300)
    check(codegen.matmul(a, b, transpose_b=True, rows=rows), a[rows.long()].float() @ b.float().T)


def test_a_graph_is_replayed_with_other_tables():
    a, b = normal(500, 256), normal(256, 128)
    rows, _ = tables(500, 300, 300)
    out = torch.empty(300, 128, device="cuda", dtype=torch.bfloat16)
    codegen.matmul(a, b, rows=rows, out=out)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        codegen.matmul(a, b, rows=rows, out=out)
    for _ in range(3):
        rows.copy_(tables(500, 300, 300)[0])
        graph.replay()
        torch.cuda.synchronize()
        check(out, a[rows.long()].float() @ b.float())
