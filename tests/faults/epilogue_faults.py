"""Graphs with a deliberate fault in an epilogue, its operands or a store, which checks refute."""

from __future__ import annotations

from tests.faults.bases import (
    EPILOGUE,
    OPERANDS,
    PERSISTENT,
    SCATTER,
    SPLIT,
    STORE,
    STREAM,
    TWO_TILE,
)
from tests.faults.fault import Fault

__all__ = ["COVER", "FIX_UP", "SIZES", "STRUCTURE"]


def zeroed_once(text: str) -> str:
    """Edit: zero the accumulator once before the loop over waves, instead of in each wave."""
    text = text.replace("InitAccumulator\n", "")
    return text.replace("    For dim=wave ", "    InitAccumulator\n    For dim=wave ")


def epilogue_first(text: str) -> str:
    """Edit: move the epilogue and the store before the loop that receives partial sums."""
    text = text.replace(EPILOGUE, "").replace(STORE, "")
    receive = "If condition=k_count + k_first < tiles_k {"
    return text.replace(receive, EPILOGUE + STORE + receive)


SIZES = (
    Fault(
        "stride 2 of a vector of the epilogue",
        "sizes",
        STREAM,
        (("bias.0 strides=(1)", "bias.0 strides=(2)"),),
        OPERANDS,
    ),
    Fault(
        "bias of the columns for the rows",
        "sizes",
        PERSISTENT,
        (("bias.tile.0 -> B.tile.1", "bias.tile.0 -> A.tile.0"),),
        OPERANDS,
    ),
    Fault(
        "scale of the rows for the columns",
        "sizes",
        SPLIT,
        (("scale.tile.0 -> A.tile.0", "scale.tile.0 -> B.tile.1"),),
        OPERANDS,
    ),
    Fault(
        "row stride m in an operand of the epilogue",
        "sizes",
        STREAM,
        (("residual.1 strides=(n, 1)", "residual.1 strides=(m, 1)"),),
        OPERANDS,
    ),
    Fault(
        "guard of the last columns of C lost",
        "sizes",
        STREAM,
        (
            (
                "edge Tile C.1 -> C.tile.1, C.index.1",
                "edge Split C.1 -> C.tile.1, C.index.1 strides=(4, 1)",
            ),
        ),
    ),
)
STRUCTURE = (
    Fault(
        "operand of the epilogue subtracted",
        "well-formed",
        STREAM,
        (
            (
                '%2 = add(%1, residual); %2 }"\n   ',
                '%2 = sub(%1, residual); %2 }"\n   ',
            ),
        ),
        OPERANDS,
    ),
)
COVER = (
    Fault(
        "operand of the epilogue stored column-major",
        "cover",
        STREAM,
        (("residual.1 strides=(n, 1)", "residual.1 strides=(1, m)"),),
        OPERANDS,
    ),
    Fault(
        "tiles of D stored transposed",
        "cover",
        TWO_TILE,
        (
            (
                "StoreTile tensor=D tile=(D.tile.0, D.tile.1)",
                "StoreTile tensor=D tile=(D.tile.1, D.tile.0)",
            ),
        ),
    ),
    Fault(
        "share of C of another row",
        "cover",
        SCATTER,
        (
            (
                "edge Tile C.index.0 -> fixup.share, C.share.row",
                "edge Flatten C.share.row, fixup.share -> C.index.0",
            ),
        ),
    ),
)
FIX_UP = (
    Fault("accumulator zeroed once for all tiles", "fix-up", PERSISTENT, (zeroed_once,)),
    Fault("epilogue before the partial sums are added", "fix-up", STREAM, (epilogue_first,)),
    Fault(
        "store before the epilogue", "fix-up", SPLIT, ((STORE, ""), (EPILOGUE, STORE + EPILOGUE))
    ),
)
