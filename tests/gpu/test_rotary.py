"""GPU kernels with a rotary embedding agree with float64 within rounding."""

from __future__ import annotations

from typing import Any

import pytest

import codegen
from coordgraph import CodegenError, Gemm, PassError
from coordgraph import epilogue as ep
from passes import Pipeline
from tests.support.rotary import LAYOUT, halves, rotary

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.usefixtures("gpu")

LAYOUTS = [(parts, turned) for parts in ("stacked", "interleaved") for turned in (True, False)]
every_layout = pytest.mark.parametrize(("parts", "turned"), LAYOUTS)


@ep.epilogue(bias="ln")
def add_bias(acc: Any, bias: Any) -> Any:
    return acc + bias


def angles(m: int, pairs: int) -> tuple[Any, Any]:
    turns = torch.outer(torch.arange(m), 100.0 ** (-torch.arange(pairs) / pairs)).cuda()
    return turns.cos(), turns.sin()


def close(d: Any, product: Any, parts: str, cos: Any, sin: Any) -> None:
    """Check d: each pair of columns of `product`, rotated, is in the left and the right half.

    `parts` says which columns are a pair: `interleaved` pairs neighbours, else halves are paired.
    """
    x, y = (
        (product[..., ::2], product[..., 1::2]) if parts == "interleaved" else product.chunk(2, -1)
    )
    exact = torch.cat([x * cos - y * sin, y * cos + x * sin], -1)
    assert d.shape == exact.shape
    assert ((d.double() - exact).abs() <= 2.0**-6 * exact.abs().clamp(min=1)).all()


def matrices(m: int, n: int, k: int) -> tuple[Any, Any]:
    torch.manual_seed(m + n + k)
    return torch.randn(m, k).bfloat16().cuda(), (torch.randn(k, n) / k**0.5).bfloat16().cuda()


@every_layout
@pytest.mark.parametrize("instructions", ["wgmma", "mma.sync"])
@pytest.mark.parametrize("schedule", ["data-parallel", "stream-k{owner=last}", "split-k{splits=3}"])
def test_results(schedule: str, instructions: str, parts: str, turned: bool):
    gemm = Gemm("bf16", epilogue=rotary, parts=parts, transpose_b=turned, **LAYOUT)
    graph = Pipeline.parse(schedule)(gemm.graph(tile=(128, 128, 64)))
    try:
        kernel = codegen.compile(graph, instructions=instructions)
    except (CodegenError, PassError) as error:
        pytest.skip(str(error))
    for m, pairs, k in ((256, 256, 192), (200, 168, 72), (300, 24, 1000)):
        a, b = matrices(m, 2 * pairs, k)
        cos, sin = angles(m, pairs)
        d = torch.full((m, 2 * pairs), torch.nan, dtype=torch.bfloat16, device="cuda")
        kernel(a, b.t().contiguous() if turned else b, cos=cos, sin=sin, **halves(d))
        close(d, a.double() @ b.double(), parts, cos, sin)


@pytest.mark.parametrize("turned", [True, False])
def test_adjacent_pairs_and_apart_vectors(turned: bool):
    """Pairs are stored in columns 2·j and 2·j + 1; vectors may be strided or expanded."""
    for m, pairs, k in ((256, 256, 192), (300, 24, 1000), (1, 64, 72)):
        a, b = matrices(m, 2 * pairs, k)
        cos, sin = angles(m, pairs)
        d = torch.full((m, 2 * pairs), torch.nan, dtype=torch.bfloat16, device="cuda")
        given = b.t().contiguous().t() if turned else b
        options: Any = {"epilogue": rotary, "parts": "interleaved", "cos": cos, "sin": sin}
        codegen.matmul(a, given, out=d[:, ::2], right=d[:, 1::2], **options)
        found = torch.cat([d[:, ::2], d[:, 1::2]], -1)
        close(found, a.double() @ b.double(), "interleaved", cos, sin)
    wide = torch.randn(3, 2 * 200).bfloat16().cuda()
    a = torch.randn(3, 130, 96).bfloat16().cuda()
    b = torch.randn(3, 96, 200).bfloat16().cuda() / 10
    for bias in (
        wide[:, :200],
        wide[:, ::2],
        wide[:1, :200].expand(3, 200),
        wide[:, :1].expand(3, 200),
    ):
        exact = a.double() @ b.double() + bias.double()[:, None]
        d = codegen.matmul(a, b, epilogue=add_bias, bias=bias)
        assert ((d.double() - exact).abs() <= 2.0**-6 * exact.abs().clamp(min=1)).all()


@every_layout
def test_heads(parts: str, turned: bool):
    """`codegen.matmul` rotates the queries of all heads, which are a batch, in one launch."""
    m, heads, pairs, k = 200, 8, 64, 512
    x, weight = matrices(m, heads * 2 * pairs, k)
    cos, sin = angles(m, pairs)
    if turned:
        of_heads = weight.t().contiguous().view(heads, 2 * pairs, k).mT
    else:
        of_heads = weight.view(k, heads, 2 * pairs).transpose(0, 1)
    d = torch.full((m, heads, 2 * pairs), torch.nan, dtype=torch.bfloat16, device="cuda")
    views = halves(d.transpose(0, 1))
    codegen.matmul(x, of_heads, epilogue=rotary, parts=parts, cos=cos, sin=sin, **views)
    product = (x.double() @ weight.double()).view(m, heads, 2 * pairs).transpose(0, 1)
    close(d.transpose(0, 1), product, parts, cos, sin)
