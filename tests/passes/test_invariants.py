"""Invariants that hold for every schedule on every problem, checked on traces."""

from __future__ import annotations

from collections import Counter
from itertools import product

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from coordgraph import KernelGraph
from coordgraph.interpreter import Trace, trace
from coordgraph.progress import wait_direction
from tests.passes.schedules import (
    CORNERS,
    ORDERED,
    ORDERS,
    SCHEDULES,
    TILE,
    WHOLE_TILES,
    Problem,
    moved,
    numeric,
    parameters,
    problems,
    symbolic,
)
from tests.support.sampling import cover, quick_cases, words

PERSISTENT = "data-parallel{persistent=true}"
every_schedule = pytest.mark.parametrize("name", SCHEDULES)
every_order = pytest.mark.parametrize("order", ORDERS)


def waits_for_lower(name: str) -> bool:
    """Whether workgroups of the schedule `name` wait only for workgroups with lower numbers.

    Workgroups do so with owner=last, which is the default of split-k.
    """
    return "owner=first" not in name if "split-k" in name else "owner=last" in name


def check(graph: KernelGraph, problem: Problem, name: str) -> Trace:
    """Trace a problem, check the schedule's invariants and return the trace.

    `Trace.problems` checks iterations, epilogues, signals and slots.
    """
    found = trace(graph, parameters(graph, problem))
    assert found.problems() == ()
    useful = (s.k_count * len([*found.covered(s)]) for s in found.segments if not s.padding)
    assert sum(useful) == found.tiles[0] * found.tiles[1] * found.tiles[2]
    # If a tile has an owner, each workgroup sends at most one partial sum, so one slot and flag per
    # workgroup suffice. With `turnstile` and `atomic`, each shared tile has a slot. A workgroup
    # without iterations is never waited for.
    sent = Counter(send.workgroup for send in found.sends)
    assert max(sent.values(), default=0) <= (2 if "scatter" in name else 1)
    if "adjacent" in name:  # workgroups are launched in another order than that of their slots
        assert max(Counter(send.slot for send in found.sends).values(), default=0) <= 1
    elif "scatter" in name:
        each = 1 if "split-k" in name else 2
        assert all(send.slot // each == send.workgroup for send in found.sends)
    elif "turnstile" in name or "atomic" in name or ("split-k" in name and "reduction" not in name):
        shared = {(send.slot, send.tile) for send in found.sends}
        assert len(shared) == len({slot for slot, _ in shared}) == len({t for _, t in shared})
    else:
        assert all(send.slot == send.workgroup for send in found.sends)
    assert not {signaller for _, signaller in found.wait_edges()} & set(found.idle)
    if "scatter" not in name and "adjacent" not in name:
        lower = waits_for_lower(name)
        assert all((signaller < waiter) == lower for waiter, signaller in found.wait_edges())
    return found


@quick_cases(5)
@pytest.mark.parametrize(("name", "order"), ORDERED)
def test_one_graph_serves_all_problems(name: str, order: str):
    graph = symbolic(name, order)

    @given(problems())
    @settings(max_examples=10)
    def on(problem: Problem):
        check(graph, problem, name)

    for problem in CORNERS.values():
        check(graph, problem, name)
    on()


@pytest.mark.slow
@every_order
@every_schedule
def test_one_graph_serves_all_problems_at_length(name: str, order: str):
    graph = symbolic(name, order)

    @given(problems(most=60))
    @settings(max_examples=400)
    def on(problem: Problem):
        check(graph, problem, name)

    for problem in CORNERS.values():
        check(graph, problem, name)
    on()


@quick_cases(5)
@pytest.mark.parametrize(("name", "corner"), cover(20, product(SCHEDULES, CORNERS), words))
def test_a_graph_of_numbers_does_the_same_as_one_of_symbols(name: str, corner: str):
    problem = CORNERS[corner]
    assert check(numeric(name, problem), problem, name) == check(symbolic(name), problem, name)


@given(st.sampled_from(sorted(SCHEDULES)), st.sampled_from(sorted(ORDERS)), problems())
@example("two-tile-stream-k{owner=last}", "group", (1, 1, 1, 1))
@settings(max_examples=20)
def test_graphs_of_numbers(name: str, order: str, problem: Problem):
    check(numeric(name, problem, order), problem, name)


@pytest.mark.parametrize(("name", "least"), [("stream-k", 1), ("stream-k{least=5}", 5)])
@given(problems())
@settings(max_examples=25)
def test_stream_k_shares_are_equal_but_for_the_last(name: str, least: int, problem: Problem):
    graph = symbolic(name)
    found = trace(graph, parameters(graph, problem))
    total, workgroups = sum(found.iterations), problem[3]
    share = max(least, -(-total // workgroups))
    busy = [count for count in found.iterations if count]
    assert all(count == share for count in busy[:-1])
    assert busy[-1] <= share


@quick_cases(2)
@pytest.mark.parametrize("name", [name for name in SCHEDULES if name.startswith("two-tile")])
@given(problems())
@settings(max_examples=25)
def test_two_tile_stream_k_puts_at_most_two_on_a_tile(name: str, problem: Problem):
    """A tile has at most two segments if there are as many tiles as workgroups, or more.

    With fewer tiles, the docstring of `TwoTileStreamK` gives the bound.
    """
    graph = symbolic(name)
    found = trace(graph, parameters(graph, problem))
    tiles, workgroups = found.tiles[0] * found.tiles[1], problem[3]
    most = max(Counter(s.tile for s in found.segments).values())
    if tiles < workgroups:
        share = -(-tiles * found.tiles[2] // workgroups)
        assert most <= -(-(found.tiles[2] - 1) // share) + 1
        return
    assert most <= 2
    # Each workgroup has an equal share of the divided tiles, one to two tiles' worth of iterations.
    # The other tiles are whole. No tile is divided if the workgroups get equally many whole tiles.
    if tiles % workgroups == 0:
        assert not found.sends
    depth, least = found.tiles[2], 6 if "least=6" in name else 1
    most = max(2 * depth, least) + moved(name, depth)
    assert max(found.iterations) - min(found.iterations) <= most


@quick_cases(3)
@pytest.mark.parametrize("name", [name for name in SCHEDULES if name.startswith("hybrid")])
@given(problems())
@settings(max_examples=25)
def test_hybrid_stream_k_streams_the_ragged_wave_alone(name: str, problem: Problem):
    graph = symbolic(name)
    found = trace(graph, parameters(graph, problem))
    tiles, depth, workgroups = found.tiles[0] * found.tiles[1], found.tiles[2], problem[3]
    waves, ragged = divmod(tiles, workgroups)
    least = 3 if "least=3" in name else 1
    share = max(least, -(-ragged * depth // workgroups)) + moved(name, depth)
    assert all(waves * depth <= count <= waves * depth + share for count in found.iterations)
    assert len({s.tile for s in found.segments if s.role != "whole"}) <= ragged


@pytest.mark.parametrize("name", [name for name in SCHEDULES if name.startswith("hetero")])
@given(problems())
@settings(max_examples=25)
def test_heterogeneous_tiles_divide_the_ragged_wave_alone(name: str, problem: Problem):
    m, n, _, workgroups = problem
    graph = symbolic(name)
    found = trace(graph, parameters(graph, problem))
    waves, ragged = divmod(-(-m // TILE[0]) * -(-n // TILE[1]), workgroups)
    pieces = 8 if "small_m=1" in name else 4
    large = [s for s in found.segments if s.span != (1, 1)]
    assert len(large) == waves * workgroups
    assert all(len(found.of(w)) >= waves for w in range(workgroups))
    # The trace counts iterations of small tiles. The busiest workgroup has a macro tile of each
    # full wave, and an equal share, rounded up, of the small tiles into which the last wave is
    # divided.
    depth = found.tiles[2]
    busiest = waves * pieces + -(-ragged * pieces // workgroups)
    assert max(found.iterations) == busiest * depth
    assert found.utilisation <= 1
    # The busiest workgroup has at most as many multiplications as in a persistent data-parallel
    # schedule, in which every tile is a macro tile. A macro tile is `pieces` small tiles.
    persistent = trace(symbolic(PERSISTENT), parameters(symbolic(PERSISTENT), problem))
    assert max(found.iterations) <= max(persistent.iterations) * pieces
    if m % TILE[0] == n % TILE[1] == 0:
        useful = (waves * workgroups + ragged) * pieces
        assert found.utilisation == pytest.approx(useful / (busiest * workgroups))


@quick_cases(2)
@pytest.mark.parametrize("name", cover(0, SCHEDULES, words))
def test_the_direction_of_waits_is_derived(name: str):
    sharing = "lower" if waits_for_lower(name) else "higher"
    expected = "none" if name.startswith(WHOLE_TILES) else sharing
    if "scatter" in name:  # workgroups wait for lower- and higher-numbered ones
        expected = "mixed"
    assert wait_direction(symbolic(name)) == expected
    assert wait_direction(numeric(name, (9, 13, 23, 5), "group")) == expected
