"""The edges of coordinate graphs: coordinate transforms, one class per file.

An edge's class has the formulas of the coordinate transform in both directions, the size rule
(which sizes of operands fit), the guard (which indices are not padding), and the laws (identities
between the formulas, which tests verify).
"""

from coordgraph.coordinates.edges.balance import Balance
from coordgraph.coordinates.edges.bands import Bands
from coordgraph.coordinates.edges.base import EDGES, Edge, Law, Sizes
from coordgraph.coordinates.edges.concatenate import Concatenate
from coordgraph.coordinates.edges.curve import Curve
from coordgraph.coordinates.edges.deal import Deal
from coordgraph.coordinates.edges.diagonal import Diagonal, row_pitch
from coordgraph.coordinates.edges.flatten import Flatten
from coordgraph.coordinates.edges.gather import Gather
from coordgraph.coordinates.edges.interleave import Interleave
from coordgraph.coordinates.edges.join import Join
from coordgraph.coordinates.edges.passthrough import PassThrough
from coordgraph.coordinates.edges.permute import Permute
from coordgraph.coordinates.edges.ragged import Ragged
from coordgraph.coordinates.edges.share import Share
from coordgraph.coordinates.edges.split import Split
from coordgraph.coordinates.edges.sunder import Sunder
from coordgraph.coordinates.edges.swizzle import Swizzle
from coordgraph.coordinates.edges.tile import Tile

__all__ = [
    "EDGES",
    "Balance",
    "Bands",
    "Concatenate",
    "Curve",
    "Deal",
    "Diagonal",
    "Edge",
    "Flatten",
    "Gather",
    "Interleave",
    "Join",
    "Law",
    "PassThrough",
    "Permute",
    "Ragged",
    "Share",
    "Sizes",
    "Split",
    "Sunder",
    "Swizzle",
    "Tile",
    "row_pitch",
]
