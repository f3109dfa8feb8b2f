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
        "stride of the epilogue's bias: 2 instead of 1",
        "sizes",
        STREAM,
        (("bias.0 strides=(1)", "bias.0 strides=(2)"),),
        OPERANDS,
    ),
    Fault(
        "bias of columns indexed by tiles of rows",
        "sizes",
        PERSISTENT,
        (("bias.tile.0 -> B.tile.1", "bias.tile.0 -> A.tile.0"),),
        OPERANDS,
    ),
    Fault(
        "scale of rows indexed by tiles of columns",
        "sizes",
        SPLIT,
        (("scale.tile.0 -> A.tile.0", "scale.tile.0 -> B.tile.1"),),
        OPERANDS,
    ),
    Fault(
        "row stride of an epilogue operand: m instead of n",
        "sizes",
        STREAM,
        (("residual.1 strides=(n, 1)", "residual.1 strides=(m, 1)"),),
        OPERANDS,
    ),
    Fault(
        "no guard against columns of C past the last",
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
        "operand of the epilogue subtracted instead of added",
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
        "row and column numbers of D's tiles exchanged",
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
        "rows of C and their shares connected in the wrong direction",
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
