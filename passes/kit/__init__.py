"""The kit for schedules: public building blocks, of which every schedule of the library is made.

- The operations on one output tile: `TileWork`, `accumulation_loop`, `depth_is_data`.
- Counting several dimensions of tiles or iterations by one dimension: `number_of`,
  `number_of_iterations`, `flatten_into`, `flatten_iterations`. `why_no_plane` returns why output
  tiles cannot be reordered.
- The grid, and waves of whole output tiles: `workgroup_count`, `add_waves`, `MOST_WORKGROUPS`.
  `given_workgroups` adds the launch argument, `renumbered` launches workgroups in another order.
- Whole output tiles that workgroups take from a counter, one after another: `dynamic_loop`.
- Equal shares of the main loop iterations of all tiles, one for each workgroup, which may begin or
  end inside a tile: `Stream`, `add_loops`.
- Output tiles that are split along k, with one workgroup for each piece: `SplitTiles`.
- Fix-up, which adds up the partial sums of a tile: `Pieces` and `add_workspace` if one workgroup
  owns the tile, `Scatter` if every workgroup with partial sums finishes a share of the tile.
  `Owner` and `Reduction` are the types of a schedule's options for the fix-up.

docs/how-to/write-a-schedule.md writes a schedule with the kit, step by step.
"""

from passes.kit.dynamic_tiles import dynamic_loop
from passes.kit.fixup import (
    A_SLOT_A_TILE,
    OWNERS,
    REDUCTIONS,
    SLOT,
    TURN,
    Owner,
    Pieces,
    Reduction,
    add_workspace,
)
from passes.kit.flattening import (
    flatten_into,
    flatten_iterations,
    number_of,
    number_of_iterations,
    why_no_plane,
)
from passes.kit.reduce_scatter import Scatter
from passes.kit.split_tiles import SplitTiles
from passes.kit.streams import ACCUMULATE, TILE, Stream, add_loops
from passes.kit.tile_work import TileWork, accumulation_loop, depth_is_data
from passes.kit.workgroups import (
    MOST_WORKGROUPS,
    add_waves,
    given_workgroups,
    renumbered,
    workgroup_count,
)

__all__ = [
    "ACCUMULATE",
    "A_SLOT_A_TILE",
    "MOST_WORKGROUPS",
    "OWNERS",
    "REDUCTIONS",
    "SLOT",
    "TILE",
    "TURN",
    "Owner",
    "Pieces",
    "Reduction",
    "Scatter",
    "SplitTiles",
    "Stream",
    "TileWork",
    "accumulation_loop",
    "add_loops",
    "add_waves",
    "add_workspace",
    "depth_is_data",
    "dynamic_loop",
    "flatten_into",
    "flatten_iterations",
    "given_workgroups",
    "number_of",
    "number_of_iterations",
    "renumbered",
    "why_no_plane",
    "workgroup_count",
]
