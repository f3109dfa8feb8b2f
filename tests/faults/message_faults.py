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
