"""The index expressions of two kernels equal those in golden files."""

from __future__ import annotations

import codegen
from coordgraph import Gemm
from passes import DataParallel, StreamK
from tests.support.golden import Golden


def lines(kernel: codegen.Kernel) -> str:
    return "\n".join(map(str, kernel.index_expressions))


def test_data_parallel(golden: Golden):
    graph = DataParallel()(Gemm().graph((128, 128, 32)))
    golden(lines(codegen.compile(graph, "sm_80")), "codegen/nvptx/data-parallel.indices.txt")


def test_stream_k(golden: Golden):
    graph = StreamK(workgroups=132)(Gemm("f16", "f32", transpose_b=True).graph((128, 64, 32)))
    golden(lines(codegen.compile(graph, "sm_80")), "codegen/nvptx/stream-k.indices.txt")
