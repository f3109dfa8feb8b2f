"""Launches of the kernels in `tests.gpu.hopper_kernels`: problems, and the machine code they need.

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
from passes import Pass, Pipeline, SplitK
from tests.gpu.hopper_kernels import ALONE, DIFFERENT_D, RANDOM, Shape
from tests.gpu.kernels import Spec, kernel

__all__ = [
    "SCALES",
    "WAYS_OF_D",
    "Case",
    "Code",
    "boxes",
    "chunk_of_d",
    "code_of",
    "code_of_d",
    "has_open_grid",
    "program",
    "random_cases",
    "sweep_cases",
    "two_shape_cases",
    "warm",
]

Code = tuple[Spec, Variant]
"""Type: a kernel's spec, and a variant of the kernel's machine code."""
SCALES = ((1.0, 0.0), (0.5, 2.0), (-1.5, 1.0), (0.0, 1.0), (2.0, -0.25))
"""Pairs (alpha, beta) of scalars."""
EVERY_ODD = 16
"""One in this many random problems has odd extents, so that TMA cannot load its rows."""
PROBLEMS, LONGEST, MOST_WORKGROUPS, MOST_LARGE = 100, 3000, 60, 12
"""PROBLEMS: number of random problems for each kernel. LONGEST: largest extent of a problem.
MOST_WORKGROUPS: largest number of workgroups. MOST_LARGE: largest number of workgroups if each is a
cluster of more than two CTAs, because the GPU can run only a few such clusters at the same time.
"""


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
    waits = _tiles_wait(spec)
    cases: list[Case] = []
    for number in range(PROBLEMS):
        m, n, k = (round(exp(chance.uniform(0, log(LONGEST)))) for _ in range(3))
        alpha, beta = chance.choice(SCALES)
        workgroups = chance.randint(1, most) if chance.random() < 0.25 else None
        if narrow and number % EVERY_ODD == EVERY_ODD - 1:
            shape = (m | 1, n | 1, k | 1)
        else:
            shape = _served((m, n, k), spec.layout)
        while waits and _tiles(spec, shape) > most:
            shape = _served((shape[0] // 2 + 1, shape[1] // 2 + 1, k), spec.layout)
        workgroups = workgroups if grids else None
        cases.append(Case(spec, shape, seed + number, alpha, beta, workgroups))
    return tuple(cases)


def _tiles_wait(spec: Spec) -> bool:
    """Whether a launch succeeds only if the GPU holds a workgroup for every output tile at once.

    This is so for Split-K with `splits=none`: each tile has workgroups of its own, which wait for
    each other, so all must be resident. Problems may then have few tiles only.
    """
    return any(isinstance(p, SplitK) and p.splits is None for p in spec.schedule)


def _tiles(spec: Spec, shape: Shape) -> int:
    """Number of output tiles of a problem."""
    return prod(-(-extent // tile) for extent, tile in zip(shape[:2], spec.tile[:2], strict=True))


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
