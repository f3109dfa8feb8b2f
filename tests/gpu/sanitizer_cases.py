"""A few small launches for compute-sanitizer: `python -m tests.gpu.sanitizer_cases`.

Exits with a message unless every result is exact. It needs no array library, so that the sanitizer
watches nothing but our kernels.
"""

from __future__ import annotations

import sys

import numpy as np

import codegen
from codegen.nvptx.driver import device
from codegen.nvptx.memory import DeviceMemory
from coordgraph import Gemm
from passes import DataParallel, Pass, SplitK, StreamK, TwoTileStreamK

# Schedule, tile, layout, the sizes m, n, k, the grid where the schedule leaves it open, target.
CASES: tuple[tuple[Pass, tuple[int, int, int], str, tuple[int, int, int], int | None, str], ...] = (
    (DataParallel(), (64, 64, 32), "nn", (72, 80, 64), None, "sm_80"),
    (DataParallel(), (32, 48, 16), "tt", (37, 51, 45), None, "sm_80"),
    (StreamK(), (32, 32, 32), "nt", (72, 72, 264), 5, "sm_80"),
    (StreamK(owner="last"), (32, 32, 32), "nn", (33, 35, 263), 6, "sm_80"),
    (TwoTileStreamK(), (32, 32, 16), "tn", (104, 96, 80), 5, "sm_80"),
    (StreamK(reduction="turnstile"), (32, 32, 32), "nn", (33, 35, 263), 6, "sm_80"),
    (StreamK(reduction="scatter"), (32, 32, 32), "tn", (40, 40, 264), 6, "sm_80"),
    (StreamK(reduction="scatter"), (128, 64, 64), "nt", (136, 128, 392), 7, "native"),
    (SplitK(splits=4), (32, 32, 32), "nt", (72, 72, 264), None, "sm_80"),
    (SplitK(splits=3), (128, 128, 64), "nt", (136, 72, 456), None, "native"),
    (StreamK(), (128, 64, 64), "nn", (136, 128, 392), 3, "native"),
    (DataParallel(), (128, 128, 64), "nt", (136, 72, 200), None, "native"),
)


def run(number: int) -> None:
    """Launch a case twice, C and all, and compare; whole numbers make the results exact."""
    schedule, tile, layout, (m, n, k), workgroups, target = CASES[number]
    a_turned, b_turned = (side == "t" for side in layout)
    gemm = Gemm("f16", "f32", transpose_a=a_turned, transpose_b=b_turned)
    kernel = codegen.compile(schedule(gemm.graph(tile)), target)
    chance = np.random.default_rng(number)
    a, b = (chance.integers(-3, 4, shape).astype(np.float16) for shape in ((m, k), (k, n)))
    c = chance.integers(-9, 10, (m, n)).astype(np.float32)
    exact = 2 * (a.astype(np.float32) @ b.astype(np.float32)) - c
    with DeviceMemory(device(0)) as memory:
        views = [
            memory.upload(x.T if turned else x)
            for x, turned in ((a, a_turned), (b, b_turned), (c, False))
        ]
        for _ in range(2):
            found = np.full((m, n), np.nan, np.float32)
            out = memory.upload(found)
            kernel(*views, out=out, alpha=2.0, beta=-1.0, workgroups=workgroups)
            memory.download(out, found)
            if not np.array_equal(found, exact):
                sys.exit(f"case {number} ({schedule}, {tile}, {layout}) is wrong")
    print(f"case {number}: {schedule} {tile} {layout} is exact", flush=True)


if __name__ == "__main__":
    for which in map(int, sys.argv[1:] or range(len(CASES))):
        run(which)
