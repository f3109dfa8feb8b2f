"""Passes: graph to graph. Schedules decide which workgroup does what; pipelines chain them."""

from passes.base import PASSES, Pass
from passes.data_parallel import DataParallel
from passes.grouped import Grouped
from passes.heterogeneous_tiles import HeterogeneousTiles
from passes.hybrid_stream_k import HybridStreamK
from passes.longest_first import LongestFirst
from passes.pipeline import Pipeline
from passes.rasterize import Rasterize
from passes.reorder import Reorder
from passes.split_k import SplitK
from passes.stream_k import StreamK
from passes.tiles import TileWork, flatten_into, number_of, workgroup_count
from passes.two_tile_stream_k import TwoTileStreamK

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
    "number_of",
    "workgroup_count",
]
