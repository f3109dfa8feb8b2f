"""Multiplication by a magic number equals division, for every 31-bit dividend."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from codegen.emit.arguments import Magic

LARGEST = 2**31 - 1
divisors = st.one_of(
    st.integers(1, LARGEST),
    st.integers(0, 30).map(lambda bits: 1 << bits),
    st.integers(1, 30).flatmap(lambda bits: st.sampled_from(((1 << bits) - 1, (1 << bits) + 1))),
    st.integers(LARGEST - 64, LARGEST),
)


def divide(x: int, divisor: int) -> int:
    multiplier, shift = Magic.numbers(divisor)
    product = x * multiplier
    assert product < 2**64, "the product is taken in 64 bits"
    assert 31 <= shift < 64
    return product >> shift


@given(st.integers(0, LARGEST), divisors)
def test_it_is_division(x: int, divisor: int):
    assert divide(x, divisor) == x // divisor


@given(divisors, st.data())
def test_around_multiples_of_the_divisor(divisor: int, data: st.DataObject):
    """Quotients are exact next to multiples of the divisor, where an error would show first."""
    multiple = divisor * data.draw(st.integers(0, LARGEST // divisor))
    for x in (multiple - 1, multiple, multiple + 1, LARGEST // divisor * divisor - 1, LARGEST):
        if 0 <= x <= LARGEST:
            assert divide(x, divisor) == x // divisor


@pytest.mark.parametrize("divisor", [*range(1, 400), 641, 6700417, 65535, 65537, LARGEST])
def test_the_largest_dividends(divisor: int):
    x = np.arange(LARGEST - 999, LARGEST + 1, dtype=np.uint64)
    multiplier, shift = Magic.numbers(divisor)
    found = (x * np.uint64(multiplier)) >> np.uint64(shift)
    assert np.array_equal(found, x // np.uint64(divisor))


def test_a_divisor_of_zero_has_numbers_too():
    """Magic numbers exist for divisor 0 too.

    A launch computes the magic numbers of every divisor, even if the division is never executed.
    """
    assert Magic.numbers(0) == Magic.numbers(1)
