"""Kernels for Hopper that tests launch: schedules, tiles, clusters, layouts, and problems.

This module needs neither a GPU nor an array library, so machines without a GPU can check that every
kernel can be lowered and assembled.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from math import exp, gcd, log, prod
from multiprocessing import get_context

from codegen.architectures import Variant
from codegen.cache import cache_directory
from codegen.targets.nvptx.driver import device
from codegen.targets.nvptx.program import CudaProgram, Vectors
from coordgraph import CoordGraphError, Gemm
from coordgraph.tensors import dtype
from passes import Pass, Pipeline
from tests.gpu.kernels import Spec, kernel

__all__ = [
    "ADDED",
    "DIFFERENT_D",
    "LAYOUTS",
    "RANDOM",
    "SCALES",
    "SCATTER",
    "SCHEDULES",
    "SHAPES",
    "SHARING",
    "STEADY",
    "SWEEP",
    "TURNS",
    "TURN_SHAPES",
    "TWO_SHAPES",
    "WAYS_OF_D",
    "Case",
    "Code",
    "boxes",
    "chunk_of_d",
    "code_of",
    "code_of_d",
    "has_open_grid",
    "hopper",
    "program",
    "random_cases",
    "sweep_cases",
    "two_shape_cases",
    "warm",
]

Shape = tuple[int, int, int]
Code = tuple[Spec, Variant]
"""Type: a kernel's spec, and a variant of the kernel's machine code."""
ALONE = (1, 1, 1)
LAYOUTS = ("nn", "nt", "tn", "tt")
SCALES = ((1.0, 0.0), (0.5, 2.0), (-1.5, 1.0), (0.0, 1.0), (2.0, -0.25))
"""Pairs (alpha, beta) of scalars."""
EVERY_ODD = 16
"""One in this many random problems has odd extents, so that TMA cannot load its rows."""
PROBLEMS, LONGEST, MOST_WORKGROUPS, MOST_LARGE = 100, 3000, 60, 12
"""PROBLEMS: number of random problems for each kernel. LONGEST: largest extent of a problem.
MOST_WORKGROUPS: largest number of workgroups. MOST_LARGE: largest number of workgroups if each is a
cluster of more than two CTAs, because the GPU can run only a few such clusters at the same time.
"""


def hopper(
    schedule: str,
    tile: Shape,
    cluster: Shape = ALONE,
    layout: str = "nt",
    types: tuple[str, str] = ("bf16", "bf16"),
    consumers: str = "cooperative",
) -> Spec:
    """The spec of a Hopper kernel without watchdog, which would make the largest tiles spill."""
    steps = Pipeline.parse(schedule).passes
    return Spec(steps, tile, layout, *types, "sm_90a", cluster, watchdog=False, consumers=consumers)


def pingpong(
    schedule: str,
    tile: Shape,
    cluster: Shape = ALONE,
    layout: str = "nt",
    types: tuple[str, str] = ("bf16", "bf16"),
) -> Spec:
    """The spec of a kernel whose warpgroups compute different tiles alternately (pingpong)."""
    return hopper(schedule, tile, cluster, layout, types, "pingpong")


WHOLE = (
    hopper("data-parallel", (128, 256, 64), layout="nt"),
    hopper(
        "rasterize{width=4},data-parallel{persistent=true}", (256, 256, 64), (2, 1, 1), layout="nn"
    ),
    hopper("data-parallel", (64, 64, 64), layout="tn"),
    hopper("heterogeneous-tiles", (128, 128, 64), layout="nt"),
    hopper("data-parallel", (64, 80, 128), layout="nt"),
    hopper("data-parallel", (160, 128, 64), layout="nn"),
    hopper("data-parallel{persistent=true}", (256, 176, 64), (2, 1, 1), layout="tt"),
    pingpong("data-parallel{persistent=true}", (256, 144, 64), (2, 1, 1), layout="nt"),
    hopper("data-parallel", (128, 88, 64), layout="nt"),
    hopper("data-parallel{persistent=true}", (128, 72, 64), layout="nn"),
    hopper("data-parallel", (64, 40, 64), layout="tn"),
    hopper("data-parallel", (192, 104, 64), layout="nt"),
    hopper("data-parallel", (40, 128, 64), layout="tt"),
    hopper("data-parallel", (64, 264, 64), layout="nt"),
    pingpong("data-parallel{persistent=true}", (256, 88, 64), (2, 1, 1), layout="nn"),
    hopper("rasterize{width=4},data-parallel", (96, 1024, 64), (1, 8, 1), layout="nt"),
    hopper("data-parallel", (448, 128, 64), (8, 1, 1), layout="nn"),
    hopper("data-parallel", (8, 64, 128), layout="nt"),
)
"""Kernels that are launched on random problems; one workgroup computes each output tile."""
SHARING = (
    hopper("stream-k{owner=last}", (16, 128, 64), layout="nn"),
    hopper("stream-k", (192, 192, 64), layout="tn"),
    hopper("two-tile-stream-k", (128, 512, 64), (1, 2, 1), layout="nt"),
    hopper("stream-k{owner=last}", (64, 64, 128), (1, 1, 2), layout="tt"),
    hopper("stream-k{owner=last,reduction=tree}", (128, 128, 64), layout="tt"),
    hopper("stream-k{owner=last,reduction=turnstile}", (128, 128, 64), layout="nn"),
    hopper("split-k{splits=5}", (128, 256, 64), layout="nt"),
    pingpong("stream-k{owner=last}", (64, 256, 64), layout="nt"),
    pingpong("two-tile-stream-k", (256, 128, 64), (2, 1, 1), layout="nn"),
    pingpong("stream-k{owner=last,reduction=turnstile}", (64, 256, 64), layout="nt"),
    hopper("stream-k{reduction=scatter}", (256, 256, 64), (2, 1, 1), layout="tn"),
    hopper("two-tile-stream-k{first=dp,reduction=scatter}", (128, 128, 64), layout="tt"),
    hopper("hybrid-stream-k{owner=last}", (128, 192, 64), layout="nt"),
    hopper("grouped{groups=4},two-tile-stream-k{owner=last}", (128, 128, 64), layout="nn"),
    hopper("stream-k{owner=last}", (256, 144, 64), (2, 1, 1), layout="nt"),
    hopper("stream-k{reduction=scatter}", (128, 112, 64), layout="nt"),
    hopper("stream-k{reduction=scatter,shares=balanced}", (256, 128, 64), (2, 1, 1), layout="nt"),
    hopper("stream-k{owner=last,shares=balanced}", (128, 128, 64), layout="nn"),
    hopper("stream-k{owner=last}", (128, 160, 64), (2, 2, 1), layout="nt"),
    hopper("stream-k{reduction=scatter,shares=balanced}", (512, 160, 64), (4, 2, 1), layout="tt"),
    hopper("stream-k{owner=last}", (256, 120, 64), layout="nn"),
    hopper("stream-k{reduction=scatter}", (128, 88, 64), layout="nt"),
    hopper("two-tile-stream-k{owner=last}", (256, 176, 64), (2, 2, 1), layout="nn"),
    hopper("stream-k{owner=last,reduction=tree}", (64, 88, 128), (1, 1, 2), layout="nt"),
    hopper("stream-k{reduction=turnstile}", (24, 256, 64), layout="nn"),
    pingpong("stream-k{owner=last}", (64, 120, 64), layout="tn"),
    hopper("stream-k{owner=last}", (64, 512, 128), (1, 8, 1), layout="nn"),
    hopper("stream-k{reduction=scatter,shares=balanced}", (512, 176, 64), (8, 1, 1), layout="tt"),
    hopper("stream-k{owner=last}", (8, 192, 128), (1, 1, 2), layout="nn"),
    hopper(
        "stream-k{reduction=scatter,shares=balanced,adjacent=tiles}",
        (256, 128, 64),
        (2, 1, 1),
        layout="nt",
    ),
)
"""Kernels that are launched on random problems; several workgroups share some output tiles."""
ADDED = (
    hopper("stream-k{reduction=atomic}", (128, 256, 64), layout="nt"),
    hopper("stream-k{owner=last,reduction=atomic}", (256, 256, 64), (2, 1, 1), layout="tn"),
    hopper("two-tile-stream-k{owner=last,reduction=atomic}", (16, 256, 64), layout="nn"),
    hopper("split-k{splits=7,reduction=atomic}", (64, 128, 128), (1, 1, 2), layout="tt"),
    pingpong("hybrid-stream-k{reduction=atomic}", (64, 256, 64), layout="nt"),
    # split-k has owner=last by default, so no workgroup waits for a higher-numbered one. With
    # owner=first all workgroups would have to be resident, but large problems have too many.
    pingpong("split-k{splits=5,reduction=atomic}", (128, 256, 64), (1, 2, 1)),
    hopper("stream-k{owner=last,reduction=atomic}", (128, 104, 64), layout="nn"),
)
"""Kernels that add partial sums atomically, so that last bits of D differ from run to run."""
STEADY = (*WHOLE, *SHARING)
RANDOM = (*STEADY, *ADDED)

SCHEDULES = (
    "data-parallel",
    "data-parallel{persistent=true}",
    "rasterize{width=4},data-parallel{persistent=true}",
    "stream-k",
    "stream-k{owner=last}",
    "stream-k{owner=last,reduction=tree}",
    "two-tile-stream-k",
    "two-tile-stream-k{owner=last,waves=contiguous}",
    "rasterize{width=3,snake=true},two-tile-stream-k{owner=last,first=dp}",
    "two-tile-stream-k{first=dp,waves=contiguous}",
    "hybrid-stream-k{owner=last}",
    "hybrid-stream-k{owner=last,first=dp,reduction=turnstile}",
    "stream-k{reduction=turnstile}",
    "split-k{splits=4}",
    "split-k{splits=3,reduction=peers}",
    "rasterize{order=hilbert},stream-k{owner=last}",
    "rasterize{width=4,along=n,order=morton},data-parallel{persistent=true}",
    "grouped{groups=4},two-tile-stream-k{owner=last}",
    "stream-k{owner=last,least_segment=4}",
)
SHAPES = (
    ((128, 256, 64), ALONE),
    ((256, 256, 64), (2, 1, 1)),
    ((64, 512, 64), (1, 4, 1)),
    ((128, 512, 64), (1, 2, 1)),
    ((512, 256, 64), (4, 1, 1)),
    ((64, 64, 512), (1, 1, 8)),
    ((128, 128, 64), ALONE),
    ((192, 192, 64), ALONE),
    ((48, 128, 128), ALONE),
    ((64, 64, 64), ALONE),
)
SWEEP = tuple(
    hopper(schedule, *SHAPES[(number + 3 * turn) % len(SHAPES)], layout)
    for number, schedule in enumerate(SCHEDULES)
    for turn, layout in enumerate(LAYOUTS)
)
"""A Latin square: every schedule, every shape and every layout occurs, in varying combinations."""

SCATTERED = (
    "stream-k{reduction=scatter}",
    "split-k{splits=7,reduction=scatter}",
    "two-tile-stream-k{reduction=scatter}",
    "hybrid-stream-k{first=dp,least=3,reduction=scatter}",
)
"""Schedules with reduce-scatter; the last two have a second main loop.

With 128 accumulators per thread there are not enough registers for two main loops.
"""
SCATTER = tuple(
    hopper(schedules[(number + turn) % len(schedules)], *shape, layout)
    for schedules, shapes in (
        (
            SCATTERED[:2],
            (
                ((256, 256, 64), (2, 1, 1)),
                ((128, 512, 64), (1, 2, 1)),
                ((128, 256, 64), ALONE),
                ((512, 144, 64), (2, 1, 1)),
            ),
        ),
        (
            SCATTERED,
            (
                ((128, 128, 64), ALONE),
                ((64, 128, 64), ALONE),
                ((16, 256, 64), ALONE),
                ((64, 128, 128), (1, 1, 2)),
            ),
        ),
    )
    for number, shape in enumerate(shapes)
    for turn, layout in enumerate(LAYOUTS)
)
"""Kernels with reduce-scatter: every shape in every layout; the schedules alternate."""

TURN_SHAPES = (
    ((64, 256, 64), ALONE),
    ((256, 128, 64), (2, 1, 1)),
    ((128, 128, 64), ALONE),
    ((128, 256, 64), (1, 2, 1)),
    ((48, 128, 64), ALONE),
)
TURNS = (
    *(
        pingpong(
            schedule,
            *TURN_SHAPES[(number + 3 * turn) % len(TURN_SHAPES)],
            LAYOUTS[(number // 5 + 2 * turn + number) % len(LAYOUTS)],
        )
        for number, schedule in enumerate(SCHEDULES)
        for turn in range(2)
    ),
    pingpong("data-parallel{persistent=true}", (128, 192, 64)),
    pingpong("rasterize{width=4},data-parallel{persistent=true}", (256, 192, 64), (2, 1, 1)),
)
"""Pingpong kernels; together they have every schedule, every shape and every layout."""

TWO_SHAPES = (
    hopper("heterogeneous-tiles{small_m=64,small_n=64}", (128, 256, 64), layout="nt"),
    hopper("heterogeneous-tiles{small_m=128,small_n=128}", (128, 256, 64), layout="nn"),
    hopper("rasterize{width=4},heterogeneous-tiles{small_n=32}", (256, 128, 64), layout="tn"),
    hopper("heterogeneous-tiles{small_m=64}", (192, 128, 64), layout="tt"),
    hopper("heterogeneous-tiles", (64, 256, 64), layout="nt", types=("f16", "f16")),
    hopper("heterogeneous-tiles", (128, 128, 64), layout="nt", types=("bf16", "f32")),
    hopper("heterogeneous-tiles", (256, 256, 64), (2, 1, 1), layout="nn"),
    hopper("rasterize{width=3,snake=true},heterogeneous-tiles", (128, 512, 64), (1, 2, 1)),
    hopper("heterogeneous-tiles{small_n=64}", (64, 128, 128), (1, 1, 2), layout="tn"),
    pingpong("heterogeneous-tiles", (128, 128, 64), layout="nt"),
    pingpong("heterogeneous-tiles{small_m=64,small_n=96}", (128, 192, 64), layout="nn"),
    pingpong("heterogeneous-tiles", (256, 128, 64), (2, 1, 1), layout="tt"),
)
"""Kernels that compute large tiles in full waves and small tiles in the ragged wave."""

DIFFERENT_D = (
    hopper("stream-k{owner=last}", (128, 128, 64)),
    hopper("data-parallel", (128, 88, 64)),
    hopper("data-parallel{persistent=true}", (16, 128, 64), types=("f16", "f16")),
    hopper("data-parallel", (128, 192, 64), types=("f16", "f32")),
    hopper("two-tile-stream-k{owner=last}", (256, 128, 64), (2, 1, 1), types=("bf16", "f16")),
    pingpong("data-parallel{persistent=true}", (128, 128, 64)),
    pingpong("stream-k{owner=last}", (64, 128, 64), types=("f16", "f32")),
)
WAYS_OF_D = (
    (264, 0, 0, 8),
    (262, 0, 0, 2),
    (261, 0, 0, 1),
    (264, 2, 0, 2),
    (264, 1, 0, 1),
    (264, 0, 2, 8),
    (264, 0, 1, 1),
    (262, 0, 1, 1),
)
"""Columns of D, offsets of D and of C from an aligned address, and D's elements per access.

Columns and offsets are in elements. If D is f32, an access has at most 4 elements, which are 16
bytes.
"""


@dataclass(frozen=True)
class Case:
    """A launch, with all inputs that its result depends on."""

    spec: Spec
    shape: Shape
    seed: int
    alpha: float = 1.0
    beta: float = 0.0
    workgroups: int | None = None

    @property
    def variant(self) -> Variant:
        """The variant of the machine code that serves aligned arrays of this shape."""
        m, n, k = self.shape
        a, b = m if self.spec.layout[0] == "t" else k, k if self.spec.layout[1] == "t" else n
        whole = chunk_of_d(self.spec)
        d = gcd(n, 2) if n % whole else whole
        if a % 8 or b % 8:
            return Variant(Vectors(gcd(a, 8), gcd(b, 8), min(d, 2)), "mma.sync")
        return boxes(d, reads_c=self.beta != 0)


def chunk_of_d(spec: Spec) -> int:
    """Number of D's elements in 16 bytes."""
    return dtype(spec.out_dtype or spec.dtype).chunk


def boxes(d: int, *, reads_c: bool) -> Variant:
    """The variant with TMA for A and B, and `d` elements of D per access; `reads_c`: it takes C."""
    return Variant(Vectors(0, 0, d), "wgmma", reads_c)


def has_open_grid(spec: Spec) -> bool:
    """Whether the kernel takes the number of workgroups as a launch argument."""
    return _open_grid(spec.schedule)


@cache
def _open_grid(schedule: tuple[Pass, ...]) -> bool:
    """True if a schedule takes the number of workgroups as a launch argument.

    The answer is the same for all tiles. The function tests one large tile, which every option for
    small tiles divides.
    """
    graph = Pipeline(schedule)(Gemm("bf16").graph((768, 768, 64)))
    return any(p.name == "workgroups" for p in graph.parameters.given)


@cache
def random_cases(spec: Spec) -> tuple[Case, ...]:
    """Random cases of a kernel: extents from 1 to 3000, log-uniform.

    Extents of contiguous axes are multiples of 8, except in a few cases with odd extents.
    """
    seed = 1000 * RANDOM.index(spec)
    chance = random.Random(seed)
    narrow = CudaProgram(spec.graph, spec.target, Vectors(1, 1, 1)).why_not() is None
    grids = has_open_grid(spec)
    most = MOST_LARGE if prod(spec.cluster or ALONE) > 2 else MOST_WORKGROUPS
    cases: list[Case] = []
    for number in range(PROBLEMS):
        m, n, k = (round(exp(chance.uniform(0, log(LONGEST)))) for _ in range(3))
        alpha, beta = chance.choice(SCALES)
        workgroups = chance.randint(1, most) if chance.random() < 0.25 else None
        if narrow and number % EVERY_ODD == EVERY_ODD - 1:
            shape = (m | 1, n | 1, k | 1)
        else:
            shape = _served((m, n, k), spec.layout)
        workgroups = workgroups if grids else None
        cases.append(Case(spec, shape, seed + number, alpha, beta, workgroups))
    return tuple(cases)


def sweep_cases(spec: Spec) -> tuple[Case, ...]:
    """Three launches: whole tiles, ragged tiles with C, and ragged tiles with C on 3 workgroups."""
    ragged = _served((997, 1218, 777), spec.layout)
    whole = (
        Case(spec, (1536, 1536, 1024), 1),
        Case(spec, ragged, 2, 0.5, -2.0),
    )
    few = Case(spec, ragged, 3, -1.5, 0.25, workgroups=3)
    return (*whole, few) if has_open_grid(spec) else whole


def two_shape_cases(spec: Spec) -> tuple[Case, ...]:
    """Launches with large and small tiles, with small tiles only, and with large tiles only."""
    m, n, _ = spec.tile
    ragged = _served((997, 1218, 777), spec.layout)
    return (
        *sweep_cases(spec),
        Case(spec, ragged, 4, workgroups=13),
        Case(spec, ragged, 5, 0.5, 2.0, workgroups=7),
        Case(spec, (m, n, 1024), 6, workgroups=9),
        Case(spec, (4 * m, 3 * n, 520), 7, 1.5, -1.0, workgroups=4),
        Case(spec, _served((5 * m + 1, n + 1, 64), spec.layout), 8, workgroups=6),
    )


def _served(shape: Shape, layout: str) -> Shape:
    """`shape` with the extents of contiguous axes rounded up to multiples of 16 bytes, for TMA."""
    m, n, k = shape
    a_turned, b_turned = (side == "t" for side in layout)

    def up(extent: int, contiguous: bool) -> int:
        return -(-extent // 8) * 8 if contiguous else extent

    return up(m, a_turned), up(n, not b_turned), up(k, b_turned or not a_turned)


def code_of(specs: Iterable[Spec], cases: Callable[[Spec], Iterable[Case]]) -> tuple[Code, ...]:
    """(spec, variant) of all machine code that the cases of kernels need, without duplicates."""
    return tuple(dict.fromkeys((spec, case.variant) for spec in specs for case in cases(spec)))


def code_of_d() -> tuple[Code, ...]:
    """(spec, variant) of the machine code for all entries of WAYS_OF_D, with and without C."""
    codes = (
        (spec, boxes(min(width, chunk_of_d(spec)), reads_c=c))
        for spec in DIFFERENT_D
        for *_, width in WAYS_OF_D
        for c in (False, True)
    )
    return tuple(dict.fromkeys(codes))


def program(code: Code) -> CudaProgram:
    """The compiled program of a kernel for one variant of its machine code."""
    spec, variant = code
    return CudaProgram(
        spec.graph,
        spec.target,
        *variant,
        watchdog=spec.watchdog,
        lowering=spec.lowering,
    )


def warm(codes: Iterable[Code]) -> None:
    """Compile kernels to machine code in parallel processes, and store it in the disk cache.

    Code generation in one process uses a single core.
    """
    if cache_directory() is None:
        return
    with ProcessPoolExecutor(min(16, os.cpu_count() or 1), get_context("spawn")) as pool:
        list(pool.map(_load, codes))


def _load(code: Code) -> None:
    spec, variant = code
    with suppress(CoordGraphError):  # the test that needs this kernel reports the error
        kernel(spec)._load(device(0), variant)
