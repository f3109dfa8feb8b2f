"""Tests of `codegen.torch` under `torch.export` and `torch.compile` for several sizes.

Exported programs have dynamic shapes. New sizes cause no more compilations than PyTorch's own
functions do.
"""

from __future__ import annotations

import io
from typing import Any

import pytest

from tests.codegen.torch.conftest import Make

SIZES = [(2, 5, 6), (3, 9, 4), (4, 17, 30), (2, 2, 2), (3, 33, 7)]
"""Sizes (batch, m, n) of the inputs."""
ONES = [(1, 4, 5), (1, 1, 1), (5, 1, 3), (2, 5, 1)]
"""Sizes (batch, m, n) with an extent of 1, for which PyTorch recompiles its own operators too."""


def every_operator(torch: Any) -> Any:
    """A module that calls every function and layer of `codegen.torch`."""
    import codegen.torch as cgt

    class Every(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear, self.plain = cgt.Linear(7, 6), cgt.Linear(7, 6, bias=False)
            self.feed_forward = cgt.SwiGLU(7, 10)
            self.experts = torch.nn.Parameter(torch.randn(3, 7, 6))

        def forward(self, x: Any, y: Any, offs: Any) -> tuple[Any, ...]:
            """Results of all functions for x (batch, m, 7), y (batch, 7, n) and group offsets."""
            d = self.linear(x) + self.plain(x)
            rows = self.feed_forward(x).flatten(0, 1)
            return (
                *(d, cgt.matmul(x, y), cgt.bmm(x, y), cgt.matmul(x, y[0]), cgt.matmul(x[0], y)),
                cgt.addmm(d[0, 0], x[0], self.linear.weight.t()),
                *(cgt.matmul(x[0, 0], y[0]), cgt.grouped_mm(rows, self.experts, offs=offs)),
            )

    return Every()


def inputs(torch: Any, batch: int, m: int, n: int) -> tuple[Any, ...]:
    rows = batch * m
    offs = torch.tensor([rows // 4, rows // 2, rows], dtype=torch.int32)
    return torch.randn(batch, m, 7), torch.randn(batch, 7, n), offs


def compare(torch: Any, found: Any, right: Any) -> None:
    for ours, theirs in zip(found, right, strict=True):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("strict", [False, True])
# torch.export itself calls deprecated functions, which warn. PyTorch 2.11 warns, at the first load
# of a process, that torch.export.load makes tensors of read-only bytes, to which nothing writes.
@pytest.mark.filterwarnings(
    "ignore::FutureWarning",
    "ignore::DeprecationWarning",
    "ignore:The given buffer is not writable:UserWarning",
)
def test_export(torch: Any, strict: bool):
    """A program exported by `torch.export` takes all sizes, also after it was saved and loaded."""
    model, dim = every_operator(torch), torch.export.Dim
    shapes = ({0: dim("batch"), 1: dim("m")}, {0: dim("batch"), 2: dim("n")}, None)
    given = inputs(torch, *SIZES[0])
    exported = torch.export.export(model, given, dynamic_shapes=shapes, strict=strict)
    file = io.BytesIO()
    torch.export.save(exported, file)
    file.seek(0)
    program = torch.export.load(file)
    called = {str(node.target) for node in program.graph.nodes}
    names = ("matmul", "addmm", "grouped_mm")
    assert {f"coordgraph.{name}.default" for name in names} <= called
    run = program.module()
    for sizes in (*SIZES, *ONES):
        given = inputs(torch, *sizes)
        compare(torch, run(*given), model(*given))


@pytest.mark.parametrize("dynamic", [True, None])
def test_one_graph_for_all_sizes(torch: Any, dynamic: bool | None):
    """With `dynamic=True`, one graph is compiled for all sizes; by default, two.

    By default the first graph has fixed sizes, so the first call with other sizes compiles another.
    """
    model = every_operator(torch)
    counter: Any = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(model, fullgraph=True, backend=counter, dynamic=dynamic)
    for sizes in SIZES:
        given = inputs(torch, *sizes)
        compare(torch, compiled(*given), model(*given))
    assert counter.frame_count == (1 if dynamic else 2)


def test_extents_of_1_compile_no_more_than_pytorch(torch: Any, make: Make):
    import codegen.torch as cgt

    functional = torch.nn.functional
    pairs = {
        "linear": (cgt.linear, functional.linear, lambda b, m, n: ((b, m, 7), (n, 7), (n,))),
        "matmul": (cgt.matmul, torch.matmul, lambda b, m, n: ((b, m, 7), (b, 7, n))),
        "addmm": (cgt.addmm, torch.addmm, lambda b, m, n: ((n,), (m, 7), (7, n))),
    }
    for name, (ours, theirs, shapes) in pairs.items():
        counts: list[int] = []
        for work in (ours, theirs):
            torch._dynamo.reset()
            counter: Any = torch._dynamo.testing.CompileCounter()
            compiled = torch.compile(work, fullgraph=True, backend=counter)
            for sizes in (*SIZES, *ONES):
                given = [make(*shape) for shape in shapes(*sizes)]
                torch.testing.assert_close(compiled(*given), theirs(*given))
            counts.append(counter.frame_count)
        assert counts[0] <= counts[1], name
