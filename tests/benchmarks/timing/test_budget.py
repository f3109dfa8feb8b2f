"""The time limit of a benchmark is divided among its problems."""

from __future__ import annotations

import pytest

from benchmarks.timing.budget import TimeBudget


def test_the_budget_is_shared_among_what_is_left():
    now = [100.0]
    budget = TimeBudget(1.0, 3, clock=lambda: now[0])
    assert budget.next_deadline() == pytest.approx(120)
    now[0] = 110.0  # the first problem used less than its share of the time
    assert budget.next_deadline() == pytest.approx(110 + 50 / 2)
    now[0] = 170.0  # the second problem used all the time that was left
    assert budget.next_deadline() == 170.0


def test_time_is_over_when_it_is_over():
    now = [0.0]
    budget = TimeBudget(1.0, 4, clock=lambda: now[0])
    for second in (0.0, 30.0, 59.0):
        now[0] = second
        assert not budget.over
        assert second < budget.next_deadline() <= 60
    now[0] = 60.0
    assert budget.over
    assert budget.left == 1
