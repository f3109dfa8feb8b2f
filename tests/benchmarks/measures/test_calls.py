"""Tests of the measurement of the host time of calls, with a simulated clock."""

from __future__ import annotations

from pathlib import Path

from benchmarks.measures.calls import Cost, host_microseconds, of_pytorch, parser


def test_host_time_is_per_call_with_a_short_queue():
    now, queued, longest = [0], [0], [0]

    def call(cost: int) -> None:
        now[0] += cost
        queued[0] += 1
        longest[0] = max(longest[0], queued[0])

    def synchronize() -> None:
        queued[0] = 0
        now[0] += 10**9  # this wait must not count as host time of the call

    found = host_microseconds(
        {"slow": lambda: call(9000), "fast": lambda: call(2000)},
        synchronize,
        rounds=3,
        queue=4,
        clock=lambda: now[0],
    )
    assert [(cost.name, cost.median, cost.calls) for cost in found] == [
        ("slow", 9.0, 12),
        ("fast", 2.0, 12),
    ]
    assert longest[0] <= 4


def test_each_call_is_compared_with_the_peer_before_it():
    times = {"torch.matmul": 8.0, "kernel": 6.0, "matmul": 4.0, "F.linear": 10.0, "own": 5.0}
    costs = [Cost(name, time, time, time, 1) for name, time in times.items()]
    ratios = [1, 0.75, 0.5, 1, 0.5]
    assert of_pytorch(costs) == dict(zip(times, ratios, strict=True))


def test_calls_take_a_plan():
    options = parser().parse_args(["--plan", "64x64x64 stream-k", "--results", "x"])
    assert (str(options.plan), options.results) == ("64x64x64 stream-k", Path("x"))
