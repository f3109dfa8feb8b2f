"""Shared memory: each element is written once, and no access has a bank conflict.

A warp's 16-byte accesses are served eight lanes at a time. The 32 banks of 4 bytes hold eight
16-byte chunks, so eight lanes have no conflict if their chunks differ modulo 8.
"""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from tests.codegen.nvptx.lowering import Lowered, lowered
from tests.support.sampling import quick_cases

LAYOUTS = ("nn", "tn", "nt", "tt")
TILES = (
    (128, 128, 32),
    (128, 256, 64),
    (64, 64, 64),
    (64, 128, 32),
    (16, 16, 16),
    (32, 48, 80),
    (32, 96, 48),
    (112, 16, 96),
)
CHUNK, GROUPS = 8, 8
every_layout = pytest.mark.parametrize("layout", LAYOUTS)
every_tile = pytest.mark.parametrize("tile", TILES, ids=str)
both_tensors = pytest.mark.parametrize("tensor", ["A", "B"])


def writes(this: Lowered, tensor: str, ahead: int) -> dict[tuple[int, int], int]:
    """The address, in elements, that a thread's copy writes first, by (number of the copy, thread).

    `ahead` is the number of the copied k tile. Threads whose guard is false have no entry.
    """
    node = this.copy(tensor)
    names = ("workitem", f"{tensor}.copy.pass", "ahead")
    found = node.scope.reverse(f"{tensor}.shared")
    place = this.function(node, found.values[0], names=names)
    exists = this.function(node, found.guard, names=names)
    return {
        (step, workitem): place(workitem, step, ahead)[0]
        for step, workitem in this.each(f"{tensor}.copy.pass", "workitem")
        if exists(workitem, step, ahead)[0]
    }


def conflicts(first_elements: Iterable[int]) -> int:
    """The number of lanes that wait because another lane uses their bank."""
    groups = [first // CHUNK % GROUPS for first in first_elements]
    return len(groups) - len(set(groups))


@quick_cases(9)
@both_tensors
@every_layout
@every_tile
@pytest.mark.parametrize("vector", [8, 2])
def test_the_copies_of_a_step_write_every_element_of_its_stage_once(
    tile: tuple[int, int, int], layout: str, tensor: str, vector: int
):
    this = lowered(tile, layout, vector)
    height, width = this.extents(tensor)
    for ahead in (0, this.stages + 1):
        written = sorted(
            first + element
            for first in writes(this, tensor, ahead).values()
            for element in range(vector)
        )
        start = ahead % this.stages * height * width
        assert written == list(range(start, start + height * width))


@quick_cases(14)
@both_tensors
@every_layout
@every_tile
def test_copies_meet_no_bank_conflict(tile: tuple[int, int, int], layout: str, tensor: str):
    this = lowered(tile, layout)
    made = writes(this, tensor, 1)
    for step, workitem in this.each(f"{tensor}.copy.pass", "workitem"):
        if workitem % GROUPS == 0:
            lanes = [made.get((step, workitem + i)) for i in range(GROUPS)]
            assert not conflicts(x for x in lanes if x is not None), (step, workitem)


@quick_cases(32)
@both_tensors
@every_layout
@every_tile
def test_ldmatrix_meets_no_bank_conflict(tile: tuple[int, int, int], layout: str, tensor: str):
    this = lowered(tile, layout)
    fragment = {"A": "fragment.m", "B": "fragment.n"}[tensor]
    names = ("workitem", "k_tile", "fragment.k", fragment)
    address = this.function(this.load(tensor), f"{tensor}.shared", names=names)
    for k, part, workitem in this.each("fragment.k", fragment, "workitem"):
        if workitem % GROUPS == 0:
            lanes = [address(workitem + i, 1, k, part)[0] for i in range(GROUPS)]
            assert not conflicts(lanes), (k, part, workitem)


def test_the_oracle_sees_a_conflict():
    assert conflicts(range(0, 64, 8)) == 0
    assert conflicts(64 * i for i in range(8)) == 7
    assert conflicts([0, 8, 16, 24, 32, 40, 48, 64]) == 1
