"""Kernels that add partial sums in a tree (in pairs, then pairs of pairs) are efficient.

These kernels spill no register, and need no division for a level of the tree.
"""

from __future__ import annotations

import re

import pytest

from passes import StreamK, TwoTileStreamK
from tests.codegen.nvptx.configurations import Configuration, boxed
from tests.codegen.nvptx.test_assembly import check
from tests.codegen.nvptx.test_ptx import accumulation_loops
from tests.support.sampling import chosen, quick_cases

FIRST, LAST = (StreamK(owner=owner, reduction="tree") for owner in ("first", "last"))
TWO_TILE = TwoTileStreamK(owner="last", reduction="tree")
KERNELS = (
    Configuration((128, 128, 32), (FIRST,), architecture="sm_80"),
    Configuration((128, 256, 64), (LAST,), architecture="sm_80"),
    boxed((128, 256, 64), schedule=FIRST),
    boxed((256, 256, 64), (2, 1, 1), "tn", LAST),
    boxed((16, 256, 64), layout="nn", schedule=TWO_TILE),
    boxed((64, 128, 128), (1, 1, 2), "nt", LAST),
)
every_kernel = pytest.mark.parametrize(
    "configuration", chosen((KERNELS[0], KERNELS[5]), KERNELS), ids=str
)


@quick_cases(1)
@pytest.mark.usefixtures("ptxas")
@every_kernel
def test_it_is_assembled(configuration: Configuration):
    check(configuration)


@every_kernel
def test_a_level_waits_once_and_divides_nothing(configuration: Configuration):
    """A kernel waits for flags only in the loop over tree levels.

    The loop over tree levels doubles its index and divides nothing.
    """
    wait = "ld.acquire.gpu.global"
    text = configuration.program.ptx
    assert text.count(wait) == 1
    (level,) = accumulation_loops(text.replace("mma.sync", "mma").replace(wait, "mma.sync"))
    assert level.count("mma.sync") == 1
    assert re.search(r"shl\.b32\s+(%r\d+), \1, 1;", level)
    # A division by a launch argument would be a 64-bit multiplication and a shift.
    assert not re.search(r"\b(?:div\.|rem\.|mul\.hi\.[us]64|mul\.lo\.s64|shr\.u64)", level)
