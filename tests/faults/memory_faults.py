"""Catalogue of faults of lowered graphs: missing barriers, fences, flags, waits for copies."""

from __future__ import annotations

from tests.faults.memory_fault import (
    CLUSTER,
    PINGPONG,
    SPLIT,
    SQUARE,
    between,
    drop,
    fault,
    swap,
)
from tests.faults.ticket_faults import ORDER

__all__ = ["MEMORY_FAULTS"]

PERSISTENT = "data-parallel{persistent=true}"
STREAM, LAST = "stream-k", "stream-k{owner=last}"
SCATTER, ATOMIC = "stream-k{reduction=scatter}", "stream-k{reduction=atomic}"
TURNSTILE = "stream-k{owner=last,reduction=turnstile}"
EMPTY, FULL = "barrier=barrier.empty", "barrier=barrier.full"
WAIT_EMPTY, WAIT_FULL = f"WaitBarrier {EMPTY} phase=", f"WaitBarrier {FULL} phase="
SIGNAL, AWAIT = "SignalFlag flag=flags", "WaitFlag flag=flags"
TEAM = "Barrier identifier=1 workitems=128\n"
OWN = "Barrier identifier=workitem // 128 + 2 workitems="
RACE, DEADLOCK = "data race", "deadlock"
LIST = (("grouped", True), ("group_axis", "mnk"), ("transpose_a", True), ("transpose_b", False))
"""The arguments of `Gemm` for a list of products, as (name, value) pairs."""

RING = (
    fault(
        "empty stages are not freed",
        PERSISTENT,
        DEADLOCK,
        (f"ArriveBarrier {EMPTY}", "FenceShared"),
    ),
    fault(
        "an arrival too many expected",
        PERSISTENT,
        DEADLOCK,
        (f"InitBarrier {EMPTY} arrivals=1", f"InitBarrier {EMPTY} arrivals=2"),
    ),
    fault("the wrong stage freed", PERSISTENT, "", ("ring.step + 2", "ring.step + 3")),
    fault("inverted parity of empty stages", PERSISTENT, DEADLOCK, (" before=true", "")),
    fault(
        "inverted parity of full stages",
        PERSISTENT,
        RACE,
        (WAIT_FULL + "ring.phase", WAIT_FULL + "ring.phase before=true"),
    ),
    fault("no wait for an empty stage", PERSISTENT, "phase", drop(WAIT_EMPTY)),
    fault("no wait for a full stage", PERSISTENT, "parity", drop(WAIT_FULL)),
    fault("waits for an empty stage, not a full one", PERSISTENT, "", (WAIT_FULL, WAIT_EMPTY)),
    fault("bytes of B not expected", PERSISTENT, RACE, (" + 4096*B.boxes.inside\n", "\n")),
    fault(
        "too many bytes expected",
        PERSISTENT,
        DEADLOCK,
        (f"ExpectBytes {FULL} bytes=", f"ExpectBytes {FULL} bytes=16 + "),
    ),
    fault("a stage freed while wgmma reads it", PERSISTENT, RACE, ("pending=1", "pending=2")),
    fault("no wait for the last wgmma", PERSISTENT, "wgmma", drop("WaitMultiplies pending=0")),
    fault("no fence of wgmma", PERSISTENT, "FenceMultiplies", drop("FenceMultiplies")),
    fault("mbarriers not published", PERSISTENT, "PublishBarriers", drop("PublishBarriers")),
    fault("no barrier behind mbarriers", PERSISTENT, "initialised", drop("    Barrier")),
    fault("no wait for earlier launches", PERSISTENT, "launch", drop("AwaitEarlierLaunch")),
)
STORES = (
    fault("no proxy fence before a TMA store", PERSISTENT, "proxy fence", drop("FenceShared")),
    fault("no barrier before a TMA store", PERSISTENT, RACE, drop(OWN, 1)),
    fault("no barrier behind the wait for a slot", PERSISTENT, RACE, drop(OWN, 0)),
    fault("no wait for a slot", PERSISTENT, RACE, drop("WaitStores pending=0")),
    fault(
        "a store group too few awaited",
        PERSISTENT,
        RACE,
        ("WaitStores pending=0", "WaitStores pending=1"),
    ),
    fault("no wait for stores at the end", PERSISTENT, "end", drop("WaitStores pending=0", 1)),
    fault("stores not committed", PERSISTENT, RACE, drop("CommitStores")),
)
PARTIALS = (
    fault("no barrier before a signal", STREAM, RACE, between(TEAM[:-1], "destination=partials")),
    fault("relaxed for release", STREAM, "released", (SIGNAL, f"{SIGNAL} order=relaxed")),
    fault("relaxed for acquire", STREAM, "acquired", (AWAIT, f"{AWAIT} order=relaxed")),
    fault("release for the workgroup only", STREAM, "scopes", (SIGNAL, f"{SIGNAL} scope=cta")),
    fault("no wait for a signal", STREAM, "flag", drop(AWAIT)),
    fault("a flag left set", STREAM, "next launch", drop("ClearFlag")),
    fault(
        "waits for its own signal",
        STREAM,
        "",
        ("value=fixup.first + workitem", "value=fixup.first - 1 + workitem"),
    ),
    fault("no warp barrier behind signals", STREAM, RACE, drop(OWN + "32")),
    fault(
        "no proxy fence before partial sums are loaded", STREAM, "proxy fence", drop("FenceMemory")
    ),
    fault("no proxy fence behind reads of a stage", STREAM, "proxy fence", drop("FenceShared")),
    fault("no barrier behind reads of a stage", STREAM, RACE, between(OWN, "source=fixup.shared")),
    fault("signal without its turn", TURNSTILE, "", (f"{SIGNAL} turn=partial.turn", SIGNAL)),
    fault(
        "a reader too many declared", SCATTER, "next launch", ("readers=peers", "readers=peers + 1")
    ),
    fault("no barrier behind taken flags", SCATTER, RACE, between(TEAM[:-1], "TakeFlag")),
    fault(
        "relaxed for the acquire of a taken flag",
        SCATTER,
        "acquired",
        ("TakeFlag flag=flags", "TakeFlag flag=flags order=relaxed"),
    ),
    fault(
        "relaxed for the release of a sum",
        ATOMIC,
        "released",
        ("RaiseFlag flag=flags", "RaiseFlag flag=flags order=relaxed"),
    ),
    fault(
        "a sender too few counted",
        ATOMIC,
        "",
        ("// share - workgroup\n", "// share - workgroup - 1\n"),
    ),
    fault(
        "a stage of an operand freed while it is read",
        PERSISTENT,
        RACE,
        between(OWN, "ApplyFragment"),
        operand=True,
    ),
    fault(
        "no proxy fence behind reads of an operand",
        PERSISTENT,
        "proxy fence",
        drop("FenceShared"),
        operand=True,
    ),
)
CLUSTERS = (
    fault(
        "stages freed in the own workgroup only",
        PERSISTENT,
        "",
        (" rank=workitem % 128", ""),
        lowering=CLUSTER,
    ),
    fault(
        "stages freed in a row and a column of the cluster only",
        PERSISTENT,
        RACE,
        # In a 2 x 2 cluster, the CTAs of ranks r and 3 - r share neither A nor B. With this fault,
        # they do not signal each other that a stage is free.
        ("barrier=barrier.empty arrivals=4", "barrier=barrier.empty arrivals=3"),
        (
            "workitem % 128 < 4 {",
            "workitem % 128 < 4 and not cluster.rank + workitem % 128 == 3 {",
        ),
        lowering=SQUARE,
    ),
    fault(
        "mbarriers not published to the cluster",
        PERSISTENT,
        "",
        drop("PublishBarriers"),
        lowering=CLUSTER,
    ),
    fault(
        "a barrier of the workgroup for one of the cluster",
        PERSISTENT,
        "initialised",
        (lambda text: text.replace("ClusterBarrier", "Barrier", 1)),
        lowering=CLUSTER,
    ),
    fault(
        "no cluster barrier at the end",
        PERSISTENT,
        "end",
        drop("ClusterBarrier", 1),
        lowering=CLUSTER,
    ),
    fault(
        "products released for the workgroup only",
        PERSISTENT,
        "released",
        (" publish=true", ""),
        lowering=SPLIT,
    ),
    fault(
        "products acquired for the workgroup only",
        PERSISTENT,
        "acquired",
        (" cluster=true", ""),
        lowering=SPLIT,
    ),
    fault(
        "no wait until products are read",
        PERSISTENT,
        RACE,
        drop("WaitBarrier barrier=sum.read"),
        lowering=SPLIT,
    ),
    fault(
        "no barrier behind stored products",
        PERSISTENT,
        "",
        between(TEAM[:-1], "destination=sum.shared"),
        lowering=SPLIT,
    ),
)
TURNS = (
    fault(
        "no wait for the turn",
        PERSISTENT,
        "",
        drop("WaitBarrier barrier=barrier.order"),
        lowering=PINGPONG,
    ),
    fault(
        "waits for the wrong turn",
        PERSISTENT,
        "",
        ("item.number + 3", "item.number + 2"),
        lowering=PINGPONG,
    ),
    fault(
        "one of four warps passes the turn on",
        PERSISTENT,
        "may miss the phase's completion",
        ("barrier=barrier.order arrivals=4", "barrier=barrier.order arrivals=1"),
        ("workitem % 128 % 32 == 0", "workitem % 128 == 0"),
        lowering=PINGPONG,
    ),
    fault(
        "the turn is not passed on",
        PERSISTENT,
        DEADLOCK,
        ("ArriveBarrier barrier=barrier.order", "FenceShared"),
        lowering=PINGPONG,
    ),
    fault(
        "the other warpgroup's steps not counted",
        PERSISTENT,
        "",
        drop("Advance dim=ring.step by="),
        lowering=PINGPONG,
    ),
)
OLDER = (
    fault("no wait for copies", PERSISTENT, RACE, drop("WaitCopies pending=1"), lowering=None),
    fault(
        "a group of copies too few awaited",
        PERSISTENT,
        RACE,
        ("WaitCopies pending=1", "WaitCopies pending=2"),
        lowering=None,
    ),
    fault("copies not committed", PERSISTENT, RACE, drop("CommitCopies", 1), lowering=None),
    fault(
        "no barrier in a step",
        PERSISTENT,
        RACE,
        between("Barrier", "WaitCopies pending=1"),
        lowering=None,
    ),
    fault(
        "no barrier behind the last copies",
        PERSISTENT,
        RACE,
        between("Barrier", "WaitCopies pending=0"),
        lowering=None,
    ),
    fault(
        "copies a stage too far ahead",
        PERSISTENT,
        RACE,
        ("value=k_tile + 2", "value=k_tile + 3"),
        lowering=None,
    ),
    fault(
        "no barrier before a signal on sm_80",
        STREAM,
        RACE,
        between("Barrier", "destination=partials"),
        lowering=None,
    ),
    fault(
        "no barrier behind a wait on sm_80", STREAM, RACE, between("Barrier", AWAIT), lowering=None
    ),
    fault(
        "relaxed for release on sm_80",
        STREAM,
        "released",
        (SIGNAL, f"{SIGNAL} order=relaxed"),
        lowering=None,
    ),
    fault(
        "waits for a higher and a lower workgroup",
        STREAM,
        "",
        ("start=workgroup + 1 stop", "start=workgroup stop"),
        lowering=None,
    ),
    fault(
        "a flag cleared before it is awaited",
        TURNSTILE,
        "",
        swap(AWAIT, "ClearFlag"),
        lowering=None,
    ),
)
TABLES = (
    fault(
        "no barrier behind a table",
        PERSISTENT,
        "tile_starts.shared",
        between("Barrier", "Tabulate"),
        gemm=(("grouped", True),),
    ),
    fault(
        "no barrier behind a table on sm_80",
        STREAM,
        "tile_starts.shared",
        between("Barrier", "Tabulate"),
        gemm=(("grouped", True),),
        lowering=None,
    ),
    fault(
        "tensor maps used before they are described",
        LAST,
        "parity",
        drop("WaitBarrier barrier=barrier.described"),
        gemm=LIST,
    ),
    fault(
        "a description of tensor maps not signalled",
        LAST,
        DEADLOCK,
        ("ArriveBarrier barrier=barrier.described", "FenceShared"),
        gemm=LIST,
    ),
    fault(
        "no proxy fence behind zeros past a group",
        LAST,
        "proxy fence",
        between("FenceShared", "FillElements"),
        gemm=LIST,
    ),
    fault(
        "no barrier behind zeros past a group",
        LAST,
        "shared",
        between("Barrier", "FillElements"),
        gemm=LIST,
    ),
)
MEMORY_FAULTS = (*TABLES, *RING, *STORES, *PARTIALS, *CLUSTERS, *TURNS, *ORDER, *OLDER)
