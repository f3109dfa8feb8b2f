"""Passes of coordgraph: rewrites of one kernel graph into another.

Schedules assign the work on output tiles to workgroups. The passes of `passes.orders` change the
order in which output tiles are visited. Lowering passes replace operations on tiles by operations
of a target. A `Pipeline` applies several passes one after another.
"""

from passes import kit
from passes.base import PASSES, Pass, option
from passes.kit import TileWork, flatten_into, number_of, workgroup_count
from passes.orders.grouped import Grouped
from passes.orders.longest_first import LongestFirst
from passes.orders.rasterize import Rasterize
from passes.orders.reorder import Reorder
from passes.pipeline import Pipeline
from passes.schedules.data_parallel import DataParallel
from passes.schedules.heterogeneous_tiles import HeterogeneousTiles
from passes.schedules.hybrid_stream_k import HybridStreamK
from passes.schedules.split_k import SplitK
from passes.schedules.stream_k import StreamK
from passes.schedules.two_tile_stream_k import TwoTileStreamK

__all__ = [
    "PASSES",
    "DataParallel",
    "Grouped",
    "HeterogeneousTiles",
    "HybridStreamK",
    "LongestFirst",
    "Pass",
    "Pipeline",
    "Rasterize",
    "Reorder",
    "SplitK",
    "StreamK",
    "TileWork",
    "TwoTileStreamK",
    "flatten_into",
    "kit",
    "number_of",
    "option",
    "workgroup_count",
]
