"""Running reductions of rows: parts of a row are reduced separately, and merged in any order."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordgraph.epilogue.operation import Algebra
from coordgraph.epilogue.reduction import RUNNING, reduced

ON = Algebra("f64")
VALUES = st.lists(
    st.one_of(st.integers(-300, 300).map(float), st.sampled_from([np.inf, -np.inf, np.nan])),
    max_size=9,
)


def state_of(name: str, values: list[float], at_once: int = 2) -> Any:
    """The state of the running reduction `name` after it has read `values` in order.

    It reads `at_once` values at a time, and the rest of the values at the end.
    """
    running = RUNNING[name]
    state = tuple(map(np.float64, running.identity))
    for first in range(0, len(values), at_once):
        read = [np.float64(value) for value in values[first : first + at_once]]
        state = running.absorb(ON, state, read)
    return state


@pytest.mark.parametrize("name", sorted(RUNNING))
@given(parts=st.lists(VALUES, min_size=1, max_size=5), at_once=st.integers(1, 4))
def test_merged_parts_give_the_reduction_of_the_row(
    name: str, parts: list[list[float]], at_once: int
):
    """The merged states of a row's parts give the reduction of the whole row.

    Parts may be empty, and may contain infinity and NaN.
    """
    running = RUNNING[name]
    row = np.array([[value for part in parts for value in part]], np.float64)
    with np.errstate(all="ignore"):
        state = state_of(name, parts[0], at_once)
        for part in parts[1:]:
            state = running.merge(ON, state, state_of(name, part, at_once))
        found = running.finish(ON, state)
        wanted = reduced(name, row, np.ones(row.shape, bool))[0, 0]
    np.testing.assert_allclose(found, wanted, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", sorted(RUNNING))
@given(a=VALUES, b=VALUES)
def test_merging_is_commutative_bit_by_bit(name: str, a: list[float], b: list[float]):
    """Merging two states in either order gives the same bits.

    So all lanes of a warp that merge each other's states by shuffles have the same result.
    """
    with np.errstate(all="ignore"):
        one, other = state_of(name, a), state_of(name, b)
        merge = RUNNING[name].merge
        found, wanted = merge(ON, one, other), merge(ON, other, one)
    np.testing.assert_array_equal(found, wanted)
