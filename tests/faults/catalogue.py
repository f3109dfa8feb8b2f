"""The catalogue of faults of scheduled graphs."""

from __future__ import annotations

from tests.faults.fault import Fault

__all__ = ["FAULTS"]

PERSISTENT = "data-parallel{persistent=true}"
STREAM = "stream-k"
LAST = "stream-k{owner=last}"
TWO_TILE = "two-tile-stream-k"
SPLIT = "split-k{splits=3}"
TURNSTILE = "stream-k{reduction=turnstile}"
SCATTER = "stream-k{reduction=scatter}"
ATOMIC = "stream-k{reduction=atomic}"
TREE = "stream-k{reduction=tree}"
TILES_OF_TWO_SHAPES = "heterogeneous-tiles"
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


def waits_first(text: str) -> str:
    """The loop that waits for the other pieces of a tile stands before the loop that sends."""
    lines = text.split("\n")
    at = [i for i, line in enumerate(lines) if line.startswith("      For dim=for_tile")]
    end = next(i for i, line in enumerate(lines) if line == "    }")
    first, second = lines[at[0] : at[1]], lines[at[1] : end]
    return "\n".join([*lines[: at[0]], *second, *first, *lines[end:]])


STRUCTURE = (
    Fault(
        "Sunder one iteration too long",
        "well-formed",
        TWO_TILE,
        (("sk.tiles: Linear size=sk_tiles*tiles_k", "sk.tiles: Linear size=sk_tiles*tiles_k + 1"),),
    ),
)
SIZES = (
    Fault(
        "Flatten of the size rows instead of rows·columns",
        "sizes",
        PERSISTENT,
        (("dim tile: Linear size=tiles_m*tiles_n", "dim tile: Linear size=tiles_m"),),
    ),
    Fault(
        "Flatten of the global space without one axis",
        "sizes",
        STREAM,
        (("global: Linear size=tiles_k*tiles_m*tiles_n", "global: Linear size=tiles_k*tiles_m"),),
    ),
    Fault(
        "extent m in place of n in a number of tiles",
        "sizes",
        STREAM,
        (("= (n + 3) // 4", "= (m + 3) // 4"),),
    ),
    Fault("floor for ceiling, tiles in m", "sizes", STREAM, (("(m + 3) // 4", "max(1, m // 4)"),)),
    Fault("floor for ceiling, tiles in n", "sizes", SPLIT, (("(n + 3) // 4", "max(1, n // 4)"),)),
    Fault("floor for ceiling, k tiles", "sizes", STREAM, (("(k + 3) // 4", "max(1, k // 4)"),)),
    Fault(
        "floor for ceiling, iterations per workgroup",
        "sizes",
        STREAM,
        (
            (
                "(tiles_k*tiles_m*tiles_n - 1) // workgroups + 1",
                "max(1, tiles_k*tiles_m*tiles_n // workgroups)",
            ),
        ),
    ),
    Fault(
        "floor for ceiling, waves",
        "sizes",
        PERSISTENT,
        (("(tiles_m*tiles_n - 1) // workgroups + 1", "max(1, tiles_m*tiles_n // workgroups)"),),
    ),
    Fault(
        "floor for ceiling, iterations of a piece",
        "sizes",
        SPLIT,
        (("(tiles_k + 2) // 3", "max(1, tiles_k // 3)"),),
    ),
    Fault(
        "floor for ceiling, small tiles",
        "sizes",
        TILES_OF_TWO_SHAPES,
        (("(n + 1) // 2", "max(1, n // 2)"),),
    ),
    Fault(
        "row stride m in place of k",
        "sizes",
        STREAM,
        (("A.1 strides=(k, 1)", "A.1 strides=(m, 1)"),),
    ),
    Fault(
        "constant row stride of D",
        "sizes",
        PERSISTENT,
        (("D.1 strides=(n, 1)", "D.1 strides=(14, 1)"),),
    ),
    Fault(
        "workspace one slot short",
        "sizes",
        SPLIT,
        (("tensor partials f32 [tiles_m*tiles_n, 4, 4]", "tensor partials f32 [tiles_m, 4, 4]"),),
    ),
    Fault(
        "one flag for all slots",
        "sizes",
        STREAM,
        (("tensor flags i32 [workgroups]", "tensor flags i32 [1]"),),
    ),
    Fault(
        "Sunder one wave too short",
        "sizes",
        TILES_OF_TWO_SHAPES,
        (
            (
                "full.tiles: Linear size=full_waves*workgroups",
                "full.tiles: Linear size=max(0, full_waves - 1)*workgroups",
            ),
        ),
    ),
    Fault(
        "operand tiles of C with rows and columns exchanged",
        "sizes",
        STREAM,
        (
            ("C.tile.0 -> A.tile.0", "C.tile.0 -> B.tile.1"),
            ("C.tile.1 -> B.tile.1", "C.tile.1 -> A.tile.0"),
        ),
    ),
    Fault(
        "guard of the last rows lost",
        "sizes",
        PERSISTENT,
        (
            (
                "edge Tile D.0 -> D.tile.0, D.index.0",
                "edge Split D.0 -> D.tile.0, D.index.0 strides=(4, 1)",
            ),
        ),
    ),
)
COVER = (
    Fault(
        "dimension of partial sums too small",
        "cover",
        STREAM,
        (
            ("partials: User size=16*workgroups", "partials: User size=12*workgroups"),
            ("f32 [workgroups, 4, 4]", "f32 [workgroups, 3, 4]"),
        ),
    ),
    Fault(
        "A stored column-major", "cover", STREAM, (("A.1 strides=(k, 1)", "A.1 strides=(1, m)"),)
    ),
    Fault("B stored column-major", "cover", SPLIT, (("B.1 strides=(n, 1)", "B.1 strides=(1, k)"),)),
    Fault(
        "C stored column-major", "cover", STREAM, (("C.1 strides=(n, 1)", "C.1 strides=(1, m)"),)
    ),
    Fault(
        "D stored column-major",
        "cover",
        PERSISTENT,
        (("D.1 strides=(n, 1)", "D.1 strides=(1, m)"),),
    ),
    Fault(
        "segments of a Sunder exchanged",
        "cover",
        TWO_TILE,
        (("Sunder global -> sk.tiles, dp.tiles,", "Sunder global -> dp.tiles, sk.tiles,"),),
    ),
    Fault(
        "Sunder one iteration off",
        "cover",
        TWO_TILE,
        (
            (
                "sk.tiles: Linear size=sk_tiles*tiles_k",
                "sk.tiles: Linear size=sk_tiles*tiles_k + 1",
            ),
            (
                "dp.tiles: Linear size=dp_waves*tiles_k*workgroups",
                "dp.tiles: Linear size=dp_waves*tiles_k*workgroups - 1",
            ),
        ),
    ),
    Fault(
        "the same selector twice",
        "cover",
        TWO_TILE,
        (("dim=selector value=1", "dim=selector value=0"),),
    ),
    Fault(
        "k fastest made slowest",
        "cover",
        STREAM,
        (("Flatten A.tile.0, B.tile.1, k_tile", "Flatten k_tile, A.tile.0, B.tile.1"),),
    ),
    Fault(
        "rows of A for its columns",
        "cover",
        STREAM,
        (("tensor=A tile=(A.tile.0, A.tile.1)", "tensor=A tile=(A.tile.1, A.tile.0)"),),
    ),
    Fault(
        "last k tile left out",
        "cover",
        STREAM,
        (("dim=for_k start=0 stop=k_count", "dim=for_k start=0 stop=k_count - 1"),),
    ),
    Fault(
        "one k tile too many",
        "cover",
        STREAM,
        (("dim=for_k start=0 stop=k_count", "dim=for_k start=0 stop=k_count + 1"),),
    ),
    Fault(
        "first k tile left out",
        "cover",
        SPLIT,
        (("dim=for_k start=0 stop=k_count", "dim=for_k start=1 stop=k_count"),),
    ),
    Fault("first wave left out", "cover", PERSISTENT, (("dim=wave start=0", "dim=wave start=1"),)),
    Fault(
        "floor for ceiling in the number of a workgroup's tiles",
        "cover",
        PERSISTENT,
        (
            (
                "(tiles_m*tiles_n - workgroup + workgroups - 1) // workgroups",
                "tiles_m*tiles_n // workgroups",
            ),
        ),
    ),
    Fault(
        "every segment counted as a whole tile",
        "cover",
        STREAM,
        (
            (
                "step=min(iterations - for_tile, tiles_k - (share*workgroup + for_tile) % tiles_k)",
                "step=tiles_k",
            ),
        ),
    ),
    Fault(
        "segments not cut at the tile's end", "cover", STREAM, (("tiles_k - k_first)", "tiles_k)"),)
    ),
    Fault(
        "pieces one k tile apart",
        "cover",
        SPLIT,
        (("k_first value=share*(workgroup % 3)", "k_first value=(share + 1)*(workgroup % 3)"),),
    ),
    Fault("no store", "cover", STREAM, ((STORE, ""),)),
    Fault("doubled store", "cover", TWO_TILE, ((STORE, STORE + STORE),)),
    Fault(
        "doubled multiplication",
        "cover",
        PERSISTENT,
        (("MultiplyAccumulate\n", "MultiplyAccumulate\nMultiplyAccumulate\n"),),
    ),
    Fault(
        "every share finished by every peer",
        "cover",
        SCATTER,
        (("stop=4 step=peers", "stop=4 step=1"),),
    ),
    Fault(
        "first share left out",
        "cover",
        SCATTER,
        (("start=workgroup - low stop=4", "start=workgroup - low + 1 stop=4"),),
    ),
    Fault(
        "rest of the tiles left out",
        "cover",
        TILES_OF_TWO_SHAPES,
        (("small.wave start=0", "small.wave start=1"),),
    ),
    Fault(
        "floor for ceiling in a table of tiles",
        "cover",
        PERSISTENT,
        (
            (
                "load(offsets, tile_starts.at)) + 3) // 4 ",
                "load(offsets, tile_starts.at)) + 0) // 4 ",
            ),
        ),
        ALONG_M,
    ),
    Fault(
        "no k tile for an empty group",
        "cover",
        STREAM,
        (("sums (max(1, ", "sums (max(0, "),),
        ALONG_K,
    ),
    Fault(
        "tables of rows and columns exchanged",
        "cover",
        STREAM,
        (("extents=(m_tile_starts, n_tile_starts, ", "extents=(n_tile_starts, m_tile_starts, "),),
        LIST,
    ),
    Fault(
        "products in the wrong order",
        "cover",
        STREAM,
        (
            ("strides=(stride_a, k, 1)", "strides=(0, k, 1)"),
            ("size=batches*stride_a + k*m - stride_a", "size=k*m"),
            ("strides [stride_a, k, 1]", "strides [0, k, 1]"),
        ),
        BATCH,
    ),
    Fault(
        "rows of matrices not padded",
        "cover",
        STREAM,
        (
            (
                "8*((load(n_offsets, d_starts.at + 1) - load(n_offsets, d_starts.at) + 7) // 8)",
                "(load(n_offsets, d_starts.at + 1) - load(n_offsets, d_starts.at))",
            ),
        ),
        LIST,
    ),
)
FIX_UP = (
    Fault(
        "last workgroup not cut at the end",
        "fix-up",
        LAST,
        (("value=min(share, tiles_k*tiles_m*tiles_n - share*workgroup)", "value=share"),),
    ),
    Fault(
        "waits for its own slot",
        "fix-up",
        STREAM,
        (("start=workgroup + 1 stop", "start=workgroup stop"),),
    ),
    Fault(
        "waits for the workgroup after next",
        "fix-up",
        STREAM,
        (("start=workgroup + 1 stop", "start=workgroup + 2 stop"),),
    ),
    Fault("one wait too many", "fix-up", STREAM, (("// share + 1 {", "// share + 2 {"),)),
    Fault("one wait too few", "fix-up", STREAM, (("// share + 1 {", "// share {"),)),
    Fault(
        "one wait too many where ends are aligned",
        "fix-up",
        STREAM,
        (("+ tiles_k - 1) // share + 1 {", "+ tiles_k) // share + 1 {"),),
    ),
    Fault("no signal", "fix-up", STREAM, ((SEND, ""),)),
    Fault("doubled signal", "fix-up", LAST, ((SEND, SEND + SEND),)),
    Fault("no receive", "fix-up", TWO_TILE, ((RECEIVE, ""),)),
    Fault("doubled receive", "fix-up", STREAM, ((RECEIVE, RECEIVE + RECEIVE),)),
    Fault("no epilogue", "fix-up", STREAM, ((EPILOGUE, ""),)),
    Fault("doubled epilogue", "fix-up", SPLIT, ((EPILOGUE, EPILOGUE + EPILOGUE),)),
    Fault("accumulator never zeroed", "fix-up", PERSISTENT, (("InitAccumulator\n", ""),)),
    Fault(
        "two owners of a tile",
        "fix-up",
        STREAM,
        (("If condition=k_first > 0 {", "If condition=k_first > 1 {"),),
    ),
    Fault(
        "no owner of a tile",
        "fix-up",
        STREAM,
        (("If condition=k_first > 0 {", "If condition=k_first >= 0 {"),),
    ),
    Fault(
        "owner by the wrong end",
        "fix-up",
        LAST,
        (("If condition=k_count + k_first < tiles_k {", "If condition=k_first > 0 {"),),
    ),
    Fault(
        "whole tiles are sent",
        "fix-up",
        LAST,
        (
            (
                "If condition=k_count + k_first < tiles_k {",
                "If condition=k_count + k_first <= tiles_k {",
            ),
        ),
    ),
    Fault(
        "waits for the wrong turn",
        "fix-up",
        TURNSTILE,
        (("turn_before value=turn + 1", "turn_before value=turn + 2"),),
    ),
    Fault(
        "waits in the wrong slot",
        "fix-up",
        SPLIT,
        (
            (
                "name=slot value=workgroup // 3",
                "name=slot value=min(workgroup // 3 + workgroup % 3, tiles_m*tiles_n - 1)",
            ),
        ),
    ),
    Fault("too few readers declared", "fix-up", SCATTER, (("readers=peers", "readers=peers - 1"),)),
    Fault(
        "too many readers declared", "fix-up", SCATTER, (("readers=peers", "readers=peers + 1"),)
    ),
    Fault("pieces not added", "fix-up", SCATTER, (("AddPartial slot=partial.slot\n", ""),)),
    Fault(
        "pieces added twice",
        "fix-up",
        SCATTER,
        (
            (
                "AddPartial slot=partial.slot\n",
                "AddPartial slot=partial.slot\nAddPartial slot=partial.slot\n",
            ),
        ),
    ),
    Fault(
        "two pieces of a workgroup share a slot",
        "fix-up",
        SCATTER,
        (
            ("value=1 - min(1, workgroup - low)", "value=0"),
            ("value=1 - min(1, partial.peer - low)", "value=0"),
        ),
    ),
    Fault(
        "too few senders counted",
        "fix-up",
        ATOMIC,
        (("// share - workgroup\n", "// share - workgroup - 1\n"),),
    ),
    Fault(
        "atomic sums of two tiles in one slot",
        "fix-up",
        ATOMIC,
        (
            (
                "name=slot value=tiles_k*((share*workgroup + for_tile) // tiles_k) // share",
                "name=slot value=0",
            ),
        ),
    ),
    Fault(
        "tree leaves out a level",
        "fix-up",
        TREE,
        (("dim=fixup.level start=1", "dim=fixup.level start=2"),),
    ),
    Fault("tree without doubling", "fix-up", TREE, (("step=fixup.level", "step=1"),)),
)
PROGRESS = (
    Fault("waits before it sends", "progress", SCATTER, (waits_first,)),
    Fault(
        "workgroups wait for each other's piece",
        "progress",
        STREAM,
        (
            (
                SEND,
                "For dim=partial.slot start=workgroup - 1 stop=workgroup {\n"
                + RECEIVE
                + "}\nSendPartial  slot=partial.slot\n",
            ),
            (EPILOGUE, SEND + EPILOGUE),
        ),
    ),
)
BOUNDS = (
    Fault(
        "waits for slots past the workspace",
        "bounds",
        STREAM,
        (("// share + 1 {", "// share + 9 {"),),
    ),
    Fault(
        "slot of the next workgroup",
        "bounds",
        SPLIT,
        (("name=slot value=workgroup // 3", "name=slot value=workgroup // 3 + 1"),),
    ),
    Fault(
        "table read past its end",
        "bounds",
        STREAM,
        (("load(k_tile_starts, group + 1) - k_first", "load(k_tile_starts, group + 2) - k_first"),),
        LIST,
    ),
    Fault(
        "rows of a batch past the tensor",
        "bounds",
        STREAM,
        (("strides=(stride_a, k, 1)", "strides=(stride_a + k, k, 1)"),),
        BATCH,
    ),
)
FAULTS: tuple[Fault, ...] = (*STRUCTURE, *SIZES, *COVER, *FIX_UP, *PROGRESS, *BOUNDS)
"""Every fault of scheduled graphs, grouped by the check that must refute it."""

EQUIVALENT: tuple[Fault, ...] = (
    Fault(
        "columns of tiles before rows",
        "",
        STREAM,
        (("Flatten A.tile.0, B.tile.1, k_tile", "Flatten B.tile.1, A.tile.0, k_tile"),),
    ),
    Fault(
        "waves of padding are not left out",
        "",
        PERSISTENT,
        (("stop=(tiles_m*tiles_n - workgroup + workgroups - 1) // workgroups", "stop=waves"),),
    ),
    Fault(
        "idle workgroups are not stopped before a loop without iterations",
        "",
        STREAM,
        (
            (
                "If condition=share*workgroup < tiles_k*tiles_m*tiles_n {",
                "If condition=workgroup >= 0 {",
            ),
        ),
    ),
)
"""Edits that look like faults, and change nothing in what a kernel computes."""
