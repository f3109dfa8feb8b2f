"""Run kernels on tensors that begin or end at a memory page without access rights.

Run as `python -m tests.codegen.cpu.fenced`, in a process of its own: an access one element outside
a tensor ends the process.
"""

from __future__ import annotations

import ctypes
import mmap

import numpy as np

from codegen.targets.cpu import HostKernel
from coordgraph.interpreter.arguments import numpy_dtype
from tests.codegen.cpu.kernels import kernel

PAGE = mmap.PAGESIZE
SIZES = ((1, 1, 1), (13, 41, 25), (24, 80, 48), (5, 100, 3), (37, 3, 70))
_kept: list[mmap.mmap] = []


def fenced(shape: tuple[int, int], kind: np.dtype, *, at_end: bool) -> np.ndarray:
    """An array of zeros that begins right after, or ends right before, a page without access
    rights.
    """
    size = shape[0] * shape[1] * kind.itemsize
    pages = -(-size // PAGE) + 2
    memory = mmap.mmap(-1, pages * PAGE)
    _kept.append(memory)
    start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    protect = ctypes.CDLL(None, use_errno=True).mprotect
    protect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    for page in (0, pages - 1):
        assert protect(start + page * PAGE, PAGE, 0) == 0
    offset = (pages - 1) * PAGE - size if at_end else PAGE
    return np.frombuffer(memory, kind, shape[0] * shape[1], offset).reshape(shape)


def check(code: HostKernel, m: int, n: int, k: int, *, at_end: bool) -> None:
    """Run a kernel on tensors that end (`at_end`) or begin at a page without access rights."""
    gemm = code.graph.gemm
    kind = numpy_dtype(gemm.dtype)
    shapes = (k, m) if gemm.transpose_a else (m, k), (n, k) if gemm.transpose_b else (k, n)
    a, b, c, out = (fenced(shape, kind, at_end=at_end) for shape in (*shapes, (m, n), (m, n)))
    a[...], b[...], c[...] = 1, 1, 2
    workgroups = {} if "data-parallel" in code.graph.log else {"workgroups": 3}
    code(a, b, c, out=out, beta=1.0, threads=2, **workgroups)
    assert (out == k + 2).all()


def main() -> None:
    codes = [
        kernel("stream-k"),
        kernel("data-parallel", dtype="bf16"),
        kernel("data-parallel", transpose_a=True),
        kernel("data-parallel", transpose_b=True),
    ]
    for code in codes:
        for sizes in SIZES:
            for at_end in (False, True):
                check(code, *sizes, at_end=at_end)
    print("inside")


if __name__ == "__main__":
    main()
