"""Faulty edits of the exchange of partial sums: of signals, waits, their order, and slots."""

from __future__ import annotations

from tests.faults.bases import (
    ATOMIC,
    BATCH,
    EPILOGUE,
    LAST,
    LIST,
    PERSISTENT,
    RECEIVE,
    SCATTER,
    SEND,
    SPLIT,
    STREAM,
    TREE,
    TURNSTILE,
    TWO_TILE,
)
from tests.faults.fault import Fault

__all__ = ["BOUNDS", "FIX_UP", "PROGRESS"]


def waits_first(text: str) -> str:
    """Edit a graph: move the loop that waits for other workgroups before the loop that sends."""
    lines = text.split("\n")
    at = [i for i, line in enumerate(lines) if line.startswith("      For dim=for_tile")]
    end = next(i for i, line in enumerate(lines) if line == "    }")
    first, second = lines[at[0] : at[1]], lines[at[1] : end]
    return "\n".join([*lines[: at[0]], *second, *first, *lines[end:]])


FIX_UP = (
    Fault(
        "partial sum sent under the indices of another tile",
        "fix-up",
        "split-k{splits=2,reduction=atomic}",
        (
            (
                "SetCoordinate dim=partial.slot value=slot {\n              Accumulate",
                "SetCoordinate dim=D.tile.0 value=slot {\n              Accumulate",
            ),
        ),
    ),
    Fault(
        "first iteration of a segment off by one where C is given",
        "fix-up",
        SCATTER,
        (
            (
                "name=k_first value=(share*workgroup + for_tile) % tiles_k",
                "name=k_first value=(share*workgroup + max(for_tile, read_c)) % tiles_k",
            ),
        ),
    ),
    Fault(
        "last workgroup continues past the last iteration",
        "fix-up",
        LAST,
        (("value=min(share, tiles_k*tiles_m*tiles_n - share*workgroup)", "value=share"),),
    ),
    Fault(
        "workgroup waits for its own partial sum",
        "fix-up",
        STREAM,
        (("start=workgroup + 1 stop", "start=workgroup stop"),),
    ),
    Fault(
        "no wait for the next workgroup's partial sum",
        "fix-up",
        STREAM,
        (("start=workgroup + 1 stop", "start=workgroup + 2 stop"),),
    ),
    Fault(
        "wait for one partial sum too many",
        "fix-up",
        STREAM,
        (("// share + 1 {", "// share + 2 {"),),
    ),
    Fault(
        "wait for one partial sum too few", "fix-up", STREAM, (("// share + 1 {", "// share {"),)
    ),
    Fault(
        "wait for one partial sum too many if a tile and a share end together",
        "fix-up",
        STREAM,
        (("+ tiles_k - 1) // share + 1 {", "+ tiles_k) // share + 1 {"),),
    ),
    Fault("partial sums not sent", "fix-up", STREAM, ((SEND, ""),)),
    Fault("partial sums sent twice", "fix-up", LAST, ((SEND, SEND + SEND),)),
    Fault("partial sums not received", "fix-up", TWO_TILE, ((RECEIVE, ""),)),
    Fault("partial sums received twice", "fix-up", STREAM, ((RECEIVE, RECEIVE + RECEIVE),)),
    Fault("no epilogue", "fix-up", STREAM, ((EPILOGUE, ""),)),
    Fault("doubled epilogue", "fix-up", SPLIT, ((EPILOGUE, EPILOGUE + EPILOGUE),)),
    Fault("accumulator never zeroed", "fix-up", PERSISTENT, (("InitAccumulator\n", ""),)),
    Fault(
        "a tile finished by two workgroups",
        "fix-up",
        STREAM,
        (("If condition=k_first > 0 {", "If condition=k_first > 1 {"),),
    ),
    Fault(
        "a tile finished by no workgroup",
        "fix-up",
        STREAM,
        (("If condition=k_first > 0 {", "If condition=k_first >= 0 {"),),
    ),
    Fault(
        "a tile finished by its first workgroup instead of its last",
        "fix-up",
        LAST,
        (("If condition=k_count + k_first < tiles_k {", "If condition=k_first > 0 {"),),
    ),
    Fault(
        "all sums sent, also those of whole tiles",
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
        "turnstile: wait for the workgroup after next",
        "fix-up",
        TURNSTILE,
        (("turn_before value=turn + 1", "turn_before value=turn + 2"),),
    ),
    Fault(
        "workgroups of a tile use different slots",
        "fix-up",
        SPLIT,
        (
            (
                "name=slot value=workgroup // 3",
                "name=slot value=min(workgroup // 3 + workgroup % 3, tiles_m*tiles_n - 1)",
            ),
        ),
    ),
    Fault(
        "flag set for one reader too few",
        "fix-up",
        SCATTER,
        (("readers=peers", "readers=peers - 1"),),
    ),
    Fault(
        "flag set for one reader too many",
        "fix-up",
        SCATTER,
        (("readers=peers", "readers=peers + 1"),),
    ),
    Fault("partial sums not added", "fix-up", SCATTER, (("AddPartial slot=partial.slot\n", ""),)),
    Fault(
        "partial sums added twice",
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
        "two partial sums of a workgroup in one slot",
        "fix-up",
        SCATTER,
        (
            ("value=1 - min(1, workgroup - low)", "value=0"),
            ("value=1 - min(1, partial.peer - low)", "value=0"),
        ),
    ),
    Fault(
        "wait for one sender of an atomic sum too few",
        "fix-up",
        ATOMIC,
        (("// share - workgroup\n", "// share - workgroup - 1\n"),),
    ),
    Fault(
        "atomic sums of all tiles in one slot",
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
        "tree reduction without its first level",
        "fix-up",
        TREE,
        (("dim=fixup.level start=1", "dim=fixup.level start=2"),),
    ),
    Fault(
        "tree levels 1, 2, 3, … instead of 1, 2, 4, …",
        "fix-up",
        TREE,
        (("step=fixup.level", "step=1"),),
    ),
)
PROGRESS = (
    Fault(
        "workgroup waits for others before it sends its partial sums",
        "progress",
        SCATTER,
        (waits_first,),
    ),
    Fault(
        "two workgroups wait for each other's partial sum",
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
        "wait for slots past the end of the workspace",
        "bounds",
        STREAM,
        (("// share + 1 {", "// share + 9 {"),),
    ),
    Fault(
        "slot of the next tile used",
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
        "products of a batch read past the end of A",
        "bounds",
        STREAM,
        (("strides=(stride_a, k, 1)", "strides=(stride_a + k, k, 1)"),),
        BATCH,
    ),
)
