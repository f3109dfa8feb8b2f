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
        "consumed stages are not freed",
        PERSISTENT,
        DEADLOCK,
        (f"ArriveBarrier {EMPTY}", "FenceShared"),
    ),
    fault(
        "mbarrier expects one arrival too many",
        PERSISTENT,
        DEADLOCK,
        (f"InitBarrier {EMPTY} arrivals=1", f"InitBarrier {EMPTY} arrivals=2"),
    ),
    fault("the wrong stage freed", PERSISTENT, "", ("ring.step + 2", "ring.step + 3")),
    fault(
        "inverted parity in the wait for an empty stage", PERSISTENT, DEADLOCK, (" before=true", "")
    ),
    fault(
        "inverted parity in the wait for a full stage",
        PERSISTENT,
        RACE,
        (WAIT_FULL + "ring.phase", WAIT_FULL + "ring.phase before=true"),
    ),
    fault("no wait for an empty stage", PERSISTENT, "phase", drop(WAIT_EMPTY)),
    fault("no wait for a full stage", PERSISTENT, RACE, drop(WAIT_FULL)),
    fault(
        "consumer waits for an empty stage, not a full one", PERSISTENT, "", (WAIT_FULL, WAIT_EMPTY)
    ),
    fault(
        "mbarrier does not expect the bytes of B",
        PERSISTENT,
        RACE,
        (" + 4096*B.boxes.inside\n", "\n"),
    ),
    fault(
        "mbarrier expects too many bytes",
        PERSISTENT,
        DEADLOCK,
        (f"ExpectBytes {FULL} bytes=", f"ExpectBytes {FULL} bytes=16 + "),
    ),
    fault("a stage freed while wgmma reads it", PERSISTENT, RACE, ("pending=1", "pending=2")),
    fault("no wait for the last wgmma", PERSISTENT, "wgmma", drop("WaitMultiplies pending=0")),
    fault("no wgmma fence", PERSISTENT, "FenceMultiplies", drop("FenceMultiplies")),
    fault(
        "no mbarrier initialisation fence", PERSISTENT, "PublishBarriers", drop("PublishBarriers")
    ),
    fault(
        "no barrier after mbarriers are initialised", PERSISTENT, "initialised", drop("    Barrier")
    ),
    fault("no wait for earlier launches", PERSISTENT, "launch", drop("AwaitEarlierLaunch")),
)
STORES = (
    fault("no proxy fence before a TMA store", PERSISTENT, "proxy fence", drop("FenceShared")),
    fault("no barrier before a TMA store", PERSISTENT, RACE, drop(OWN, 1)),
    fault("no barrier after the wait for a TMA store", PERSISTENT, RACE, drop(OWN, 0)),
    fault(
        "no wait until a TMA store has read shared memory",
        PERSISTENT,
        RACE,
        drop("WaitStores pending=0"),
    ),
    fault(
        "wait leaves one group of TMA stores pending",
        PERSISTENT,
        RACE,
        ("WaitStores pending=0", "WaitStores pending=1"),
    ),
    fault("no wait for TMA stores at the end", PERSISTENT, "end", drop("WaitStores pending=0", 1)),
    fault("TMA stores not committed", PERSISTENT, RACE, drop("CommitStores")),
)
PARTIALS = (
    fault(
        "no barrier before a flag is set", STREAM, RACE, between(TEAM[:-1], "destination=partials")
    ),
    fault(
        "flag set with relaxed order, not release",
        STREAM,
        "released",
        (SIGNAL, f"{SIGNAL} order=relaxed"),
    ),
    fault(
        "flag read with relaxed order, not acquire",
        STREAM,
        "acquired",
        (AWAIT, f"{AWAIT} order=relaxed"),
    ),
    fault(
        "flag set with CTA scope, not GPU scope", STREAM, "scopes", (SIGNAL, f"{SIGNAL} scope=cta")
    ),
    fault("no wait for a flag", STREAM, "flag", drop(AWAIT)),
    fault("flag not cleared for the next launch", STREAM, "next launch", drop("ClearFlag")),
    fault(
        "workgroup waits for its own flag",
        STREAM,
        "",
        ("value=fixup.first + workitem", "value=fixup.first - 1 + workitem"),
    ),
    fault("no warp barrier after waits for flags", STREAM, RACE, drop(OWN + "32")),
    fault(
        "no proxy fence before TMA loads partial sums", STREAM, "proxy fence", drop("FenceMemory")
    ),
    fault("no proxy fence after reads of a stage", STREAM, "proxy fence", drop("FenceShared")),
    fault("no barrier after reads of a stage", STREAM, RACE, between(OWN, "source=fixup.shared")),
    fault(
        "flag set without its turn number", TURNSTILE, "", (f"{SIGNAL} turn=partial.turn", SIGNAL)
    ),
    fault(
        "flag set for one reader too many",
        SCATTER,
        "next launch",
        ("readers=peers", "readers=peers + 1"),
    ),
    fault("no barrier after TakeFlag", SCATTER, RACE, between(TEAM[:-1], "TakeFlag")),
    fault(
        "TakeFlag with relaxed order, not acquire",
        SCATTER,
        "acquired",
        ("TakeFlag flag=flags", "TakeFlag flag=flags order=relaxed"),
    ),
    fault(
        "RaiseFlag with relaxed order, not release",
        ATOMIC,
        "released",
        ("RaiseFlag flag=flags", "RaiseFlag flag=flags order=relaxed"),
    ),
    fault(
        "wait for one sender of an atomic sum too few",
        ATOMIC,
        "",
        ("// share - workgroup\n", "// share - workgroup - 1\n"),
    ),
    fault(
        "stage of an epilogue operand freed while it is read",
        PERSISTENT,
        RACE,
        between(OWN, "ApplyFragment"),
        operand=True,
    ),
    fault(
        "no proxy fence after reads of an epilogue operand",
        PERSISTENT,
        "proxy fence",
        drop("FenceShared"),
        operand=True,
    ),
)
CLUSTERS = (
    fault(
        "stages freed in the own CTA only, not in the cluster",
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
        "no mbarrier initialisation fence in a cluster",
        PERSISTENT,
        "",
        drop("PublishBarriers"),
        lowering=CLUSTER,
    ),
    fault(
        "a CTA barrier instead of a cluster barrier",
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
        "partial sums in a cluster released at CTA scope",
        PERSISTENT,
        "released",
        (" publish=true", ""),
        lowering=SPLIT,
    ),
    fault(
        "partial sums in a cluster acquired at CTA scope",
        PERSISTENT,
        "acquired",
        (" cluster=true", ""),
        lowering=SPLIT,
    ),
    fault(
        "no wait until earlier partial sums in a cluster are read",
        PERSISTENT,
        RACE,
        drop("WaitBarrier barrier=sum.read"),
        lowering=SPLIT,
    ),
    fault(
        "no barrier after partial sums are stored in a cluster",
        PERSISTENT,
        "",
        between(TEAM[:-1], "destination=sum.shared"),
        lowering=SPLIT,
    ),
)
TURNS = (
    fault(
        "warpgroup does not wait for its turn",
        PERSISTENT,
        "",
        drop("WaitBarrier barrier=barrier.order"),
        lowering=PINGPONG,
    ),
    fault(
        "warpgroup waits for its own turn to end, not the other's",
        PERSISTENT,
        "",
        ("item.number + 3", "item.number + 2"),
        lowering=PINGPONG,
    ),
    fault(
        "only one of four warps passes the turn on",
        PERSISTENT,
        "may miss the phase's completion",
        ("barrier=barrier.order arrivals=4", "barrier=barrier.order arrivals=1"),
        ("workitem % 128 % 32 == 0", "workitem % 128 == 0"),
        lowering=PINGPONG,
    ),
    fault(
        "warpgroup does not pass the turn on",
        PERSISTENT,
        DEADLOCK,
        ("ArriveBarrier barrier=barrier.order", "FenceShared"),
        lowering=PINGPONG,
    ),
    fault(
        "stages used by the other warpgroup not counted",
        PERSISTENT,
        "",
        drop("Advance dim=ring.step by="),
        lowering=PINGPONG,
    ),
)
OLDER = (
    fault("no wait for copies", PERSISTENT, RACE, drop("WaitCopies pending=1"), lowering=None),
    fault(
        "wait leaves one group of copies too many pending",
        PERSISTENT,
        RACE,
        ("WaitCopies pending=1", "WaitCopies pending=2"),
        lowering=None,
    ),
    fault("copies not committed", PERSISTENT, RACE, drop("CommitCopies", 1), lowering=None),
    fault(
        "no barrier in an iteration of the main loop",
        PERSISTENT,
        RACE,
        between("Barrier", "WaitCopies pending=1"),
        lowering=None,
    ),
    fault(
        "no barrier after the wait for the last copies",
        PERSISTENT,
        RACE,
        between("Barrier", "WaitCopies pending=0"),
        lowering=None,
    ),
    fault(
        "copies one stage too far ahead",
        PERSISTENT,
        RACE,
        ("value=k_tile + 2", "value=k_tile + 3"),
        lowering=None,
    ),
    fault(
        "no barrier before a flag is set on sm_80",
        STREAM,
        RACE,
        between("Barrier", "destination=partials"),
        lowering=None,
    ),
    fault(
        "no barrier after a wait for a flag on sm_80",
        STREAM,
        RACE,
        between("Barrier", AWAIT),
        lowering=None,
    ),
    fault(
        "flag set with relaxed order on sm_80, not release",
        STREAM,
        "released",
        (SIGNAL, f"{SIGNAL} order=relaxed"),
        lowering=None,
    ),
    fault(
        "workgroup waits for its own flag on sm_80",
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
        "no barrier after a table is computed",
        PERSISTENT,
        "tile_starts.shared",
        between("Barrier", "Tabulate"),
        gemm=(("grouped", True),),
    ),
    fault(
        "no barrier after a table is computed on sm_80",
        STREAM,
        "tile_starts.shared",
        between("Barrier", "Tabulate"),
        gemm=(("grouped", True),),
        lowering=None,
    ),
    fault(
        "no wait until tensor maps are written",
        LAST,
        "parity",
        drop("WaitBarrier barrier=barrier.described"),
        gemm=LIST,
    ),
    fault(
        "no mbarrier arrival after tensor maps are written",
        LAST,
        DEADLOCK,
        ("ArriveBarrier barrier=barrier.described", "FenceShared"),
        gemm=LIST,
    ),
    fault(
        "no proxy fence after zeros are stored past a group's end",
        LAST,
        "proxy fence",
        between("FenceShared", "FillElements"),
        gemm=LIST,
    ),
    fault(
        "no barrier after zeros are stored past a group's end",
        LAST,
        "shared",
        between("Barrier", "FillElements"),
        gemm=LIST,
    ),
)
MEMORY_FAULTS = (*TABLES, *RING, *STORES, *PARTIALS, *CLUSTERS, *TURNS, *ORDER, *OLDER)
