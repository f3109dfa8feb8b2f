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
    Fault("a ticket taken twice for a tile", "well-formed", DYNAMIC, ((TAKE, 2 * TAKE),)),
    Fault("no ticket taken", "well-formed", DYNAMIC, ((TAKE, ""),)),
    Fault(
        "a ticket taken in every second iteration",
        "well-formed",
        DYNAMIC,
        ((TAKE, f"        If condition=tile % 2 == 0 {{\n{TAKE}        }}\n"),),
    ),
)
COVER = (
    Fault("tickets from tile 0 on", "cover", DYNAMIC, (("first=workgroups", "first=0"),)),
    Fault(
        "tickets from the second tile after the first ones on",
        "cover",
        DYNAMIC,
        (("first=workgroups", "first=workgroups + 1"),),
    ),
    Fault(
        "every workgroup begins with tile 0", "cover", DYNAMIC, (("start=workgroup", "start=0"),)
    ),
    Fault(
        "the last tile left to no workgroup",
        "cover",
        DYNAMIC,
        (("stop=tiles_m*tiles_n", "stop=tiles_m*tiles_n - 1"),),
    ),
    Fault(
        "counter reset one ticket too early",
        "cover",
        DYNAMIC,
        (("count=tiles_m*tiles_n", "count=tiles_m*tiles_n - 1"),),
    ),
)
FIX_UP = (
    Fault(
        "counter never reset",
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
    fault("a counter never reset", DYNAMIC, "next launch", (FETCH, FETCH.replace("\n", " + 1\n"))),
    fault("no wait for a ticket", DYNAMIC, RACE, drop("WaitBarrier barrier=ticket.full")),
    fault(
        "no wait for the word of a ticket", DYNAMIC, "", drop("WaitBarrier barrier=ticket.empty")
    ),
    fault(
        "a warp too few counted that reads a ticket",
        DYNAMIC,
        "",
        ("barrier=ticket.empty arrivals=5", "barrier=ticket.empty arrivals=4"),
    ),
    fault("no arrival for a ticket", DYNAMIC, DEADLOCK, drop("ArriveBarrier barrier=ticket.full")),
    fault(
        "tickets of a cluster not released",
        DYNAMIC,
        "released",
        (
            "ArriveBarrier barrier=ticket.full rank=ticket.receiver publish=true",
            "ArriveBarrier barrier=ticket.full rank=ticket.receiver",
        ),
        lowering=CLUSTER,
    ),
)
