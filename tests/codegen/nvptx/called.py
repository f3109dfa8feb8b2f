"""Small kernels and operands for tests of calls with the fake driver."""

from __future__ import annotations

from typing import Any

import codegen
from codegen.targets.nvptx import CudaKernel
from coordgraph import Gemm
from passes import DataParallel, Pass
from tests.codegen.nvptx.fake_driver import FakeDriver, matrix

__all__ = [
    "A_AT",
    "B_AT",
    "C_AT",
    "D_AT",
    "TILE",
    "K",
    "M",
    "N",
    "count_arguments",
    "kernel",
    "operands",
]

M, N, K = 256, 512, 128
A_AT, B_AT, C_AT, D_AT = (i << 24 for i in (1, 2, 3, 4))
TILE = (128, 128, 64)


def kernel(
    schedule: Pass | None = None, target: str = "sm_80", tile: Any = TILE, **gemm: Any
) -> CudaKernel:
    made = codegen.compile((schedule or DataParallel())(Gemm(**gemm).graph(tile)), target)
    assert isinstance(made, CudaKernel)
    return made


def count_arguments(made: CudaKernel, fake: FakeDriver) -> None:
    """Tell the fake driver how many arguments to read: as many as the kernel `made` declares."""
    head = made.ptx[made.ptx.index(".entry") : made.ptx.index("{")]
    fake.arguments = head.count(".param")


def operands(m: int = M, n: int = N, k: int = K, **at: int) -> tuple[Any, Any, Any, Any]:
    place = {"a": A_AT, "b": B_AT, "c": C_AT, "d": D_AT, **at}
    return (
        matrix(m, k, place["a"]),
        matrix(k, n, place["b"]),
        matrix(m, n, place["c"]),
        matrix(m, n, place["d"]),
    )
