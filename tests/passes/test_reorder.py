"""`Reorder` visits tiles in column-major order or with a stride: no division finds a tile."""

from __future__ import annotations

import re

import pytest

import codegen
from coordgraph import Gemm
from passes import DataParallel, Pass, Pipeline, Reorder, SplitK, StreamK, TwoTileStreamK
from tests.support.sampling import quick_cases

FOUND = (
    (Reorder(swap=True, group=3), TwoTileStreamK(owner="last")),
    (Reorder(swap=True, group=3), DataParallel()),
    (Reorder(group=2), TwoTileStreamK(workgroups=132, owner="last")),
    (Reorder(group=7), SplitK(splits=4)),
    (Reorder(swap=True, group=1000), StreamK()),
    (Reorder(swap=True, group=7), StreamK(workgroups=132, owner="last")),
    (Reorder(group=3), TwoTileStreamK(first="dp")),
)


@quick_cases(2)
@pytest.mark.parametrize("steps", FOUND, ids=lambda steps: ",".join(map(str, steps)))
def test_tiles_are_found_without_a_division(steps: tuple[Pass, ...]):
    """The tile's number in row-major order is proved to fit 32 bits.

    It is the sum of a quotient and of a multiple of a remainder. Since it fits, kernels multiply by
    magic numbers to divide it by a row's length; a division of 64 bits would be a subroutine.
    """
    graph = Pipeline(steps)(Gemm().graph((16, 16, 16)))
    kernel = codegen.compile(graph, "sm_80")
    assert re.findall(r"\b(?:div|rem)\.\w+", kernel.ptx) == []
