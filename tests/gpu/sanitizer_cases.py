"""A few small launches for compute-sanitizer: `python -m tests.gpu.sanitizer_cases`.

The program exits with a message unless every result is exact. The program needs no array library,
so the sanitizer checks only the project's own kernels.
"""

from __future__ import annotations

import sys
from itertools import pairwise

import numpy as np

import codegen
from codegen.targets.nvptx.driver import device
from codegen.targets.nvptx.memory import DeviceMemory
from coordgraph import Gemm
from passes import DataParallel, LongestFirst, Pass, Pipeline, SplitK, StreamK, TwoTileStreamK
from tests.support.lists import Sizes, ends_of, views

# A case has a schedule, macro tile, layout, (m, n, k), number of workgroups (None if a launch takes
# no such number), and target.
CASES: tuple[tuple[Pass, tuple[int, int, int], str, tuple[int, int, int], int | None, str], ...] = (
    (DataParallel(), (64, 64, 32), "nn", (72, 80, 64), None, "sm_80"),
    (DataParallel(), (32, 48, 16), "tt", (37, 51, 45), None, "sm_80"),
    (StreamK(), (32, 32, 32), "nt", (72, 72, 264), 5, "sm_80"),
    (StreamK(owner="last"), (32, 32, 32), "nn", (33, 35, 263), 6, "sm_80"),
    (TwoTileStreamK(), (32, 32, 16), "tn", (104, 96, 80), 5, "sm_80"),
    (StreamK(reduction="turnstile"), (32, 32, 32), "nn", (33, 35, 263), 6, "sm_80"),
    (StreamK(reduction="scatter"), (32, 32, 32), "tn", (40, 40, 264), 6, "sm_80"),
    (StreamK(reduction="scatter"), (128, 64, 64), "nt", (136, 128, 392), 7, "native"),
    (StreamK(reduction="atomic"), (32, 32, 32), "tt", (40, 40, 264), 6, "sm_80"),
    (StreamK(owner="last", reduction="atomic"), (128, 64, 64), "nt", (136, 72, 392), 5, "native"),
    (SplitK(splits=4), (32, 32, 32), "nt", (72, 72, 264), None, "sm_80"),
    (SplitK(splits=3), (128, 128, 64), "nt", (136, 72, 456), None, "native"),
    (StreamK(), (128, 64, 64), "nn", (136, 128, 392), 3, "native"),
    (DataParallel(), (128, 128, 64), "nt", (136, 72, 200), None, "native"),
)
# A case has a schedule, macro tile, (m, n), the k of each group, number of workgroups, and target.
# A is stored transposed.
GROUPS: tuple[tuple[Pass, tuple[int, int, int], tuple[int, int], list[int], int, str], ...] = (
    (StreamK(owner="last"), (32, 32, 32), (40, 72), [33, 0, 100, 7], 5, "sm_80"),
    (StreamK(owner="last"), (128, 64, 64), (136, 72), [65, 0, 200, 7], 3, "native"),
    (DataParallel(persistent=True), (128, 128, 64), (136, 136), [1, 130, 64], 4, "native"),
)
DEEPEST_FIRST = Pipeline([LongestFirst(), DataParallel(persistent=True)])
# A case has a schedule, macro tile, (m, n, k) of each product, number of workgroups, and target.
LISTS: tuple[tuple[Pass | Pipeline, tuple[int, int, int], list[Sizes], int, str], ...] = (
    (StreamK(owner="last"), (32, 32, 32), [(40, 33, 70), (0, 9, 9), (7, 72, 0)], 5, "sm_80"),
    (StreamK(owner="last"), (128, 64, 64), [(130, 72, 65), (5, 0, 9), (9, 70, 200)], 3, "native"),
    (DataParallel(persistent=True), (128, 128, 64), [(1, 1, 1), (136, 130, 129)], 2, "native"),
    (DEEPEST_FIRST, (32, 32, 32), [(40, 33, 7), (33, 9, 99), (7, 72, 0), (9, 9, 40)], 3, "sm_80"),
    (DEEPEST_FIRST, (128, 128, 64), [(130, 72, 5), (0, 1, 9), (9, 70, 200)], 2, "native"),
)
COUNT = len(CASES) + len(GROUPS) + len(LISTS)


def run(number: int) -> None:
    """Run one case: launch its kernel twice and compare the results exactly.

    `number` counts the cases of CASES, GROUPS and LISTS, in this order.
    """
    if number < len(CASES):
        run_single(number)
    elif number < len(CASES) + len(GROUPS):
        run_groups(number - len(CASES))
    else:
        run_list(number - len(CASES) - len(GROUPS))


def run_list(number: int) -> None:
    """Launch the list of products `LISTS[number]` twice, and compare the results exactly.

    Each product has its own m, n and k. On Hopper the kernel writes the products' tensor maps.
    """
    schedule, tile, sizes, workgroups, target = LISTS[number]
    gemm = Gemm("f16", "f32", transpose_b=True, grouped=True, group_axis="mnk")
    kernel = codegen.compile(schedule(gemm.graph(tile)), target)
    chance = np.random.default_rng(number)
    a, each_a = views([(m, k) for m, _, k in sizes], np.float16)
    b, each_b = views([(n, k) for _, n, k in sizes], np.float16)
    _, exact = views([(m, n) for m, n, _ in sizes])
    for x, y, d in zip(each_a, each_b, exact, strict=True):
        x[...], y[...] = chance.integers(-3, 4, x.shape), chance.integers(-3, 4, y.shape)
        d[...] = x.astype(np.float32) @ y.astype(np.float32).T
    with DeviceMemory(device(0)) as memory:
        pools, offsets = [memory.upload(x) for x in (a, b)], memory.upload(ends_of(sizes))
        for _ in range(2):
            found, each = views([(m, n) for m, n, _ in sizes])
            out = memory.upload(found)
            kernel(*pools, out=out, workgroups=workgroups, offsets=offsets)
            memory.download(out, found)
            if not all(map(np.array_equal, each, exact)):
                sys.exit(f"list {number} ({schedule}, {tile}) is wrong")
    print(f"list {number}: {schedule} {tile} is exact", flush=True)


def run_groups(number: int) -> None:
    """Launch the product `GROUPS[number]`, grouped along k, twice and compare the results exactly.

    Groups along k end inside k tiles, so TMA also loads elements of the next group.
    """
    schedule, tile, (m, n), lengths, workgroups, target = GROUPS[number]
    gemm = Gemm("f16", "f32", transpose_a=True, grouped=True, group_axis="k")
    kernel = codegen.compile(schedule(gemm.graph(tile)), target)
    ends = np.cumsum([3, *lengths]).astype(np.int32)
    chance = np.random.default_rng(number)
    k = int(ends[-1]) + 5
    a, b = (chance.integers(-3, 4, (k, extent)).astype(np.float16) for extent in (m, n))
    a[:3], b[-5:] = np.nan, np.inf
    parts = [slice(*both) for both in pairwise(ends)]
    exact = np.stack([a[x].astype(np.float32).T @ b[x].astype(np.float32) for x in parts])
    with DeviceMemory(device(0)) as memory:
        views, offsets = [memory.upload(x) for x in (a, b)], memory.upload(ends)
        for _ in range(2):
            found = np.full(exact.shape, np.nan, np.float32)
            out = memory.upload(found)
            kernel(*views, out=out, workgroups=workgroups, offsets=offsets)
            memory.download(out, found)
            if not np.array_equal(found, exact):
                sys.exit(f"groups {number} ({schedule}, {tile}) are wrong")
    print(f"groups {number}: {schedule} {tile} are exact", flush=True)


def run_single(number: int) -> None:
    """Launch a case twice with C; integer operands make the results exact."""
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
    for which in map(int, sys.argv[1:] or range(COUNT)):
        run(which)
