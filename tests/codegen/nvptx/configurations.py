"""The compile configurations of the CUDA target that tests assemble with ptxas.

There are more than a million combinations of schedule, tile, layout, type and option. `sweep` takes
every (schedule, tile, layout) and picks the other options by a hash of schedule, tile, layout and
`turn`, a seed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TypeVar

from codegen.targets.nvptx.program import WIDEST, CudaProgram, Vectors
from coordgraph import Gemm, KernelGraph
from passes import (
    DataParallel,
    Grouped,
    HeterogeneousTiles,
    HybridStreamK,
    Pass,
    Pipeline,
    Rasterize,
    Reorder,
    SplitK,
    StreamK,
    TwoTileStreamK,
)
from passes.lowering import LowerToHopper
from tests.support.sampling import kinds

__all__ = [
    "HOPPER_SHAPES",
    "LARGE_SHAPES",
    "LARGE_TURN_SHAPES",
    "TURN_SHAPES",
    "Configuration",
    "boxed",
    "fitting",
    "hopper",
    "sweep",
    "taking_turns",
    "traits",
    "two_shapes",
]

Choice = TypeVar("Choice")
KEPT = 128
"""Number of entries of the LRU cache of graphs, and of that of compiled programs. The caches are
limited because a sweep makes thousands of graphs and programs."""

SCHEDULES: tuple[tuple[Pass, ...], ...] = (
    (DataParallel(),),
    (DataParallel(persistent=True),),
    (StreamK(),),
    (StreamK(owner="last"),),
    (TwoTileStreamK(),),
    (TwoTileStreamK(owner="last"),),
    (TwoTileStreamK(first="dp"),),
    (TwoTileStreamK(owner="last", first="dp"),),
    (HybridStreamK(owner="last"),),
    (StreamK(owner="last", reduction="turnstile"),),
    (StreamK(owner="last", reduction="atomic"),),
    (SplitK(splits=3, reduction="atomic"),),
    (StreamK(reduction="peers", k_order="interleaved"),),
    (SplitK(splits=None, reduction="scatter", adjacent="tiles"),),
    (SplitK(splits=4),),
    (SplitK(splits=3, reduction="peers"),),
    (Rasterize(order="hilbert"), StreamK(owner="last")),
    (Rasterize(width=4, along="n", order="morton"), DataParallel(persistent=True)),
    (Grouped(groups=4), TwoTileStreamK(owner="last")),
    (Reorder(swap=True), DataParallel()),
    (Reorder(group=4), StreamK(workgroups=132)),
    (Reorder(swap=True, group=3), TwoTileStreamK(owner="last")),
)
TILES = (
    (128, 256, 64),
    (256, 128, 64),
    (128, 256, 32),
    (256, 128, 32),
    (128, 128, 64),
    (128, 128, 32),
    (64, 64, 64),
    (64, 128, 32),
    (128, 64, 64),
    (64, 256, 32),
    (96, 96, 48),
    (48, 16, 80),
    (32, 32, 16),
    (16, 16, 16),
)
ALONE = (1, 1, 1)
HOPPER_SHAPES = (
    ((256, 256, 64), (2, 1, 1)),
    ((256, 256, 64), (1, 2, 1)),
    ((512, 256, 64), (4, 1, 1)),
    ((128, 256, 64), (2, 2, 1)),
    ((256, 256, 64), (2, 4, 1)),
    ((512, 160, 64), (4, 2, 1)),
    ((256, 192, 64), (2, 1, 1)),
    ((256, 160, 64), (2, 1, 1)),
    ((128, 256, 64), ALONE),
    ((256, 128, 64), ALONE),
    ((192, 128, 64), ALONE),
    ((128, 192, 64), ALONE),
    ((128, 144, 64), ALONE),
    ((128, 128, 64), ALONE),
    ((128, 64, 64), ALONE),
    ((128, 32, 64), ALONE),
    ((128, 88, 64), ALONE),
    ((256, 120, 64), ALONE),
    ((256, 144, 64), (2, 2, 1)),
    ((192, 64, 64), ALONE),
    ((64, 64, 64), ALONE),
    ((64, 128, 64), ALONE),
    ((64, 256, 64), ALONE),
    ((40, 128, 64), ALONE),
    ((48, 128, 128), ALONE),
    ((32, 128, 64), ALONE),
    ((32, 512, 64), (1, 2, 1)),
    ((64, 512, 64), (1, 4, 1)),
    ((16, 128, 64), ALONE),
    ((16, 256, 64), ALONE),
    ((16, 128, 128), (1, 1, 2)),
    ((64, 128, 128), (1, 1, 2)),
    ((64, 64, 512), (1, 1, 8)),
)
"""Macro tiles (m, n, k) for Hopper, each with the cluster (m, n, k) that shares it."""
LARGE_SHAPES = (
    ((256, 192, 64), ALONE),
    ((192, 192, 64), ALONE),
    ((512, 160, 64), (2, 1, 1)),
    ((192, 104, 64), ALONE),
    ((256, 184, 64), ALONE),
    ((128, 640, 64), (1, 2, 1)),
)
"""Macro tiles with more than 144 accumulator registers per thread.

Tests use them only with TMA and data-parallel schedules: other kernels need too many registers.
"""
TURN_SHAPES = (
    ((64, 256, 64), ALONE),
    ((128, 128, 64), ALONE),
    ((64, 128, 64), ALONE),
    ((192, 64, 64), ALONE),
    ((64, 80, 128), ALONE),
    ((128, 88, 64), ALONE),
    ((48, 128, 64), ALONE),
    ((16, 256, 64), ALONE),
    ((256, 128, 64), (2, 1, 1)),
    ((128, 256, 64), (2, 1, 1)),
    ((128, 256, 64), (1, 2, 1)),
    ((64, 1024, 64), (1, 4, 1)),
    ((256, 256, 64), (2, 2, 1)),
)
"""Macro tiles and clusters for ping-pong, where one warpgroup computes a workgroup's tile alone."""
LARGE_TURN_SHAPES = (
    ((128, 144, 64), ALONE),
    ((128, 192, 64), ALONE),
    ((192, 128, 64), ALONE),
    ((128, 384, 64), (1, 2, 1)),
)
"""Macro tiles for ping-pong warpgroups with more than 128 accumulator registers per thread.

Tests use them only with TMA and data-parallel schedules: other kernels need too many registers.
"""
TWO_SHAPES = (
    ((128, 256, 32), (64, 64)),
    ((128, 256, 64), (128, 128)),
    ((256, 128, 32), (32, 128)),
    ((128, 128, 32), (64, 64)),
    ((128, 128, 64), (128, 16)),
    ((64, 128, 32), (32, 64)),
    ((64, 64, 64), (32, 32)),
    ((96, 128, 48), (96, 64)),
    ((64, 64, 16), (32, 32)),
)
"""Pairs of a large and a small macro tile that can be divided among the same number of warps."""
TWO_HOPPER_SHAPES = (
    ((128, 256, 64), (64, 64), ALONE, "cooperative"),
    ((128, 256, 64), (128, 128), ALONE, "cooperative"),
    ((256, 128, 64), (128, 32), ALONE, "cooperative"),
    ((128, 192, 64), (64, 96), ALONE, "cooperative"),
    ((192, 128, 64), (64, 128), ALONE, "cooperative"),
    ((64, 256, 64), (32, 128), ALONE, "cooperative"),
    ((64, 64, 64), (64, 16), ALONE, "cooperative"),
    ((256, 256, 64), (128, 128), (2, 1, 1), "cooperative"),
    ((128, 512, 64), (64, 128), (1, 2, 1), "cooperative"),
    ((64, 128, 128), (64, 64), (1, 1, 2), "cooperative"),
    ((128, 128, 64), (64, 64), ALONE, "pingpong"),
    ((64, 256, 64), (64, 128), ALONE, "pingpong"),
    ((128, 192, 64), (64, 96), ALONE, "pingpong"),
    ((256, 128, 64), (128, 64), (2, 1, 1), "pingpong"),
    ((128, 256, 64), (64, 128), (1, 2, 1), "pingpong"),
)
"""Pairs of a large and a small macro tile for Hopper, with the cluster (m, n, k), and whether the
consumer warpgroups are cooperative or ping-pong.
"""
LAYOUTS = ("nn", "tn", "nt", "tt")
"""Layouts of A and B, a letter each: n is stored row-major, t is stored as its transpose."""
TYPES = (("bf16", "bf16"), ("bf16", "f32"), ("f16", "f16"), ("f16", "f32"), ("bf16", "f16"))
VECTORS = tuple(
    Vectors(*v)
    for v in (
        (8, 8, 2),
        (4, 4, 2),
        (2, 2, 2),
        (1, 1, 1),
        (8, 1, 2),
        (1, 8, 1),
        (8, 8, 1),
        (4, 2, 1),
    )
)
ARCHITECTURES = ("sm_80", "sm_86", "sm_89", "sm_90", "sm_90a", "sm_100", "sm_120")


@dataclass(frozen=True)
class Configuration:
    """One set of options with which a GEMM is compiled for a GPU."""

    tile: tuple[int, int, int] = (128, 128, 32)
    schedule: tuple[Pass, ...] = (DataParallel(),)
    layout: str = "nn"
    types: tuple[str, str] = ("bf16", "bf16")
    vectors: Vectors = WIDEST
    architecture: str = "sm_80"
    boxes: bool = False
    cluster: tuple[int, int, int] = ALONE
    reads_c: bool = True
    consumers: str = "cooperative"

    @property
    def gemm(self) -> Gemm:
        a, b = (side == "t" for side in self.layout)
        return Gemm(self.types[0], self.types[1], transpose_a=a, transpose_b=b)

    @property
    def graph(self) -> KernelGraph:
        return _scheduled(self.schedule, self.gemm, self.tile)

    @property
    def program(self) -> CudaProgram:
        """The lowered and compiled program; cached, since consecutive tests use one
        configuration.
        """
        return _program(self)

    def __str__(self) -> str:
        parts = (self.tile, self.vectors, self.cluster)
        tile, vectors, cluster = ("x".join(map(str, part)) for part in parts)
        types, schedule = "-".join(self.types), ",".join(map(str, self.schedule))
        kind = f"{self.consumers}{' C' if self.reads_c else ''}"
        boxes = f" boxes {cluster} {kind}" if self.boxes else ""
        return f"{tile} {schedule} {self.layout} {types} {vectors} {self.architecture}{boxes}"


@lru_cache(KEPT)
def _scheduled(schedule: tuple[Pass, ...], gemm: Gemm, tile: tuple[int, int, int]) -> KernelGraph:
    return Pipeline(schedule)(gemm.graph(tile))


@lru_cache(KEPT)
def _program(made: Configuration) -> CudaProgram:
    m, n, k = made.cluster
    lowering = LowerToHopper(cluster_m=m, cluster_n=n, cluster_k=k, consumers=made.consumers)
    return CudaProgram(
        made.graph,
        made.architecture,
        made.vectors,
        "wgmma" if made.boxes else "mma.sync",
        made.reads_c,
        lowering=lowering if made.boxes else None,
    )


def traits(made: Configuration) -> tuple[object, ...]:
    """The values of those options of a configuration that change more than indices in a kernel.

    The options are the passes and the reduction of the schedule, the type of D, the architecture,
    the kind of consumer warpgroups (cooperative or ping-pong) and the cluster's axes. The quick
    tests assemble a kernel with each value. Layouts, tile orders and other options change indices
    only, which are tested without ptxas.
    """
    cluster = tuple(extent > 1 for extent in made.cluster)
    return (
        *(word for word in kinds(made.schedule) if not word.startswith("order")),
        made.types[1],
        made.architecture,
        (made.consumers, cluster),
    )


def sweep(turn: int = 0) -> Iterator[Configuration]:
    """Yield a configuration for every schedule with every tile and layout.

    A hash of the schedule, tile, layout and seed `turn` picks the other options.
    """
    for schedule in SCHEDULES:
        for tile in TILES:
            for layout in LAYOUTS:
                base = Configuration(tile, schedule, layout)
                digest = hashlib.sha256(f"{turn} {base}".encode()).digest()
                yield Configuration(
                    tile,
                    schedule,
                    layout,
                    _pick(TYPES, digest[0]),
                    _pick(VECTORS, digest[1]),
                    _pick(ARCHITECTURES, digest[2]),
                )


def boxed(
    tile: tuple[int, int, int],
    cluster: tuple[int, int, int] = ALONE,
    layout: str = "nt",
    schedule: Pass = DataParallel(),  # noqa: B008 - frozen
    types: tuple[str, str] = ("bf16", "bf16"),
    vector: int = 8,
    consumers: str = "cooperative",
) -> Configuration:
    """A configuration with TMA and wgmma; an access to C or D moves `vector` elements."""
    return Configuration(
        tile,
        (schedule,),
        layout,
        types,
        Vectors(d=vector),
        "sm_90a",
        True,
        cluster,
        consumers=consumers,
    )


def two_shapes(turn: int = 0) -> Iterator[Configuration]:
    """Yield a configuration for every pair of a large and a small tile shape with every layout.

    A hash of the pair, the layout and the seed `turn` picks the other options.
    """
    for tile, (m, n) in TWO_SHAPES:
        for layout in LAYOUTS:
            base = Configuration(tile, (HeterogeneousTiles(small_m=m, small_n=n),), layout)
            digest = hashlib.sha256(f"{turn} {base}".encode()).digest()
            yield replace(
                base,
                types=_pick(TYPES, digest[0]),
                vectors=_pick(VECTORS, digest[1]),
                architecture=_pick(ARCHITECTURES, digest[2]),
            )
    for tile, (m, n), cluster, consumers in TWO_HOPPER_SHAPES:
        for layout in LAYOUTS:
            schedule = HeterogeneousTiles(small_m=m, small_n=n)
            base = boxed(tile, cluster, layout, schedule, consumers=consumers)
            digest = hashlib.sha256(f"{turn} {base}".encode()).digest()
            vectors = Vectors(d=_pick((8, 2, 1), digest[1]))
            yield replace(base, types=_pick(TYPES, digest[0]), vectors=vectors)


def taking_turns(turn: int = 0) -> Iterator[Configuration]:
    """Yield a configuration with ping-pong warpgroups for every schedule, tile and layout.

    A hash of the schedule, tile, layout and seed `turn` picks the other options.
    """
    for schedule in SCHEDULES:
        for tile, cluster in TURN_SHAPES:
            for layout in LAYOUTS:
                made = boxed(tile, cluster, layout, consumers="pingpong")
                base = replace(made, schedule=schedule)
                digest = hashlib.sha256(f"{turn} {base}".encode()).digest()
                vectors = Vectors(d=_pick((8, 2, 1), digest[1]))
                yield replace(base, types=_pick(TYPES, digest[0]), vectors=vectors)
    for tile, cluster in LARGE_TURN_SHAPES:
        for layout in LAYOUTS:
            schedule = DataParallel(persistent=True)
            yield boxed(tile, cluster, layout, schedule, consumers="pingpong")


def hopper(turn: int = 0) -> Iterator[Configuration]:
    """Yield a configuration for every schedule, tile and layout for Hopper.

    A hash of the schedule, tile, layout and seed `turn` picks the other options.
    """
    for schedule in SCHEDULES:
        for tile, cluster in HOPPER_SHAPES:
            for layout in LAYOUTS:
                base = replace(boxed(tile, cluster, layout), schedule=schedule)
                digest = hashlib.sha256(f"{turn} {base}".encode()).digest()
                vectors = Vectors(d=_pick((8, 2, 1), digest[1]))
                yield replace(base, types=_pick(TYPES, digest[0]), vectors=vectors)
    for tile, cluster in LARGE_SHAPES:
        for layout in LAYOUTS:
            yield boxed(tile, cluster, layout, DataParallel(persistent=True))


def fitting(made: Configuration) -> Configuration:
    """`made`, or a copy with 16-bit D if the kernel with 32-bit D needs too many registers.

    Counting registers is slow, so tests call `fitting` only for the configurations that they run.
    """
    if not made.boxes or made.types[1] != "f32" or made.program.why_not() is None:
        return made
    return replace(made, types=("f16", "f16"))


def _pick(choices: Sequence[Choice], number: int) -> Choice:
    return choices[number % len(choices)]
