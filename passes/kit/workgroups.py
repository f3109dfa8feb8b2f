"""The grid: how many workgroups run a kernel, and waves of tiles with one tile for each of them."""

from __future__ import annotations

from sympy import Expr, Integer

from coordgraph.coordinates.dimensions import ForLoop, Workgroup
from coordgraph.coordinates.edges import PassThrough, Tile
from coordgraph.kernel import KernelEditor
from coordgraph.parameters import Parameter

__all__ = ["MOST_WORKGROUPS", "add_waves", "workgroup_count"]

MOST_WORKGROUPS = 65535
"""Largest number of workgroups in a grid; the schedules' option `workgroups` is checked by it."""


def workgroup_count(e: KernelEditor, workgroups: int | None) -> Expr:
    """Add the dimension `workgroup`, and return its size, the grid.

    Args:
        e: the editor of the graph.
        workgroups: the number of workgroups; None makes it the launch argument `workgroups`.
    """
    if workgroups is not None:
        count: Expr = Integer(workgroups)
    else:
        given = Parameter("workgroups", 1, MOST_WORKGROUPS, note="workgroups to launch")
        e.parameters = e.parameters.give(given)
        count = given.symbol
    e.coordinates.add(Workgroup("workgroup", count))
    return count


def add_waves(e: KernelEditor, part: str, above: str, waves: Expr, count: Expr) -> str:
    """Deal the indices of a dimension to workgroups in waves: in a wave each workgroup gets one.

    Adds these edges, and returns the name of the loop over waves, `part.wave`::

        above --Tile--> part.wave, part.workgroup
        part.workgroup --PassThrough--> workgroup

    Args:
        e: the editor of a graph in which `workgroup_count` added the dimension `workgroup`.
        part: the prefix of the names of the new dimensions.
        above: the dimension whose indices are dealt: index i goes to workgroup `i mod count`.
        waves: the number of waves, at least as many as `above` needs.
        count: the number of workgroups.
    """
    c, wave, workgroup = e.coordinates, f"{part}.wave", f"{part}.workgroup"
    c.add(ForLoop(wave, waves, name="Wave"))
    c.add(Workgroup(workgroup, count))
    c.connect(Tile(above, (wave, workgroup)))
    c.connect(PassThrough(workgroup, "workgroup"))
    return wave
