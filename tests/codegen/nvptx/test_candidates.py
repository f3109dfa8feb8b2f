"""Candidate plans for sm_90a, of every family of schedules, assemble with LLVM and ptxas; none
spills registers.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
from _pytest.mark import ParameterSet

import codegen
from codegen.toolchain import assemble
from coordgraph import Gemm
from passes.choosing import Plan, constants_of
from passes.choosing.candidates import candidates
from tests.support.ptxas import assert_clean
from tests.support.sampling import Slow, chosen, quick_cases

SIZES = (2048, 2304, 8192), (320, 1736, 6592)
LAYOUTS = {"nn": (False, False), "nt": (False, True)}
EVERY = 7
"""Slow tests assemble every seventh kernel, because there are thousands."""
LARGEST = (
    # For most schedules and their options, the candidate plans that need the most accumulator
    # registers: a plan whose tiles two warpgroups divide, a plan whose tiles one warpgroup
    # computes, or both.
    ("nt", "128x224x64 two-tile-stream-k{reduction=scatter}"),
    ("nn", "144x256x64 two-tile-stream-k{owner=last,least_segment=8}"),
    ("nt", "288x256x64@c2x1 hybrid-stream-k{owner=last}"),
    ("nn", "128x288x64 hybrid-stream-k{owner=last,reduction=turnstile}"),
    ("nt", "512x192x64@c2x1 rasterize,heterogeneous-tiles{small_m=256}"),
    ("nn", "128x112x64 hybrid-stream-k{reduction=scatter}"),
    ("nt", "176x256x64 heterogeneous-tiles{small_m=176}"),
    ("nn", "128x256x64@c1x2@pingpong heterogeneous-tiles"),
    ("nt", "288x256x64@c2x1 stream-k{k_order=interleaved}"),
    ("nt", "128x176x64 split-k{splits=none,reduction=scatter,adjacent=tiles}"),
    ("nt", "128x320x64@c1x2 split-k{splits=none,reduction=scatter}"),
    ("nn", "320x128x64@c4x1 split-k{splits=none,reduction=peers}"),
    ("nn", "144x256x64 stream-k{reduction=scatter,k_order=interleaved}"),
    # Data-parallel plans with tiles that one warpgroup computes alone.
    ("nt", "128x176x64 data-parallel{persistent=true}"),
    ("nn", "176x128x64 data-parallel{persistent=true}"),
    ("nn", "80x256x64 data-parallel{persistent=true}"),
)


def problem(layout: str, size: tuple[int, int, int]) -> Gemm:
    m, n, k = size
    return Gemm("bf16", None, m, n, k, *LAYOUTS[layout])


@cache
def kernels(layout: str) -> tuple[Plan, ...]:
    """One plan for each distinct kernel among the candidate plans for a layout of A and B.

    Plans that differ only in the width of the bands in which tiles are visited have one kernel.
    """
    found: dict[str, Plan] = {}
    for size in SIZES:
        table = candidates(problem(layout, size), constants_of(), all_kinds=True)
        table = table.where(table.width == 1)
        for plan in (table.plan(i) for i in range(len(table))):
            found.setdefault(plan.kernel, plan)
    return tuple(found.values())


def check(layout: str, plan: Plan) -> None:
    gemm = replace(problem(layout, SIZES[0]), m=None, n=None, k=None)
    kernel = codegen.compile(plan.graph(gemm), "sm_90a", lowering=plan.lowering)
    assert_clean(assemble(kernel.ptx, "sm_90a"))


def test_what_is_assembled_are_candidates():
    plans = [Plan.parse(text) for _, text in LARGEST]
    every = [plan for layout in LAYOUTS for plan in kernels(layout)]
    assert {plan.family for plan in every} - {plan.family for plan in plans} == {
        # LARGEST has no plan of these schedules: their kernels were run on a GPU with every tile.
        *("stream-k", "stream-k scatter", "two-tile-stream-k"),
        # LARGEST has no plan of these schedules, but hybrid Stream-K plans that reduce like them.
        # The kernels of these plans contain the main loop of these schedules and a second one.
        *("stream-k tree", "stream-k turnstile", "stream-k without slivers"),
        # LARGEST has no plan of these schedules, but a hybrid Stream-K plan with the same fix-up.
        *("hybrid-stream-k tree", "hybrid-stream-k without slivers"),
    }
    assert {(p.tile, p.cluster) for p in plans} <= {(p.tile, p.cluster) for p in every}


@quick_cases(4)
@pytest.mark.usefixtures("ptxas")
@pytest.mark.parametrize(("layout", "text"), LARGEST)
def test_the_largest_of_a_family_are_assembled(layout: str, text: str):
    check(layout, Plan.parse(text))


def parts(layout: str) -> list[ParameterSet]:
    """Test parameters (layout, plan) for every seventh (`EVERY`) kernel of a layout.

    The list is empty in runs without slow tests, because listing the kernels takes seconds.
    """
    return chosen(
        (), [(layout, plan) for plan in kernels(layout)[::EVERY]] if Slow.collected else ()
    )


@pytest.mark.slow
@pytest.mark.usefixtures("ptxas")
@pytest.mark.parametrize(("layout", "plan"), [*parts("nn"), *parts("nt")], ids=str)
def test_a_part_of_all_candidates_is_assembled(layout: str, plan: Plan):
    check(layout, plan)
