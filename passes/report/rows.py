"""Rows of a measured timeline, one for each SM, numbered like rows of a simulated timeline.

In the simulation, row i runs workgroup i first; a GPU assigns workgroups to SMs in another order.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

__all__ = ["numbered_like_slots"]

Columns = Mapping[str, Any]


def numbered_like_slots(columns: Columns) -> tuple[dict[str, Any], list[list[int]]]:
    """Number the slots of measured events as in a simulation.

    A simulated slot runs one workgroup at a time: it is an SM, or the SMs of a cluster, and slot i
    runs workgroup i first. A measured event names the SM of one CTA, and hardware assigns
    workgroups to SMs in another order. Here a slot is the set of SMs that run the CTAs of one
    workgroup, and slots are numbered in the order of the workgroups that they run first. Of the
    CTAs of a cluster, only the events of the CTA with rank 0 are kept, since all of them compute
    the cluster's tile.

    Args:
        columns: measured events; without a column `rank`, each workgroup is one CTA.

    Returns:
        The events with the new numbers in `slot`, and for each slot the numbers of its SMs.
    """
    workgroup, processor, begin = (np.asarray(columns[n]) for n in ("workgroup", "slot", "begin"))
    rank = np.asarray(columns.get("rank", np.zeros(len(begin), np.int64)))
    of_workgroup: dict[int, set[int]] = {}
    for number, where in zip(workgroup.tolist(), processor.tolist(), strict=True):
        of_workgroup.setdefault(int(number), set()).add(int(where))
    places = {number: tuple(sorted(found)) for number, found in of_workgroup.items()}
    first: dict[tuple[int, ...], int] = {}
    for event in np.argsort(begin, kind="stable"):
        number = int(workgroup[event])
        first.setdefault(places[number], number)
    slots = {place: slot for slot, place in enumerate(sorted(first, key=first.__getitem__))}
    kept = np.flatnonzero(rank == 0).tolist()
    found = {name: [column[i] for i in kept] for name, column in columns.items()}
    found["slot"] = [slots[places[int(number)]] for number in found["workgroup"]]
    return found, [list(place) for place in slots]
