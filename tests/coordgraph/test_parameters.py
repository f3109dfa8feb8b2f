"""Parameters that have no value in a launch."""

from __future__ import annotations

import pytest

from coordgraph import Gemm, LaunchError
from coordgraph.integers import floor_div, index_symbol


def test_a_division_by_zero_is_named():
    with Gemm("f32").graph((8, 8, 8)).edit() as e:
        by_zero = floor_div(index_symbol("m"), index_symbol("read_c"))
        e.parameter("share", by_zero, minimum=0)
    sizes = {"m": 8, "n": 8, "k": 8}
    assert e.graph.parameters.evaluate({**sizes, "read_c": 1})["tiles_m"] == 1
    with pytest.raises(LaunchError, match=r"share = m // read_c divides by 0 in this launch"):
        e.graph.parameters.evaluate({**sizes, "read_c": 0})
