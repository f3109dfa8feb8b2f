"""Indices are proved to be inside tensors and to fit 32 or 64 bits; nothing false is proved."""

from __future__ import annotations

from itertools import product

import pytest
from sympy import Integer

from coordgraph import Gemm, parse
from coordgraph.integers import Ranges, floor_div, index_symbol, maximum, minimum, size_symbol
from coordgraph.interpreter.program import program
from coordgraph.kernel import KernelGraph
from coordgraph.verification import Outcome
from coordgraph.verification.index_proofs import IndexProofs
from coordgraph.verification.index_widths import too_wide, widths
from coordgraph.verification.symbolic_bounds import Effort, SymbolicBounds
from passes import Pipeline
from tests.faults.catalogue import FAULTS
from tests.faults.fault import Fault
from tests.passes.schedules import SCHEDULES, symbolic
from tests.support.sampling import chosen, quick_cases

OUTSIDE = [fault for fault in FAULTS if fault.check == "bounds" and "bits" not in fault.name]


def proofs_of(graph: KernelGraph, questions: int = 2000) -> IndexProofs:
    return IndexProofs(graph, program(graph), questions)


@pytest.mark.parametrize(
    "name", chosen(("data-parallel", "stream-k{owner=first}", "split-k{splits=3}"), SCHEDULES)
)
def test_tensors_are_accessed_inside_for_all_sizes(name: str):
    """Accesses to A, B, C and D are proved to be in bounds for all sizes.

    Accesses to workspace slots and flags may be left unproved.
    """
    found = [*proofs_of(symbolic(name if name in SCHEDULES else "stream-k")).accesses()]
    assert found
    slots = ("partials", "flags")
    assert all(proved for what, proved in found if not what.endswith(slots)), found


def test_slots_of_stream_k_are_proved():
    verdict = symbolic("stream-k").check()["bounds"]
    assert verdict.outcome is Outcome.PROVED
    assert verdict.method == "interval proof"
    assert verdict.detail.startswith("8 accesses")


def test_tables_of_groups_are_read_inside():
    graph = Pipeline.parse("stream-k")(Gemm("f32", grouped=True).graph((4, 4, 4)))
    proofs = proofs_of(graph)
    reads = [*proofs.reads()]
    assert reads
    assert all(proved for _, proved in reads), reads
    assert all(proved for _, proved in proofs.accesses())


@quick_cases(2)
@pytest.mark.parametrize("fault", OUTSIDE, ids=lambda fault: fault.name)
def test_indices_outside_are_never_proved_inside(fault: Fault):
    proofs = proofs_of(fault.graph())
    assert not all(proved for _, proved in (*proofs.accesses(), *proofs.reads()))


def test_few_questions_prove_less_and_nothing_false():
    graph = symbolic("stream-k")
    counts = [sum(ok for _, ok in proofs_of(graph, n).accesses()) for n in (0, 20, 2000)]
    assert counts[0] < counts[1] < counts[2] == 8


def test_a_number_of_workgroups_past_32_bits_is_refuted_with_sizes():
    lines = symbolic("data-parallel").text().split("\n")
    graph = parse("\n".join(line for line in lines if not line.startswith("assume ")))
    (wide,) = (w for w in widths(graph, program(graph), proofs_of(graph)) if not w.proved)
    assert (wide.what, wide.bits) == ("the number of workgroups", 32)
    example = too_wide(graph, wide)
    assert example is not None
    assert example.launch is not None
    m, n = (-(-example.launch.values[axis] // 4) for axis in "mn")
    assert f"is {m * n}, which needs more than 32 bits" in example.problem
    assert m * n > 2**31 - 1


@pytest.mark.parametrize("slack", [0, 1])
def test_bounds_pass_through_divisions(slack: int):
    """`w // 3 < t` is proved for `w <= 3*t - 1` and not for `w <= 3*t`, as brute force confirms."""
    w, t = index_symbol("w"), size_symbol("t")
    bounds = SymbolicBounds(Ranges().with_bounds(w, 0, (3 * t - 1 + slack,)), {})
    holds = all(x // 3 < y for y in range(1, 9) for x in range(3 * y + slack))
    assert bounds.less(floor_div(w, Integer(3)), t) is holds is (slack == 0)


def test_minima_and_maxima_are_split():
    a, b, t = index_symbol("a"), index_symbol("b"), size_symbol("t")
    ranges = Ranges().with_bounds(a, 0, (t - 1,)).with_bounds(b, 0, (2 * t,))
    bounds = SymbolicBounds(ranges, {})
    assert bounds.less(minimum(a, b), t)
    assert not bounds.less(maximum(a, b), t)
    assert bounds.less(maximum(a, b), 2 * t + 1)
    assert not SymbolicBounds(ranges, {}, effort=Effort(0)).less(minimum(a, b), t)


def test_a_share_of_the_iterations_reaches_no_further_than_the_last_workgroup():
    """`last // share` is proved to be less than the number of workgroups; brute force agrees.

    If each workgroup has `share` iterations, workgroup `last // share` has the iteration `last`.
    """
    tiles, workgroups = size_symbol("tiles"), size_symbol("workgroups")
    share, last = size_symbol("share"), index_symbol("last")
    ranges = Ranges().with_bounds(last, 0, (tiles - 1,))
    definitions = {share: floor_div(tiles - 1, workgroups) + 1}
    slot = floor_div(last, share)
    assert SymbolicBounds(ranges, definitions).less(slot, workgroups)
    assert not SymbolicBounds(ranges, definitions).less(slot + 1, workgroups)
    for t, w in product(range(1, 12), repeat=2):
        length = (t - 1) // w + 1
        assert all(x // length < w for x in range(t))


def test_an_access_without_an_index_is_refuted_without_a_launch():
    """The check `bounds` refutes an access whose index the graph cannot compute.

    The check does so without examining a launch: the dimension `n_step` is so large that every
    launch has too many tiles.
    """
    gemm = Gemm("f32", grouped=True, group_axis="mnk")
    text = Pipeline.parse("data-parallel{persistent=true}")(gemm.graph((4, 4, 4))).text()
    for before, after in (
        ("Ragged A.0 -> group, A.row", "Ragged D.index.0 -> group, A.row"),
        ("n_step: Linear size=tiles_n", "n_step: Linear size=elements_d*tiles_n"),
    ):
        assert before in text
        text = text.replace(before, after)
    found = parse(text).check()
    assert not found["cover"].launches
    problems = {example.problem for example in found["bounds"].counterexamples}
    assert any(x.startswith("LoadTile of A has no index: no reverse path") for x in problems)
