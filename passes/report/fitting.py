"""`check_fit` refuses a measured timeline that is not of the launch that the report is about."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from coordgraph.errors import VerifyError
from coordgraph.interpreter.lockstep import StepKind, Steps
from passes.simulation.events import Activity

__all__ = ["check_fit"]

OF_WORK = ("workgroup", "product", "m", "n")


def check_fit(events: Mapping[str, list[Any]], steps: Steps, *, complete: bool = True) -> None:
    """Raise an error if a timeline has other workgroups, output tiles or k tiles than a launch.

    Events without an output tile or a range of k tiles are not compared.

    Args:
        events: the events of a measured run as columns, by name, such as `workgroup`.
        steps: the steps of every workgroup of the launch, such as main loops.
        complete: False if records were dropped, so that events of the last tiles may be missing.

    Raises:
        VerifyError: the timeline is of another launch.
    """
    column = {name: np.asarray(events[name], np.int64) for name in (*OF_WORK, "first", "count")}
    multiply = np.asarray(events["activity"], np.int64) == Activity.MULTIPLY
    tiles = multiply & (column["m"] >= 0)
    ranges = multiply & (column["count"] >= 0)
    recorded = {
        "workgroups": _end(column["workgroup"]),
        "products": _end(column["product"][tiles]),
        "tiles along m": _end(column["m"][tiles]),
        "tiles along n": _end(column["n"][tiles]),
        "k tiles": _end((column["first"] + column["count"] - 1)[ranges]),
    }
    launched, least = _extents(steps, padding=True), _extents(steps, padding=False)
    launched["workgroups"] = steps.workgroups
    # Some targets record no events for workgroups without work and for tiles of padding, so the
    # numbers in the timeline may be smaller than those of the launch.
    other = [
        f"{count} {name}, the launch {launched[name]}"
        for name, count in recorded.items()
        if (count or name == "workgroups")
        and not (least[name] if complete else 0) <= count <= launched[name]
    ]
    if other:
        raise VerifyError(
            f"the measured timeline is not of this launch: it has {'; '.join(other)}; give the "
            "timeline of the same problem, schedule, tile and number of workgroups"
        )
    _check_work({name: column[name][tiles] for name in OF_WORK}, steps)


def _end(numbers: np.ndarray[Any, np.dtype[np.int64]]) -> int:
    """One more than the largest of `numbers`, which begin at 0; 0 if `numbers` is empty."""
    return int(numbers.max(initial=-1)) + 1


def _extents(steps: Steps, *, padding: bool) -> dict[str, int]:
    """Numbers of workgroups, products, and tiles along each axis of a launch, by name.

    Args:
        steps: the steps of every workgroup of the launch, such as main loops.
        padding: whether tiles that are entirely padding are counted.
    """
    kept = steps.kind == StepKind.MULTIPLY
    if not padding:
        kept = kept & (steps.padding == 0)
    return {
        "workgroups": _end(steps.workgroup[kept]),
        "products": _end(steps.product[kept]),
        "tiles along m": _end(steps.m[kept]),
        "tiles along n": _end(steps.n[kept]),
        "k tiles": _end((steps.first + steps.count - 1)[kept]),
    }


def _check_work(recorded: Mapping[str, np.ndarray[Any, Any]], steps: Steps) -> None:
    """Raise an error if a workgroup of the timeline multiplies a tile that it should not.

    Args:
        recorded: the workgroup and the output tile of each recorded main loop, as columns.
        steps: the steps of every workgroup of the launch, such as main loops.
    """
    kept = steps.kind == StepKind.MULTIPLY
    known = set(zip(*(getattr(steps, name)[kept].tolist() for name in OF_WORK), strict=True))
    for row in zip(*(recorded[name].tolist() for name in OF_WORK), strict=True):
        if row not in known:
            workgroup, _, m, n = row
            raise VerifyError(
                f"the measured timeline is not of this launch: in it, workgroup {workgroup} "
                f"multiplies the output tile ({m}, {n}), and in the launch it does not; give the "
                "timeline of the same schedule"
            )
