"""A check refutes graphs whose parameters or assumptions divide by 0 in some launch."""

from __future__ import annotations

import pytest

from coordgraph import parse
from coordgraph.kernel import KernelGraph
from coordgraph.verification import Outcome
from tests.passes.schedules import symbolic


def with_parameter(line: str) -> KernelGraph:
    text = symbolic("stream-k").text()
    head, separator, rest = text.partition("assume ")
    return parse(f"{head}{line}\n{separator}{rest}")


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("param s in 0..65535 = workgroups // (tiles_m - 1)", "parameter s = workgroups // "),
        ("param s in 0..65535 = workgroups % (tiles_m - 1)", "parameter s = "),
        ("assume workgroups // (tiles_m - 1) <= 2147483647", "workgroups // (tiles_m - 1) "),
    ],
)
def test_a_division_by_zero_is_refuted(line: str, what: str):
    verdict = with_parameter(line).check()["sizes"]
    assert verdict.outcome is Outcome.REFUTED
    (found,) = verdict.counterexamples
    assert found.problem.startswith(what)
    assert "divides by 0" in found.problem
    assert found.launch is not None
    assert found.launch.values["m"] <= 8  # m is at most one tile, so tiles_m - 1 is 0


@pytest.mark.parametrize(
    "line",
    [
        "param s in 0..65535 = workgroups // max(1, tiles_m - 1)",
        "param more in 1..65535 = tiles_m - 1\nparam s in 0..65535 = workgroups // more",
        "param more in 0..65535 = tiles_m - 1\nassume 2147483648 - more <= 2147483647\n"
        "param s in 0..65535 = workgroups // more",
    ],
)
def test_a_divisor_that_bounds_keep_positive_is_accepted(line: str):
    assert not with_parameter(line).check().refuted
