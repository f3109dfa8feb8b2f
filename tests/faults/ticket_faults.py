"""Faulty edits of a graph whose workgroups take tiles from a counter, and of its lowered graphs."""

from __future__ import annotations

from tests.faults.bases import DYNAMIC
from tests.faults.fault import Fault
from tests.faults.memory_fault import CLUSTER, MemoryFault, between, drop, fault

__all__ = ["COVER", "FIX_UP", "ORDER", "STRUCTURE"]

TAKE = "        TakeTicket dim=tile counter=counter first=workgroups count=tiles_m*tiles_n\n"
RACE, DEADLOCK = "data race", "deadlock"
FETCH = "FetchTicket ticket=ticket counter=counter count=tiles_m*tiles_n\n"

STRUCTURE = (
    Fault("two operations TakeTicket for each tile", "well-formed", DYNAMIC, ((TAKE, 2 * TAKE),)),
    Fault("no operation TakeTicket", "well-formed", DYNAMIC, ((TAKE, ""),)),
    Fault(
        "TakeTicket in every second iteration only",
        "well-formed",
        DYNAMIC,
        ((TAKE, f"        If condition=tile % 2 == 0 {{\n{TAKE}        }}\n"),),
    ),
)
COVER = (
    Fault(
        "tickets begin with tile 0, which workgroup 0 starts with",
        "cover",
        DYNAMIC,
        (("first=workgroups", "first=0"),),
    ),
    Fault(
        "tickets skip the first tile that no workgroup starts with",
        "cover",
        DYNAMIC,
        (("first=workgroups", "first=workgroups + 1"),),
    ),
    Fault(
        "every workgroup begins with tile 0", "cover", DYNAMIC, (("start=workgroup", "start=0"),)
    ),
    Fault(
        "the last tile computed by no workgroup",
        "cover",
        DYNAMIC,
        (("stop=tiles_m*tiles_n", "stop=tiles_m*tiles_n - 1"),),
    ),
    Fault(
        "tile counter reset one ticket too early",
        "cover",
        DYNAMIC,
        (("count=tiles_m*tiles_n", "count=tiles_m*tiles_n - 1"),),
    ),
)
FIX_UP = (
    Fault(
        "tile counter never reset",
        "fix-up",
        DYNAMIC,
        (("count=tiles_m*tiles_n", "count=tiles_m*tiles_n + workgroups"),),
    ),
)
ORDER: tuple[MemoryFault, ...] = (
    fault(
        "no barrier before a ticket is read",
        DYNAMIC,
        RACE,
        between("Barrier", "PassTicket"),
        lowering=None,
    ),
    fault(
        "a ticket fetched twice on sm_80",
        DYNAMIC,
        "given twice",
        (FETCH, 2 * FETCH),
        lowering=None,
    ),
    fault(
        "tile counter never reset", DYNAMIC, "next launch", (FETCH, FETCH.replace("\n", " + 1\n"))
    ),
    fault("no wait for a ticket", DYNAMIC, RACE, drop("WaitBarrier barrier=ticket.full")),
    fault(
        "no wait until a ticket's shared memory is free",
        DYNAMIC,
        "",
        drop("WaitBarrier barrier=ticket.empty"),
    ),
    fault(
        "mbarrier of a ticket expects one reading warp too few",
        DYNAMIC,
        "",
        ("barrier=ticket.empty arrivals=5", "barrier=ticket.empty arrivals=4"),
    ),
    fault(
        "no mbarrier arrival after a ticket is stored",
        DYNAMIC,
        DEADLOCK,
        drop("ArriveBarrier barrier=ticket.full"),
    ),
    fault(
        "tickets in a cluster released at CTA scope",
        DYNAMIC,
        "released",
        (
            "ArriveBarrier barrier=ticket.full rank=ticket.receiver publish=true",
            "ArriveBarrier barrier=ticket.full rank=ticket.receiver",
        ),
        lowering=CLUSTER,
    ),
)
