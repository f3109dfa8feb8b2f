"""Calls on a GPU that a loaded kernel serves while another process builds the better kernel."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import codegen
from codegen.call import background_compiler, build, matmul

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.usefixtures("gpu")

LONG = 120.0
"""Seconds that a test waits for a kernel before it fails."""
SIZES = (2048, 2304, 1024), (512, 4096, 512), (96, 1024, 4096), (1000, 1000, 1000)
"""Sizes (m, n, k). Each test begins with the best kernel of the first size only; for the other
sizes, other kernels are better.
"""


@pytest.fixture
def cold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Begin the test with an empty disk cache and one loaded kernel: the best for SIZES[0]."""
    assert background_compiler.wait(LONG)
    monkeypatch.setenv("COORDGRAPH_CACHE", str(tmp_path))
    matmul.forget()
    Product(SIZES[0]).check(background=False)
    yield
    assert background_compiler.wait(LONG)
    matmul.forget()


class Product:
    """A product of small integers: f32 sums are exact in every order, so D has one right value."""

    def __init__(self, size: tuple[int, int, int], seed: int = 0) -> None:
        m, n, k = size
        random = torch.Generator("cuda").manual_seed(seed)
        draw: Any = {"generator": random, "device": "cuda"}
        self.a = torch.randint(-1, 2, (m, k), **draw).bfloat16()
        self.b = torch.randint(-1, 2, (k, n), **draw).bfloat16()
        self.expected = (self.a.float() @ self.b.float()).bfloat16()
        self.out = torch.empty_like(self.expected)

    def __call__(self, **options: Any) -> None:
        codegen.matmul(self.a, self.b, out=self.out, **options)

    def check(self, **options: Any) -> None:
        self.out.fill_(float("nan"))
        self(**options)
        assert torch.equal(self.out, self.expected)


def kernels() -> set[str]:
    """The plans of the kernels that this process has built."""
    return {key[0] for key in build._kernels}


def test_calls_do_not_wait_for_the_compiler(cold: None):
    products = [Product(size) for size in SIZES[1:]]
    before = kernels()
    for product in products:
        start = time.perf_counter()
        product(background=True)
        print(f"first call with a new size: {1e3 * (time.perf_counter() - start):.1f} ms")
        assert torch.equal(product.out, product.expected)
    assert kernels() == before
    times: list[float] = []
    while not background_compiler.wait(0):
        start = time.perf_counter()
        products[0](background=True)
        times.append(time.perf_counter() - start)
    times.sort()
    print(
        f"{len(times)} calls meanwhile: {1e6 * times[len(times) // 2]:.1f} us in the median, "
        f"{1e3 * times[-1]:.1f} ms at most"
    )
    for product in products:
        product.check(background=True)
    # The built kernels are listed before calling `matmul.chosen`, because it may build a kernel.
    built = kernels()
    wanted = {matmul.chosen(product.a, product.b).kernel for product in products}
    assert wanted <= built
    assert wanted - before


def test_a_capture_while_kernels_are_built(cold: None):
    """Loading a kernel in the background does not end a CUDA graph capture."""
    product = Product(SIZES[2])
    product.check(background=True)
    graphs: list[Any] = []
    for size in SIZES[1:]:
        Product(size)(background=True)
    while not background_compiler.wait(0) or not graphs:
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            product(background=True)
        graphs = [*graphs[:1], graph]
    for graph in graphs:
        product.out.fill_(float("nan"))
        graph.replay()
        assert torch.equal(product.out, product.expected)


def test_threads_and_streams(cold: None):
    """Threads with a stream each get right results from loaded kernels, then from better ones."""

    def work(number: int) -> None:
        with torch.cuda.stream(torch.cuda.Stream()):
            products = [Product(size, number) for size in SIZES]
            for _ in range(10):
                for product in products:
                    product.check(background=True)
            assert background_compiler.wait(LONG)
            for product in products:
                product.check(background=True)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
