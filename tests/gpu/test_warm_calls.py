"""After a block of `warm_calls`, calls with sizes in the range compile nothing and are right."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import codegen
from codegen.call import build, families, matmul
from codegen.targets.nvptx import CudaKernel
from coordgraph import epilogue as ep

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.usefixtures("gpu")

N, K, GROUPS = 384, 256, 4


@ep.epilogue()
def swiglu(gate: Any, up: Any) -> Any:
    return ep.silu(gate) * up


@pytest.fixture
def cold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Begin and end the test without kernels, in memory and on disk."""
    monkeypatch.setenv("COORDGRAPH_CACHE", str(tmp_path))

    def forget() -> None:
        families.forget()
        matmul.forget()

    forget()
    yield
    forget()


def draw(*shape: int) -> Any:
    """Small integers, whose products and sums are exact in f32."""
    random = torch.Generator("cuda").manual_seed(len(shape))
    return torch.randint(-1, 2, shape, generator=random, device="cuda").bfloat16()


def linear(m: int) -> tuple[Any, Any]:
    import codegen.torch as cgt

    x, w, bias = draw(m, K), draw(N, K), draw(N)
    with torch.no_grad():
        return cgt.linear(x, w, bias), (x.float() @ w.float().T + bias.float()).bfloat16()


def gated(m: int) -> tuple[Any, Any]:
    a, b = draw(m, K), draw(K, 2 * N)
    gate, up = (a.float() @ b.float()).split(N, dim=1)
    return codegen.matmul(a, b, epilogue=swiglu), (torch.nn.functional.silu(gate) * up).bfloat16()


def batched(m: int) -> tuple[Any, Any]:
    a, b = draw(3, m, K), draw(3, K, N)
    return codegen.matmul(a, b), (a.float() @ b.float()).bfloat16()


def grouped(m: int) -> tuple[Any, Any]:
    a, b = draw(m, K), draw(GROUPS, K, N)
    ends = [group * m // GROUPS for group in range(GROUPS + 1)]
    offsets = torch.tensor(ends, dtype=torch.int32, device="cuda")
    parts = zip(ends, ends[1:], b, strict=False)
    right = torch.cat([a[low:high].float() @ each.float() for low, high, each in parts])
    return codegen.grouped_matmul(a, b, offsets), right.bfloat16()


def with_gaps(m: int) -> tuple[Any, Any]:
    a, b = draw(m, 3 * K)[:, K : 2 * K], draw(K, N)
    return codegen.matmul(a, b), (a.float() @ b.float()).bfloat16()


def loaded() -> int:
    """How many programs the kernels of this process have loaded."""
    kernels = (each for each in build._kernels.values() if isinstance(each, CudaKernel))
    return sum(len(kernel._functions) for kernel in kernels)


@pytest.mark.parametrize("call", [linear, gated, batched, grouped, with_gaps])
def test_calls_in_the_range_compile_nothing(cold: None, call: Callable[[int], tuple[Any, Any]]):
    with codegen.warm_calls(m=(1, 2048), kernels=3) as warmed:
        call(96)
    assert all(not kind.refused for kind in warmed.kinds)
    built, count = set(build._kernels), loaded()
    for m in (1, 2, 7, 96, 500, 1024, 2047, 2048):
        found, right = call(m)
        torch.testing.assert_close(found.float(), right.float(), atol=0.05, rtol=1e-2)
    assert (set(build._kernels), loaded()) == (built, count)
