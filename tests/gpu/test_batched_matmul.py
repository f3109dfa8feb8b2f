"""`codegen.matmul` of batches and `codegen.grouped_matmul` give the float64 result on a GPU."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

import codegen
from codegen.call import matmul, measured, tuning
from coordgraph import LaunchError
from tests.gpu.grouped import normal, on_device, poisoned

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.usefixtures("gpu")

TOLERANCE = 4e-3
"""Largest relative error of a result, in the Frobenius norm; bf16 rounds each element to 2⁻⁹."""
LAYOUTS = ("nn", "nt", "tn", "tt")
SIZES = (
    (64, 512, 512, 512),
    (3, 1000, 776, 2048),
    (96, 40, 128, 520),
    (7, 33, 65, 17),
    (1, 8, 8, 8),
)
GROUPS = (
    [0, 300, 300, 301, 1000, 1024],
    [0, 0, 0, 2048, 2048, 2048],
    [5, 20, 70, 700, 700, 2000],
    list(range(0, 2049, 64)),
)


def check(found: Any, want: Any) -> None:
    error = ((found.double() - want).norm() / want.norm().clamp(min=1e-30)).item()
    assert error < TOLERANCE


def turned(array: Any) -> Any:
    """A view with the values and shape of `array`, whose matrices are stored as transposes."""
    return array.mT.contiguous().mT


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("count", "m", "n", "k"), SIZES)
def test_batches(count: int, m: int, n: int, k: int, layout: str):
    a, b, c = normal(count, m, k), normal(count, k, n), normal(count, m, n)
    a, b = turned(a) if layout[0] == "t" else a, turned(b) if layout[1] == "t" else b
    want = a.double() @ b.double()
    for _ in range(2):
        check(codegen.matmul(a, b), want)
    check(codegen.matmul(a.mT, b.mT, transpose_a=True, transpose_b=True), want)
    out = poisoned(count, m, n)
    assert codegen.matmul(a, b, c, out, 1.5, -0.5) is out
    check(out, 1.5 * want - 0.5 * c.double())
    gaps = poisoned(count, 2, m, n)
    codegen.matmul(a, b, out=gaps[:, 0])
    check(gaps[:, 0], want)
    assert gaps[:, 1].isnan().all()


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("how", ["matrix", "expanded", "one of three axes"])
@pytest.mark.parametrize("which", ["a", "b"])
def test_one_matrix_for_all_products(layout: str, how: str, which: str):
    count, m, n, k = 6, 200, 264, 328
    each = {"a": normal(count, m, k), "b": normal(count, k, n)}
    one = each[which][0].clone()
    each[which] = {"matrix": one, "expanded": one.expand(count, -1, -1)}.get(how, one[None])
    for name, side in zip("ab", layout, strict=True):
        if side == "t" and not (name == which and how == "expanded"):
            each[name] = turned(each[name])
    want = each["a"].double() @ each["b"].double()
    check(codegen.matmul(**each), want)
    c, out = normal(count, m, n), poisoned(count, m, n)
    codegen.matmul(**each, c=c, out=out, beta=2.0)
    check(out, want + 2 * c.double())
    gaps = poisoned(count, 2, m, n)
    codegen.matmul(**each, out=gaps[:, 1])
    check(gaps[:, 1], want)
    assert gaps[:, 0].isnan().all()


@pytest.mark.parametrize("shape", [(0, 8, 8, 8), (3, 0, 8, 8), (3, 8, 0, 8), (3, 8, 8, 0)])
def test_extents_of_0(shape: tuple[int, int, int, int]):
    count, m, n, k = shape
    for a, b in (
        (normal(count, m, k), normal(count, k, n)),
        (normal(count, m, k), normal(k, n)),
        (normal(m, k), normal(count, k, n)),
    ):
        assert torch.equal(codegen.matmul(a, b), torch.matmul(a, b))


def test_a_batch_is_tuned(tmp_path: Any, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COORDGRAPH_CACHE", str(tmp_path))
    matmul.forget()
    measured.forget()
    a, b = normal(24, 384, 512), normal(24, 512, 640)
    want = a.double() @ b.double()
    check(codegen.matmul(a, b, tune=True), want)
    text = (tmp_path / measured.FILE).read_text()
    assert "24 of 384x640x512" in text
    matmul.forget()
    # The times are stored, so `find_fastest`, which would measure plans again, is not called.
    monkeypatch.setattr(tuning, "find_fastest", None)
    check(codegen.matmul(a, b, tune=True), want)
    check(codegen.matmul(a, b), want)


def test_a_batch_in_a_cuda_graph():
    a, b, out = normal(9, 256, 512), normal(9, 512, 384), poisoned(9, 256, 384)
    codegen.matmul(a, b.clone(), out=out)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        codegen.matmul(a, b, out=out)
    a.copy_(normal(9, 256, 512))
    graph.replay()
    torch.cuda.synchronize()
    check(out, a.double() @ b.double())


@pytest.mark.parametrize("layout", ["n", "t", "flag"])
@pytest.mark.parametrize("offsets", GROUPS, ids=len)
@pytest.mark.parametrize(("n", "k"), [(256, 1024), (776, 520), (33, 17)])
def test_groups_of_rows(n: int, k: int, offsets: list[int], layout: str):
    a, b = normal(2048, k), normal(len(offsets) - 1, k, n)
    given = turned(b) if layout == "t" else b.mT.contiguous() if layout == "flag" else b
    c, borders = normal(2048, n), on_device(offsets)
    for alpha, beta in ((1.0, 0.0), (1.5, -0.5)):
        out = poisoned(2048, n)
        codegen.grouped_matmul(
            *(a, given, borders),
            c=c if beta else None,
            out=out,
            alpha=alpha,
            beta=beta,
            transpose_b=layout == "flag",
        )
        for group, (begin, end) in enumerate(pairwise(offsets)):
            want = alpha * (a[begin:end].double() @ b[group].double())
            check(out[begin:end], want + beta * c[begin:end].double())
        assert out[: offsets[0]].isnan().all()
        assert out[offsets[-1] :].isnan().all()


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("offsets", GROUPS, ids=len)
@pytest.mark.parametrize(("m", "n"), [(256, 1024), (776, 520), (33, 17)])
def test_groups_of_k(m: int, n: int, offsets: list[int], layout: str):
    a, b, borders = normal(m, 2048), normal(2048, n), on_device(offsets)
    a, b = turned(a) if layout[0] == "t" else a, turned(b) if layout[1] == "t" else b
    found = codegen.grouped_matmul(a, b, borders, group_axis="k")
    assert found.shape == (len(offsets) - 1, m, n)
    for group, (begin, end) in enumerate(pairwise(offsets)):
        check(found[group], a[:, begin:end].double() @ b[begin:end].double())


def test_as_pytorch_has_groups():
    if not hasattr(torch, "_grouped_mm"):
        pytest.skip("this PyTorch has no _grouped_mm")
    offsets = [0, 304, 304, 1000, 2048]
    borders = on_device(offsets)
    a, b = normal(2048, 512), normal(4, 256, 512)
    found = codegen.grouped_matmul(a, b.mT, borders)
    check(found, torch._grouped_mm(a, b.mT, offs=borders[1:].contiguous()).double())
    x, y = normal(2048, 512), normal(2048, 256)
    found = codegen.grouped_matmul(x.T, y, borders, group_axis="k")
    check(found, torch._grouped_mm(x.T, y, offs=borders[1:].contiguous()).double())


def test_other_groups_in_a_cuda_graph():
    """A CUDA graph can be replayed for other groups after the offsets are overwritten in place."""
    matmul.forget()
    a, b, out = normal(2048, 512), normal(5, 512, 256), poisoned(2048, 256)
    borders = on_device(GROUPS[0])
    codegen.grouped_matmul(a, b, borders, out=out)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        codegen.grouped_matmul(a, b, borders, out=out)
    for offsets in GROUPS[:3]:
        borders.copy_(on_device(offsets))
        graph.replay()
        torch.cuda.synchronize()
        for group, (begin, end) in enumerate(pairwise(offsets)):
            check(out[begin:end], a[begin:end].double() @ b[group].double())


def test_offsets_on_the_host_are_refused():
    a, b = normal(64, 64), normal(2, 64, 64)
    with pytest.raises(LaunchError, match="offsets lies on 'cpu'"):
        codegen.grouped_matmul(a, b, on_device([0, 30, 64]).cpu())
