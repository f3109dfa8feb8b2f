"""`decode`: converts the timeline records that a launch has written to a `Timeline`.

A record gives the beginning of an activity; the activity ends at the next record of the same
threads. On a GPU, records hold the clock of their SM, in cycles. The first and the last record of
each role also hold the global timer, in nanoseconds, which is the same on all SMs but has a coarser
resolution (32 ns or 1 µs). For each SM, a linear function converts the clock to seconds. All SMs
share one slope, which is fitted to the (clock, global timer) pairs of all SMs. The offset of an SM
is fitted to the pairs of that SM alone.
"""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from codegen.timeline.timeline import Timeline
from coordgraph.control.timeline import ACTIVITIES, END, FORMS, RECORD_WORDS
from passes.simulation.events import Activity

__all__ = ["decode"]

Words = NDArray[np.int64]
CLOCK, CODE, STALLED, NUMBERS = 0, 2, 3, 4
"""Indices of the words of a timeline record: low word of the clock, code of the activity, clock
cycles spent so far in waits for pipeline stages, and first of four words whose meaning depends on
the code (see `coordgraph.control.timeline`)."""
HIGH = 32
NANOSECOND = 1e-9
TILE, RANGE = FORMS.index("tile"), FORMS.index("range")
OF_NO_TILE = (Activity.START, Activity.DRAIN, Activity.LOAD)
"""Activities whose records never get the output tile of a later record. A record of any other
activity that names no tile gets the tile of the next record that names one. (`_join_loads` gives
tiles to LOAD.)"""


def decode(records: NDArray[np.int32], *, target: str, name: str) -> Timeline:
    """Convert the timeline records of a launch to events.

    Args:
        records: the words that the launch has written. The axes are workgroup, then (on Hopper) CTA
            of the cluster and warpgroup, then record and word. Record 0 is the record END, which
            was written last.
        target: the target of the kernel, such as `sm_90a` or `cpu`.
        name: the name of the kernel, such as its schedule.
    """
    shape = records.shape
    workgroups, capacity = shape[0], shape[-2]
    beside = prod(shape[1:-2])
    words = records.reshape(workgroups, beside, capacity, RECORD_WORDS)
    tracks = words.reshape(-1, capacity, RECORD_WORDS)
    written = tracks[:, 0, NUMBERS + 3].astype(np.int64)
    kept = np.minimum(written, capacity - 1)
    # One row for each record but END, sorted by track, then by time. A track has the records of one
    # warpgroup of a CTA, or of one workgroup on targets without warpgroup roles.
    number = np.arange(1, capacity)
    there = number[None, :] <= kept[:, None]
    track, place = np.nonzero(there)
    rows = tracks[track, place + 1].astype(np.int64)
    ends = tracks[:, 0].astype(np.int64)
    processor, clock_of = _processors(tracks), _clock(rows)
    seconds = _Lines(rows, ends, track, processor)
    begin = seconds(clock_of, processor[track])
    last = np.r_[track[1:] != track[:-1], True] if len(track) else np.zeros(0, bool)
    end_of_track = seconds(_clock(ends), processor)
    end = np.where(last, end_of_track[track], np.r_[begin[1:], 0.0][: len(begin)])
    stalled_end = np.where(last, ends[track, STALLED], np.r_[rows[1:, STALLED], 0][: len(rows)])
    stalled = (stalled_end - rows[:, STALLED]) % (1 << HIGH)
    code = rows[:, CODE]
    role = code >> 8 & 255
    has_role = np.zeros(len(tracks), bool)
    has_role[track[role > 0]] = True
    used = has_role if has_role.any() else np.ones(len(tracks), bool)
    dropped = int((written - kept)[used].sum())
    role_of = np.zeros(len(tracks), np.int64)
    role_of[track[role > 0]] = role[role > 0]
    activity = np.array([_activity(a) for a in ACTIVITIES], np.int64)[code & 255]
    first, count = _ranges(rows, code)
    product, m, n = _tiles(rows, code, track, activity)
    workgroup, of_workgroup = track // beside, track % beside
    warpgroups = shape[-3] if len(shape) > 3 else 1
    keep = used[track]
    cta = track // warpgroups
    _join_loads(activity, cta, begin, (product, m, n))
    order = np.lexsort((begin, track))
    order = order[keep[order]]
    columns: dict[str, NDArray[Any]] = {
        "begin": begin,
        "end": end,
        "workgroup": workgroup,
        "slot": processor[track],
        "activity": activity,
        "role": role_of[track],
        "rank": of_workgroup // warpgroups,
        "warpgroup": of_workgroup % warpgroups,
        "stalled": stalled * seconds.slope * NANOSECOND,
        "product": product,
        "m": m,
        "n": n,
        "first": first,
        "count": count,
    }
    return Timeline.of(
        {key: value[order] for key, value in columns.items()},
        target=target,
        name=name,
        dropped=dropped,
        workgroups=workgroups,
    )


def _activity(name: str) -> int:
    """The number of the `Activity` called `name`; -1 for the record END, which is no activity."""
    return -1 if name == END else int(Activity[name.upper()])


def _wide(low: Words, high: Words) -> NDArray[np.uint64]:
    """64-bit numbers from their low and high 32-bit words."""
    mask = (1 << HIGH) - 1
    return (high & mask).astype(np.uint64) << np.uint64(HIGH) | (low & mask).astype(np.uint64)


def _clock(rows: Words) -> NDArray[np.uint64]:
    return _wide(rows[:, CLOCK], rows[:, CLOCK + 1])


def _processors(tracks: NDArray[np.int32]) -> Words:
    """For each track (a warpgroup or workgroup), the number of the SM or CPU thread that ran it."""
    return tracks[:, 0, NUMBERS + 2].astype(np.int64)


class _Lines:
    """Converts clocks of SMs (or CPU threads) to seconds, by a linear function for each SM.

    A track has the records of one warpgroup of a CTA, or of one workgroup.

    Args:
        rows: all records except the last one of each track.
        ends: the last record of each track.
        track: the number of the track of each row.
        processor: the number of the SM (or CPU thread) that ran each track.
    """

    def __init__(self, rows: Words, ends: Words, track: Words, processor: Words) -> None:
        starts = np.flatnonzero(np.r_[True, track[1:] != track[:-1]]) if len(track) else track
        pairs = np.concatenate([rows[starts], ends])
        of = np.concatenate([processor[track[starts]], processor])
        clocks = _clock(pairs)
        times = _wide(pairs[:, NUMBERS], pairs[:, NUMBERS + 1])
        size = int(of.max(initial=0)) + 1
        self.origin = np.zeros(size, np.uint64)
        self.offset = np.zeros(size)
        zero = times.min() if len(times) else np.uint64(0)
        # All SMs have the same clock rate, so the slope is fitted by least squares to the (clock,
        # global timer) pairs of all SMs.
        fits: list[tuple[int, float, float]] = []
        products = squares = 0.0
        for each in map(int, np.unique(of)):
            own = of == each
            self.origin[each] = clocks[own].min()
            x = (clocks[own] - self.origin[each]).astype(np.float64)
            y = (times[own] - zero).astype(np.float64)
            products += float(((x - x.mean()) * (y - y.mean())).sum())
            squares += float(((x - x.mean()) ** 2).sum())
            fits.append((each, float(x.mean()), float(y.mean())))
        self.slope = products / squares if products > 0 else 1.0
        for each, x_mean, y_mean in fits:
            self.offset[each] = y_mean - self.slope * x_mean
        self.offset -= min((float(self.offset[each]) for each, *_ in fits), default=0.0)

    def __call__(self, clocks: NDArray[np.uint64], processor: Words) -> NDArray[np.float64]:
        """Convert clock values of SMs (CPU threads) to seconds since the first workgroup began."""
        cycles = (clocks - self.origin[processor]).astype(np.int64).astype(np.float64)
        return (self.offset[processor] + self.slope * cycles) * NANOSECOND


def _ranges(rows: Words, code: Words) -> tuple[Words, Words]:
    """The first k tile and the number of k tiles that each record names; -1 if it names none."""
    has = code >> 16 & 255 == RANGE
    return np.where(has, rows[:, NUMBERS], -1), np.where(has, rows[:, NUMBERS + 1], -1)


def _tiles(rows: Words, code: Words, track: Words, activity: Words) -> tuple[Words, Words, Words]:
    """The output tile of each record; -1 if there is none.

    The arrays are the number of the matrix product, and the tile's position along m and along n,
    counted in unit tiles (see `coordgraph.control.timeline`).

    A record that names no tile gets the tile of a later record: the next one of the same threads
    that names a tile. A record without a later tile gets -1, and so does a record whose activity
    is one of `OF_NO_TILE`.
    """
    has = code >> 16 & 255 == TILE
    source = np.where(has, np.arange(len(rows)), len(rows))
    following = np.minimum.accumulate(source[::-1])[::-1] if len(rows) else source
    inside = following < len(rows)
    inside[inside] = track[following[inside]] == track[inside]
    inside &= ~np.isin(activity, [int(a) for a in OF_NO_TILE])
    at = np.where(inside, following, 0)
    found = [np.where(inside, rows[at, NUMBERS + i], -1) for i in range(3)]
    return found[0], found[1], found[2]


def _join_loads(
    activity: Words, cta: Words, begin: NDArray[np.float64], tiles: tuple[Words, ...]
) -> None:
    """Give the i-th LOAD event of each CTA the tile of the CTA's i-th MULTIPLY event.

    Nothing changes if a CTA has different numbers of LOAD and MULTIPLY events.
    """
    order = np.lexsort((begin, cta))
    loads = order[activity[order] == Activity.LOAD]
    multiplies = order[activity[order] == Activity.MULTIPLY]
    if np.array_equal(cta[loads], cta[multiplies]):
        for column in tiles:
            column[loads] = column[multiplies]
