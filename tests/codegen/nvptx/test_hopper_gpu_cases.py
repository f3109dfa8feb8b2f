"""Tests, without a GPU, of the kernels that tests/gpu launches on Hopper.

All these kernels can be lowered and assembled, and together they cover the options of kernels.
"""

from __future__ import annotations

from collections import Counter
from functools import cache

import pytest

from codegen.architectures import Variant
from codegen.targets.nvptx.building import Builder
from tests.gpu.hopper import (
    PROBLEMS,
    Code,
    boxes,
    chunk_of_d,
    code_of,
    code_of_d,
    program,
    random_cases,
    sweep_cases,
    two_shape_cases,
)
from tests.gpu.hopper_kernels import (
    DIFFERENT_D,
    LAYOUTS,
    RANDOM,
    SCATTER,
    SCHEDULES,
    SHAPES,
    SWEEP,
    TURN_SHAPES,
    TURNS,
    TWO_SHAPES,
)
from tests.gpu.kernels import Spec
from tests.support.sampling import chosen, cover, kinds, quick_cases

SWEPT = (*SWEEP, *TURNS, *SCATTER)
EVERY = (*RANDOM, *DIFFERENT_D, *SWEPT, *TWO_SHAPES)


def traits(spec: Spec) -> tuple[object, ...]:
    """The values that quick tests cover: each value occurs in a kernel of some quick test.

    The values are all options of a kernel except its tile. The types of A and D form one value, and
    so do the kind of consumers and the axes along which clusters extend.
    """
    cluster = tuple(extent > 1 for extent in spec.cluster or ())
    types = (spec.dtype, spec.out_dtype)
    return (*kinds(spec.schedule), spec.layout, types, (spec.consumers, cluster))


@cache
def needed(spec: Spec) -> tuple[Variant, ...]:
    """The variants of a kernel that its launches in tests/gpu need."""
    codes: tuple[Code, ...] = code_of_d() if spec in DIFFERENT_D else ()
    for specs, cases in (
        (RANDOM, random_cases),
        (SWEPT, sweep_cases),
        (TWO_SHAPES, two_shape_cases),
    ):
        codes += code_of([spec], cases) if spec in specs else ()
    return tuple(dict.fromkeys(variant for other, variant in codes if other == spec))


def for_boxes(spec: Spec) -> tuple[Variant, Variant]:
    """The variants of a kernel's machine code for aligned tensors: without C, and with C."""
    return boxes(chunk_of_d(spec), reads_c=False), boxes(chunk_of_d(spec), reads_c=True)


@quick_cases(2)
@pytest.mark.parametrize("spec", cover(0, EVERY, traits), ids=str)
def test_no_kernel_is_refused(spec: Spec):
    assert spec.lowering is not None
    assert spec.lowering.why_not(spec.graph) is None
    variants = needed(spec)
    assert {*for_boxes(spec)} & {*variants}
    assert [program((spec, variant)).why_not() for variant in variants] == [None] * len(variants)


def assembles(code: Code) -> None:
    made, report = program(code).assembled()
    assert report.spill_stores == 0, f"{made.bytes_in_flight} bytes in flight are too many"


@pytest.mark.slow
@pytest.mark.usefixtures("ptxas")
@pytest.mark.parametrize("spec", chosen(RANDOM[:1], (*RANDOM, *DIFFERENT_D)), ids=str)
def test_code_for_aligned_tensors_assembles(spec: Spec):
    """A kernel's PTX for aligned tensors, with C or without, assembles without register spills.

    A slow test assembles the kernel's other variants too.
    """
    assembles((spec, for_boxes(spec)[len(str(spec)) % 2]))


@pytest.mark.slow
@pytest.mark.usefixtures("ptxas")
@pytest.mark.parametrize("spec", EVERY, ids=str)
def test_all_code_of_a_kernel_assembles(spec: Spec):
    for variant in dict.fromkeys((*needed(spec), *for_boxes(spec))):
        assembles((spec, variant))


@pytest.mark.parametrize("spec", [RANDOM[0], RANDOM[1]], ids=str)
def test_programs_are_those_of_the_kernel(spec: Spec):
    builder = Builder(spec.graph, spec.target, debug=spec.watchdog, lowering=spec.lowering)
    for variant in (boxes(8, reads_c=True), boxes(2, reads_c=False)):
        assert program((spec, variant)) == builder.program(variant)


@pytest.mark.slow  # the test is slow because it builds the graphs of all cases
def test_thousands_of_problems_are_varied():
    cases = [case for spec in RANDOM for case in random_cases(spec)]
    assert len(set(cases)) == PROBLEMS * len(RANDOM)
    schedules = Counter(case.spec.schedule[-1].name for case in cases)
    assert schedules.keys() == {
        "data-parallel",
        "heterogeneous-tiles",
        "hybrid-stream-k",
        "split-k",
        "stream-k",
        "two-tile-stream-k",
    }
    assert min(schedules.values()) >= 100
    assert all(1 <= extent <= 3000 for case in cases for extent in case.shape)
    for axis in range(3):
        extents = [case.shape[axis] for case in cases]
        assert min(extents) <= 8
        assert max(extents) > 2500
        assert sum(extent < 64 for extent in extents) > 200
    served = Counter(case.variant.instructions for case in cases)
    assert served["wgmma"] > 900
    assert served["mma.sync"] >= 25
    variants = [case.variant for case in cases]
    assert {v.vectors.d for v in variants if v.instructions == "wgmma"} == {1, 2, 8}
    assert sum(case.workgroups is not None for case in cases) > 100
    assert sum(case.beta != 0 for case in cases) > 500


def test_the_sweep_is_a_latin_square():
    made = {(spec.layout, ",".join(map(str, spec.schedule))) for spec in SWEEP}
    tiles = {(spec.layout, spec.tile, spec.cluster) for spec in SWEEP}
    assert len(made) == len(SCHEDULES) * len(LAYOUTS) == len(SWEEP)
    assert tiles == {(layout, *shape) for layout in LAYOUTS for shape in SHAPES}
    assert len({(spec.schedule, spec.tile, spec.cluster) for spec in SWEEP}) == len(SWEEP)


@pytest.mark.slow
def test_tiles_of_both_shapes_are_launched():
    """Kernels with two tile shapes are launched on grids of three kinds.

    A grid has full waves and a partly filled last wave, or full waves only, or one partly filled
    wave.
    """
    for spec in TWO_SHAPES:
        found: set[tuple[bool, bool]] = set()
        for case in two_shape_cases(spec):
            m, n, _ = case.shape
            tiles = -(-m // spec.tile[0]) * -(-n // spec.tile[1])
            waves, rest = divmod(tiles, case.workgroups or 132)
            found.add((waves > 0, rest > 0))
        assert found >= {(True, True), (False, True), (True, False)}
    assert {spec.layout for spec in TWO_SHAPES} == {*LAYOUTS}
    assert {spec.consumers for spec in TWO_SHAPES} == {"cooperative", "pingpong"}


def test_turns_are_taken_under_every_schedule_and_in_every_layout():
    assert all(spec.consumers == "pingpong" for spec in TURNS)
    schedules = [",".join(map(str, spec.schedule)) for spec in TURNS]
    assert {*schedules} == {*SCHEDULES}
    assert {(spec.tile, spec.cluster) for spec in TURNS} > {*TURN_SHAPES}
    assert {spec.layout for spec in TURNS} == {*LAYOUTS}
    assert len(set(TURNS)) == len(TURNS)
