"""The grid: the number of workgroups of a kernel, and waves of tiles, one tile per workgroup."""

from __future__ import annotations

from sympy import Expr, Integer

from coordgraph.control.operations import Body, SetCoordinate
from coordgraph.coordinates.dimensions import ForLoop, Workgroup
from coordgraph.coordinates.edges import Deal, PassThrough, Tile
from coordgraph.kernel import KernelEditor
from coordgraph.parameters import Parameter

__all__ = ["MOST_WORKGROUPS", "add_waves", "given_workgroups", "renumbered", "workgroup_count"]

MOST_WORKGROUPS = 65535
"""Largest number of workgroups in a grid, and largest value of a schedule's option `workgroups`."""

LAUNCHED = "launched"
"""Id of the dimension that `renumbered` adds; it numbers workgroups in the order of launch."""


def workgroup_count(e: KernelEditor, workgroups: int | None) -> Expr:
    """Add the dimension `workgroup`, and return its size: the number of workgroups in the grid.

    Args:
        e: the editor of the graph.
        workgroups: the number of workgroups; None makes it the launch argument `workgroups`.
    """
    if workgroups is not None:
        count: Expr = Integer(workgroups)
    else:
        count = given_workgroups(e)
    e.coordinates.add(Workgroup("workgroup", count))
    return count


def given_workgroups(e: KernelEditor, note: str = "workgroups to launch") -> Expr:
    """Add the launch argument `workgroups`, with a note that says what it is, and return it."""
    given = Parameter("workgroups", 1, MOST_WORKGROUPS, note=note)
    e.parameters = e.parameters.give(given)
    return given.symbol


def add_waves(e: KernelEditor, part: str, above: str, waves: Expr, count: Expr) -> str:
    """Distribute the indices of a dimension among workgroups: each workgroup gets one per wave.

    Adds these edges, and returns the id of the loop over waves, `part.wave`::

        above --Tile--> part.wave, part.workgroup
        part.workgroup --PassThrough--> workgroup

    Args:
        e: the editor of a graph in which `workgroup_count` added the dimension `workgroup`.
        part: the prefix of the ids of the new dimensions.
        above: the id of the dimension to distribute: index i belongs to workgroup `i mod count`.
        waves: the number of waves, at least the size of `above` divided by `count`.
        count: the number of workgroups.
    """
    c, wave, workgroup = e.coordinates, f"{part}.wave", f"{part}.workgroup"
    c.add(ForLoop(wave, waves, name="Wave"))
    c.add(Workgroup(workgroup, count))
    c.connect(Tile(above, (wave, workgroup)))
    c.connect(PassThrough(workgroup, "workgroup"))
    return wave


def renumbered(e: KernelEditor, body: Body, count: Expr, pieces: Expr) -> tuple[Body, str]:
    """Launch workgroups in another order: first all with the first piece of a tile, and so on.

    Adds the edge `workgroup --Deal(pieces)--> launched`: workgroup `pieces · t + p` is launched as
    number `p · count / pieces + t`. Workgroups that are launched one after another then have the
    same piece of consecutive tiles.

    Args:
        e: the editor of the graph.
        body: the operations of a workgroup, which read its number from the dimension `workgroup`.
        count: the number of workgroups, a multiple of `pieces`.
        pieces: the number of workgroups of each output tile, which have consecutive numbers.

    Returns:
        The operations, and the id of the dimension that numbers workgroups as they are launched.
    """
    c = e.coordinates
    launched = c.add(Workgroup(LAUNCHED, count, note="workgroups as launched"))
    c.connect(Deal("workgroup", LAUNCHED, pieces))
    graph = e.snapshot()
    ranges = graph.ranges(e.parameters.ranges())
    (number,) = graph.reverse({LAUNCHED: launched.symbol}, ["workgroup"], ranges)
    return (SetCoordinate("workgroup", number, body),), LAUNCHED
