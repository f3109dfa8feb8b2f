"""Rounds, their order, their end; what is computed of samples."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.gemm import Allowance
from benchmarks.monitor import Monitor, parse_line, summary
from benchmarks.problem import MOST_SETS, buffer_sets
from benchmarks.roofline import Roof
from benchmarks.timing import REGIMES, Spread, longer, take_turns


class Device:
    """A clock, and samplers that let it run."""

    def __init__(self) -> None:
        self.now = 0.0
        self.order: list[str] = []
        self.slept: list[float] = []

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds

    def sampler(self, name: str, seconds: float) -> Any:
        device = self

        class Fake:
            def sample(self, share: float = 1.0) -> float:
                device.order.append(name)
                device.now += seconds * share
                return seconds

        return Fake()

    def turns(self, rounds: int, regime: str, **options: Any) -> list[list[float]]:
        samplers = [self.sampler(name, 0.1 * (1 + i)) for i, name in enumerate("abc")]
        clocks = {"clock": lambda: self.now, "sleep": self.sleep}
        return take_turns(samplers, rounds, REGIMES[regime], **clocks, **options)


def test_the_order_rotates():
    device = Device()
    samples = device.turns(3, "sustained", heat_seconds=0)
    assert "".join(device.order) == "abc" + "bca" + "cab"
    assert [[round(s, 3) for s in of_one] for of_one in samples] == [
        [0.1] * 3,
        [0.2] * 3,
        [0.3] * 3,
    ]


def test_a_burst_rests_before_every_sample_and_sustained_never():
    device = Device()
    device.turns(2, "burst")
    assert device.slept == [REGIMES["burst"].gap] * 6
    assert "".join(device.order) == "abc" + "bca"  # no heating
    device = Device()
    device.turns(2, "sustained", heat_seconds=0.5)
    assert device.slept == []
    assert "".join(device.order) == "abc" + "abc" + "bca"


def test_the_deadline_ends_the_rounds_but_leaves_some():
    assert [len(s) for s in Device().turns(9, "sustained", deadline=0.0)] == [3, 3, 3]
    within = Device().turns(9, "sustained", deadline=2.5, heat_seconds=0)
    assert [len(s) for s in within] == [5, 5, 5]
    assert [len(s) for s in Device().turns(2, "sustained", deadline=0.0)] == [2, 2, 2]


def test_nobody_takes_no_turns():
    assert take_turns([], 9, REGIMES["sustained"]) == []


def test_spread():
    found = Spread.of([3.0, 1.0, 2.0, 5.0, 4.0])
    assert (found.median, found.low, found.high, found.least, found.rounds) == (3, 2, 4, 1, 5)
    assert Spread.of([2.0]).json() == {
        "median": 2.0, "low": 2.0, "high": 2.0, "least": 2.0, "rounds": 1
    }  # fmt: skip


def test_graphs_are_long_enough_and_hold_whole_turns():
    assert longer(5e-6, 3) == 201
    assert longer(1e-2, 3) == 3
    assert longer(1e-9, 512) == 1024


def test_buffers_exceed_thrice_the_cache_within_limits():
    cache = 60 << 20
    for size in (1 << 20, 7 << 20, 59 << 20, 61 << 20):
        assert buffer_sets(size, cache) * size > 3 * cache
        assert (buffer_sets(size, cache) - 1) * size <= 3 * cache or buffer_sets(size, cache) == 2
    assert buffer_sets(1 << 10, cache) == MOST_SETS
    assert buffer_sets(20 << 30, cache) == 2


def test_the_floor_is_the_longer_of_moving_and_multiplying():
    roof = Roof(bytes_per_second=4e12, flops_per_second=800e12)
    assert roof.floor(8192, 8192, 8192) == pytest.approx(2 * 8192**3 / 800e12)
    one_row = 2 * (8192 + 8192 * 8192 + 8192) / 4e12
    assert roof.floor(1, 8192, 8192) == pytest.approx(one_row)
    assert roof.floor(1, 8192, 8192, element_bytes=4) == pytest.approx(2 * one_row)


def test_the_allowance_is_shared_among_what_is_left():
    now = [100.0]
    allowance = Allowance(1.0, 3, clock=lambda: now[0])
    assert allowance.deadline() == pytest.approx(120)
    now[0] = 110.0  # the first was quick
    assert allowance.deadline() == pytest.approx(110 + 50 / 2)
    now[0] = 170.0  # the second took all
    assert allowance.deadline() == 170.0


def test_readings_of_nvidia_smi():
    line = parse_line("1755, 3201, 698.10, 61\n")
    assert line == {"sm_mhz": 1755, "memory_mhz": 3201, "watts": 698.1, "celsius": 61}
    assert parse_line("1755, [N/A], 698.10, 61") == {"sm_mhz": 1755, "watts": 698.1, "celsius": 61}
    assert parse_line("Unable to determine the device handle") is None
    assert summary([]) == {}
    assert line is not None
    assert summary([line, {"sm_mhz": 1745.0}])["sm_mhz"] == 1750
    assert summary([line, {"sm_mhz": 1745.0}])["readings"] == 2


def test_a_monitor_without_nvidia_smi_is_silent(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PATH", "")
    with Monitor() as monitor:
        assert monitor.since(0.0) == {}
