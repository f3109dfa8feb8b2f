"""Correct graphs, into which tests put faults, and lines of their text, which edits replace."""

from __future__ import annotations

from coordgraph import epilogue as ep

PERSISTENT = "data-parallel{persistent=true}"
DYNAMIC = "data-parallel{persistent=true,scheduler=dynamic}"
STREAM = "stream-k"
LAST = "stream-k{owner=last}"
LONG_SEGMENTS = "stream-k{least_segment=3}"
TWO_TILE = "two-tile-stream-k"
HYBRID = "hybrid-stream-k"
SPLIT = "split-k{splits=3}"
TURNSTILE = "stream-k{reduction=turnstile}"
SCATTER = "stream-k{reduction=scatter}"
INTERLEAVED = "stream-k{reduction=scatter,k_order=interleaved}"
ATOMIC = "stream-k{reduction=atomic}"
TREE = "stream-k{reduction=tree}"
TILES_OF_TWO_SHAPES = "heterogeneous-tiles"
BANDS = "rasterize{width=2},stream-k"
STRIDED = "reorder{group=3},stream-k"
ALONG_M = {"grouped": True}
ALONG_K = {"grouped": True, "group_axis": "k"}
LIST = {"grouped": True, "group_axis": "mnk"}
BATCH = {"batched": True}
SEND = "SendPartial slot=partial.slot\n"
RECEIVE = "ReceivePartial slot=partial.slot\n"
STORE = "StoreTile tensor=D tile=(D.tile.0, D.tile.1)\n"
EPILOGUE = (
    "Epilogue output=D tile=(D.tile.0, D.tile.1) operands=(C) operand_tiles=(C.tile.0, C.tile.1)\n"
)


@ep.epilogue(bias="n", residual="mn", scale="m")
def scaled(acc: ep.Value, bias: ep.Value, residual: ep.Value, scale: ep.Value) -> ep.Value:
    """An epilogue function with three operands: a row (n), a matrix (m, n) and a column (m)."""
    return acc * scale + bias + residual


OPERANDS = {"epilogue": scaled}
