"""The roofline: a lower bound on a problem's time."""

from __future__ import annotations

import pytest

from benchmarks.timing.roofline import Roofline


def test_the_floor_is_the_longer_of_moving_and_multiplying():
    roof = Roofline(bytes_per_second=4e12, flops_per_second=800e12)
    assert roof.least_seconds(8192, 8192, 8192) == pytest.approx(2 * 8192**3 / 800e12)
    one_row = 2 * (8192 + 8192 * 8192 + 8192) / 4e12
    assert roof.least_seconds(1, 8192, 8192) == pytest.approx(one_row)
    assert roof.least_seconds(1, 8192, 8192, element_bytes=4) == pytest.approx(2 * one_row)
