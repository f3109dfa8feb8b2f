"""Kernels for Hopper that tests launch: schedules, tiles, clusters and layouts.

The lists need neither a GPU nor an array library, so machines without a GPU can check that every
kernel can be lowered and assembled.
"""

from __future__ import annotations

from passes import Pipeline
from tests.gpu.kernels import Spec

__all__ = [
    "ADDED",
    "DIFFERENT_D",
    "LAYOUTS",
    "RANDOM",
    "SCATTER",
    "SCHEDULES",
    "SHAPES",
    "SHARING",
    "STEADY",
    "SWEEP",
    "TURNS",
    "TURN_SHAPES",
    "TWO_SHAPES",
    "WHOLE",
    "Shape",
    "hopper",
]

Shape = tuple[int, int, int]
ALONE = (1, 1, 1)
LAYOUTS = ("nn", "nt", "tn", "tt")


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
    hopper("split-k{splits=none,reduction=scatter,adjacent=tiles}", (152, 128, 64)),
    hopper("split-k{splits=none,reduction=peers}", (256, 128, 64), (2, 1, 1), layout="nt"),
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
