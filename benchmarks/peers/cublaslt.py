"""Call cuBLASLt by ctypes: list the algorithms that its heuristics propose, multiply by each.

Names and numbers are those of cublasLt.h, cublas_api.h and library_types.h of CUDA 12 and 13.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from ctypes import byref, c_float, c_int, c_int64, c_size_t, c_uint64, c_void_p
from pathlib import Path
from typing import Any
from weakref import finalize

from benchmarks.peers.contender import Unavailable
from benchmarks.problems.problem import Problem, Run

__all__ = ["Lt", "Product", "find_library"]

COMPUTE_32F, R_32F = 68, 0
R_TYPES = {"f16": 2, "bf16": 14}
TRANSA, TRANSB = 3, 4  # values of cublasLtMatmulDescAttributes_t
MAX_WORKSPACE_BYTES = 1  # a value of cublasLtMatmulPreferenceAttributes_t
OPERATIONS = {False: 0, True: 1}
WORKSPACE = 32 << 20
"""Size of cuBLASLt's workspace in bytes: what NVIDIA recommends for Hopper, as in PyTorch."""
SONAMES = ("libcublasLt.so.13", "libcublasLt.so.12", "libcublasLt.so")


class Heuristic(ctypes.Structure):
    """cublasLtMatmulHeuristicResult_t: an algorithm and the size of the workspace that it needs."""

    _fields_ = (
        ("algorithm", c_uint64 * 8),
        ("workspace", c_size_t),
        ("state", c_int),
        ("waves", c_float),
        ("reserved", c_int * 4),
    )


def find_library(maps: str = "/proc/self/maps") -> ctypes.CDLL:
    """The libcublasLt that this process has loaded, else the first that the dynamic linker finds.

    Raises:
        Unavailable: the library is not installed.
    """
    names: list[str] = []
    if Path(maps).exists():
        lines = Path(maps).read_text().splitlines()
        names = [line.split(maxsplit=5)[-1] for line in lines if "/libcublasLt.so" in line]
    for name in dict.fromkeys([*names, *SONAMES]):
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    raise Unavailable("libcublasLt is not found; install PyTorch with CUDA, which contains it")


def _destroy(library: ctypes.CDLL, layouts: Iterable[c_void_p], description: c_void_p) -> None:
    for layout in layouts:
        library.cublasLtMatrixLayoutDestroy(layout)
    library.cublasLtMatmulDescDestroy(description)


class Lt:
    """A cublasLt handle and its workspace."""

    def __init__(self) -> None:
        import torch

        torch.cuda.init()  # PyTorch loads libcublasLt, and creates a CUDA context
        self.library = find_library()
        self.torch = torch
        self.handle = c_void_p()
        self.call("cublasLtCreate", byref(self.handle))
        self.workspace = torch.empty(WORKSPACE, device="cuda", dtype=torch.uint8)

    def call(self, name: str, *args: Any) -> None:
        """Call a function of cuBLASLt; raises Unavailable if its status is not success."""
        if status := getattr(self.library, name)(*args):
            raise Unavailable(f"{name} fails with status {status}")

    def product(self, problem: Problem) -> Product:
        """The cuBLASLt description of a problem's product."""
        return Product(self, problem)


class Product:
    """The product D = A · B of row-major matrices, as cuBLASLt computes it.

    cuBLASLt is column-major, so it is given the operands in reverse order: a row-major matrix is
    the transpose of a column-major one, and Dᵀ = Bᵀ · Aᵀ.
    """

    def __init__(self, lt: Lt, problem: Problem) -> None:
        self.lt = lt
        shape, kind = problem.shape, R_TYPES[problem.dtype]
        self.one, self.zero = c_float(1.0), c_float(0.0)
        self.description = c_void_p()
        lt.call("cublasLtMatmulDescCreate", byref(self.description), COMPUTE_32F, R_32F)
        for attribute, transpose in ((TRANSA, problem.transpose_b), (TRANSB, problem.transpose_a)):
            value = c_int(OPERATIONS[transpose])
            lt.call(
                "cublasLtMatmulDescSetAttribute",
                self.description,
                attribute,
                byref(value),
                c_size_t(ctypes.sizeof(value)),
            )
        a = (shape.k, shape.m) if problem.transpose_a else (shape.m, shape.k)
        b = (shape.n, shape.k) if problem.transpose_b else (shape.k, shape.n)
        self.a, self.b, self.d = (self._layout(kind, *s) for s in (a, b, (shape.m, shape.n)))
        finalize(self, _destroy, lt.library, (self.a, self.b, self.d), self.description)

    def _layout(self, kind: int, rows: int, columns: int) -> c_void_p:
        """The cuBLASLt layout of a row-major matrix, described as its column-major transpose."""
        made = c_void_p()
        sizes = c_uint64(columns), c_uint64(rows), c_int64(columns)
        self.lt.call("cublasLtMatrixLayoutCreate", byref(made), kind, *sizes)
        return made

    def algorithms(self, count: int) -> list[Heuristic]:
        """Up to `count` algorithms that cuBLASLt proposes, the least estimated time first."""
        preference, most = c_void_p(), c_size_t(WORKSPACE)
        self.lt.call("cublasLtMatmulPreferenceCreate", byref(preference))
        self.lt.call(
            "cublasLtMatmulPreferenceSetAttribute",
            preference,
            MAX_WORKSPACE_BYTES,
            byref(most),
            c_size_t(ctypes.sizeof(most)),
        )
        found, results = c_int(), (Heuristic * count)()
        self.lt.call(
            "cublasLtMatmulAlgoGetHeuristic",
            self.lt.handle,
            self.description,
            self.b,
            self.a,
            self.d,
            self.d,
            preference,
            count,
            results,
            byref(found),
        )
        self.lt.call("cublasLtMatmulPreferenceDestroy", preference)
        return [result for result in results[: found.value] if result.state == 0]

    def run_with(self, heuristic: Heuristic) -> Run:
        """A function that computes the product by the algorithm in `heuristic`."""
        lt, torch = self.lt, self.lt.torch
        workspace = c_void_p(lt.workspace.data_ptr())
        size = c_size_t(heuristic.workspace)
        algorithm = heuristic.algorithm

        def run(a: Any, b: Any, out: Any) -> None:
            d = c_void_p(out.data_ptr())
            lt.call(
                "cublasLtMatmul",
                lt.handle,
                self.description,
                byref(self.one),
                c_void_p(b.data_ptr()),
                self.b,
                c_void_p(a.data_ptr()),
                self.a,
                byref(self.zero),
                d,
                self.d,
                d,
                self.d,
                byref(algorithm),
                workspace,
                size,
                c_void_p(torch.cuda.current_stream().cuda_stream),
            )

        return run
