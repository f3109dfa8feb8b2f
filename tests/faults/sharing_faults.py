"""Catalogue of faults in dividing iterations among workgroups and in adding partial sums."""

from __future__ import annotations

from tests.faults.bases import (
    ATOMIC,
    BANDS,
    HYBRID,
    LONG_SEGMENTS,
    SCATTER,
    SPLIT,
    STREAM,
    STRIDED,
    TILES_OF_TWO_SHAPES,
    TREE,
    TURNSTILE,
    TWO_TILE,
)
from tests.faults.fault import Fault

__all__ = ["BOUNDS", "COVER", "FIX_UP", "PROGRESS", "SIZES", "STRUCTURE"]


def no_wait_for_the_first(text: str) -> str:
    """Edit: the loop that waits for a tile's partial sums leaves out the first partial sum."""
    at = text.rindex("start=low stop=", 0, text.index("AwaitPartial"))
    return text[:at] + text[at:].replace("start=low", "start=low + 1", 1)


STRUCTURE = (
    Fault(
        "Sunder: segments divided one iteration too early",
        "well-formed",
        TWO_TILE,
        (
            (
                "sk.tiles: Linear size=sk_tiles*tiles_k",
                "sk.tiles: Linear size=sk_tiles*tiles_k - 1",
            ),
            (
                "dp.tiles: Linear size=dp_waves*tiles_k*workgroups",
                "dp.tiles: Linear size=dp_waves*tiles_k*workgroups + 1",
            ),
        ),
    ),
    Fault(
        "Sunder: segments divided one macro tile too late",
        "well-formed",
        TILES_OF_TWO_SHAPES,
        (
            (
                "full.tiles: Linear size=full_waves*workgroups",
                "full.tiles: Linear size=full_waves*workgroups + 1",
            ),
            ("rest.tiles: Linear size=rest_tiles", "rest.tiles: Linear size=rest_tiles - 1"),
        ),
    ),
    Fault(
        "half as many flags as a reduce-scatter needs",
        "well-formed",
        SCATTER,
        (("flags: User size=2*workgroups", "flags: User size=workgroups"),),
    ),
    Fault(
        "order of tiles with one tile too few",
        "well-formed",
        BANDS,
        (
            (
                "tile.raster: MacroTileNumber size=tiles_m*tiles_n",
                "tile.raster: MacroTileNumber size=tiles_m*tiles_n - 1",
            ),
        ),
    ),
)
SIZES = (
    Fault(
        "floor instead of ceiling: stride of an order of tiles",
        "sizes",
        STRIDED,
        (("strides=((tiles_m*tiles_n + 2) // 3, 1)", "strides=(tiles_m*tiles_n // 3, 1)"),),
    ),
)
COVER = (
    Fault(
        "workspace for one workgroup too few",
        "cover",
        STREAM,
        (
            ("partials: User size=16*workgroups", "partials: User size=16*workgroups - 16"),
            ("f32 [workgroups, 4, 4]", "f32 [workgroups - 1, 4, 4]"),
        ),
    ),
    Fault(
        "as many small tiles as macro tiles instead of 4 times as many",
        "cover",
        TILES_OF_TWO_SHAPES,
        (("stop=(4*rest_tiles - workgroup", "stop=(rest_tiles - workgroup"),),
    ),
    Fault(
        "floor instead of ceiling: waves of small tiles",
        "cover",
        TILES_OF_TWO_SHAPES,
        (("stop=(4*rest_tiles - workgroup + workgroups - 1) //", "stop=4*rest_tiles //"),),
    ),
    Fault(
        "last data-parallel wave left out",
        "cover",
        HYBRID,
        (("dim=dp.wave start=0 stop=dp_waves", "dim=dp.wave start=0 stop=dp_waves - 1"),),
    ),
    Fault(
        "segments of a tile overlap",
        "cover",
        SPLIT,
        (
            (
                "k_first value=share*(workgroup % 3)",
                "k_first value=max(0, share*(workgroup % 3) - 1)",
            ),
        ),
    ),
    Fault(
        "gap between the iterations of two workgroups",
        "cover",
        LONG_SEGMENTS,
        (
            (
                "sk.begin value=select(share*workgroup <= ",
                "sk.begin value=select(share*workgroup < ",
            ),
        ),
    ),
)
FIX_UP = (
    Fault(
        "accumulator zeroed in every iteration",
        "fix-up",
        STREAM,
        (
            ("InitAccumulator\n", ""),
            ("MultiplyAccumulate\n", "InitAccumulator\nMultiplyAccumulate\n"),
        ),
    ),
    Fault(
        "workgroup waits for the one before it, which does not send",
        "fix-up",
        STREAM,
        (
            (
                "start=workgroup + 1 stop=(tiles_k*((share*workgroup + for_tile) // tiles_k) "
                "+ tiles_k - 1) // share + 1",
                "start=max(0, workgroup - 1) stop=workgroup",
            ),
        ),
    ),
    Fault(
        "turnstile: sum sent in the next workgroup's turn",
        "fix-up",
        TURNSTILE,
        (("dim=partial.turn value=turn {", "dim=partial.turn value=turn + 1 {"),),
    ),
    Fault(
        "turnstile: two tiles share a slot",
        "fix-up",
        TURNSTILE,
        (("// tiles_k) // share\n", "// tiles_k) // share // 2\n"),),
    ),
    Fault(
        "first sender of an atomic sum numbered one too low",
        "fix-up",
        ATOMIC,
        (("turn_first value=turn + 1", "turn_first value=turn"),),
    ),
    Fault(
        "all sums of split tiles sent, so that no workgroup finishes them",
        "fix-up",
        ATOMIC,
        (("If condition=k_first > 0 {", "If condition=k_count < tiles_k {"),),
    ),
    Fault(
        "tree reduction: wait for lower workgroups instead of higher",
        "fix-up",
        TREE,
        (
            (
                "start=fixup.level + workgroup stop=fixup.level + workgroup + 1",
                "start=max(0, workgroup - fixup.level) stop=max(0, workgroup - fixup.level) + 1",
            ),
        ),
    ),
    Fault(
        "tree reduction over one workgroup too many",
        "fix-up",
        TREE,
        (("farther + 1)", "farther + 2)"),),
    ),
    Fault(
        "tree reduction with one level too many",
        "fix-up",
        TREE,
        (("+ 65536) + 1) // 2", "+ 65536) + 1)"),),
    ),
    Fault(
        "flag cleared by the first of several readers",
        "fix-up",
        SCATTER,
        (("readers=peers", "readers=1"),),
    ),
    Fault(
        "flag never cleared",
        "fix-up",
        SCATTER,
        (("readers=peers", "readers=peers + workgroups"),),
    ),
    Fault(
        "first partial sum of a tile added without a wait",
        "fix-up",
        SCATTER,
        (no_wait_for_the_first,),
    ),
    Fault(
        "wait for workgroups whose share begins at the end of the tile",
        "fix-up",
        LONG_SEGMENTS,
        (("- before + tiles_k - 1) // share + 1", "+ behind + tiles_k - 1) // share + 1"),),
    ),
)
PROGRESS = (
    Fault(
        "workgroups of a tile wait for each other in a circle",
        "progress",
        SPLIT,
        (
            ("If condition=k_first > 0 {", "If condition=k_first >= 0 {"),
            ("turn_before value=turn - 1", "turn_before value=(turn + 2) % 3"),
            (
                "If condition=k_count + k_first < tiles_k {",
                "If condition=k_count + k_first < tiles_k + share {",
            ),
        ),
    ),
)
BOUNDS = (
    Fault(
        "slot numbers one too low, so that one is -1",
        "bounds",
        TURNSTILE,
        (("// tiles_k) // share\n", "// tiles_k) // share - 1\n"),),
    ),
    Fault(
        "slots numbered by workgroup, in a workspace of one slot per tile",
        "bounds",
        SPLIT,
        (("name=slot value=workgroup // 3", "name=slot value=workgroup"),),
    ),
)
