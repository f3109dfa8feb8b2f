"""Every schedule gives the reference result, in whatever order the workgroups run."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coordgraph import KernelGraph
from coordgraph.interpreter import SCHEDULERS, Deadlock, interpret
from coordgraph.interpreter.schedulers import Scheduler, Shuffled
from coordgraph.progress import wait_direction
from tests.passes.schedules import (
    CORNERS,
    ORDERED,
    ORDERS,
    SCHEDULES,
    TILE,
    Problem,
    numeric,
    parameters,
    problems,
    symbolic,
)
from tests.support.sampling import cover, covering, quick_cases, words

FIXED_UP = [name for name in SCHEDULES if "-k" in name]
every_schedule = pytest.mark.parametrize("name", SCHEDULES)


def matrices(problem: Problem, *, whole: bool = True) -> tuple[np.ndarray, np.ndarray]:
    """Random (A, B): small integers if `whole`, whose sums are exact, else normal deviates."""
    m, n, k, _ = problem
    random = np.random.default_rng(sum(problem))
    if whole:
        a, b = random.integers(-4, 5, (m, k)), random.integers(-4, 5, (k, n))
    else:
        a, b = random.standard_normal((m, k)), random.standard_normal((k, n))
    return a.astype(np.float32), b.astype(np.float32)


def left_over(graph: KernelGraph, problem: Problem) -> dict[str, int]:
    """The launch arguments that the arrays do not determine: `workgroups`, if the graph has it."""
    return {k: v for k, v in parameters(graph, problem).items() if k == "workgroups"}


def one_number_a_piece(pieces: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(`pieces` random numbers, A of 1 x k, B of k x 1), where A·B over k tile i is number i."""
    random = np.random.default_rng(pieces)
    numbers = random.standard_normal(pieces).astype(np.float32) * 1000
    a, b = np.zeros((1, pieces * TILE[2]), np.float32), np.ones((pieces * TILE[2], 1), np.float32)
    a[0, :: TILE[2]] = numbers
    return numbers, a, b


def run(graph: KernelGraph, problem: Problem, schedule: Scheduler, **options: Any) -> np.ndarray:
    a, b = matrices(problem)
    result = interpret(
        graph, a, b, parameters=left_over(graph, problem), schedule=schedule, **options
    )
    assert np.array_equal(result.d, a @ b)
    return result.d


@quick_cases(3)
@pytest.mark.parametrize(("name", "corner"), covering(10, SCHEDULES, CORNERS))
def test_the_result_is_the_reference_at_corners(name: str, corner: str):
    graph, problem = symbolic(name), CORNERS[corner]
    for kind in SCHEDULERS.values():
        run(graph, problem, kind())


@quick_cases(3)
@pytest.mark.parametrize(("name", "order"), ORDERED[len(SCHEDULES) :])
def test_the_result_is_the_reference(name: str, order: str):
    graph = symbolic(name, order)

    @given(problems(most=18), st.integers(0, 99), st.sampled_from(sorted(SCHEDULERS)))
    @settings(max_examples=5)
    def on(problem: Problem, seed: int, kind: str):
        run(graph, problem, Shuffled(seed) if kind == "shuffled" else SCHEDULERS[kind]())

    on()


@pytest.mark.slow
@every_schedule
@pytest.mark.parametrize("order", ORDERS)
def test_the_result_is_the_reference_at_length(name: str, order: str):
    graph = symbolic(name, order)

    @given(problems(most=40), st.integers(0, 99), st.sampled_from(sorted(SCHEDULERS)))
    @settings(max_examples=150)
    def on(problem: Problem, seed: int, kind: str):
        run(graph, problem, Shuffled(seed) if kind == "shuffled" else SCHEDULERS[kind]())

    on()


@quick_cases(4)
@pytest.mark.parametrize("name", cover(0, SCHEDULES, words))
def test_a_graph_of_numbers_gives_the_reference(name: str):
    problem = CORNERS["ragged everywhere"]
    run(numeric(name, problem, "group"), problem, Shuffled(3))


@quick_cases(1)
@pytest.mark.parametrize("name", ["data-parallel", "stream-k", "two-tile-stream-k{owner=last}"])
def test_tiles_that_are_not_square(name: str):
    graph = symbolic(name, "plain", (3, 5, 2))
    for problem in CORNERS.values():
        run(graph, problem, Shuffled(0))


@quick_cases(1)
@pytest.mark.parametrize("name", cover(0, FIXED_UP, words))
@given(problems(most=16), st.integers(0, 1000))
@settings(max_examples=6)
def test_every_interleaving_gives_the_same_bits(name: str, problem: Problem, seed: int):
    graph, (a, b) = symbolic(name), matrices(problem, whole=False)
    options = left_over(graph, problem)
    first = interpret(graph, a, b, parameters=options).d
    for schedule in (*(kind() for kind in SCHEDULERS.values()), Shuffled(seed)):
        again = interpret(graph, a, b, parameters=options, schedule=schedule).d
        if "atomic" in name:  # partial sums are added in the order of arrival
            np.testing.assert_allclose(first, again, rtol=1e-4, atol=1e-4)
            continue
        assert first.tobytes() == again.tobytes()
    np.testing.assert_allclose(first, a.astype(np.float64) @ b, rtol=1e-4, atol=1e-4)


@quick_cases(4)
@pytest.mark.parametrize("name", FIXED_UP)
def test_waiting_for_lower_numbers_needs_no_residency(name: str):
    """If workgroups wait only for lower-numbered ones, one resident workgroup at a time suffices.

    The problem is one tile that five workgroups compute.
    """
    graph, problem = symbolic(name), CORNERS["one tile in many pieces"]
    if wait_direction(graph) == "lower":
        run(graph, problem, Shuffled(1), resident=1)
        return
    with pytest.raises(
        Deadlock, match=r"0 for slot [012]; only 1 are resident, so 1\.\.[2346] cannot"
    ):
        run(graph, problem, Shuffled(1), resident=1)
    run(graph, problem, Shuffled(1), resident=7)
