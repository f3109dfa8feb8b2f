"""The alignment of arrays is computed correctly from their addresses and strides."""

from __future__ import annotations

import pytest

from codegen.call.alignment import alignment_of
from codegen.call.views import TensorView


@pytest.mark.parametrize("dtype", ["bf16", "f32"])
@pytest.mark.parametrize("columns", [1, 2, 3, 4, 6, 8, 12, 24, 32])
@pytest.mark.parametrize("pointer", [0, 2, 4, 8, 16, 24, 48, 1 << 20])
def test_it_divides_address_and_rows(dtype: str, columns: int, pointer: int):
    row = columns * {"bf16": 2, "f32": 4}[dtype]
    found = alignment_of(TensorView(pointer, (7, columns), (columns, 1), dtype))
    fits = [power for power in (1, 2, 4, 8, 16) if pointer % power == row % power == 0]
    assert found == max(fits)


@pytest.mark.parametrize(("stride", "wanted"), [(64, 16), (68, 8), (65, 2), (0, 1)])
def test_matrices_of_a_batch_count_too(stride: int, wanted: int):
    """Alignment depends on the stride between matrices too: stride 0 gives 1, because TMA needs
    positive strides.
    """
    assert alignment_of(TensorView(0, (3, 4, 16), (stride, 16, 1), "bf16")) == wanted


def test_empty_rows_are_not_aligned():
    assert alignment_of(TensorView(0, (4, 0), (0, 1), "bf16")) == 1


@pytest.mark.parametrize(("stride", "wanted"), [(24, 16), (20, 8), (16, 16), (8, 1), (0, 1)])
def test_gaps_between_rows_count(stride: int, wanted: int):
    """Alignment depends on the distance between rows, not on their length.

    Rows that overlap count as aligned to 1 byte, since TMA cannot load them.
    """
    assert alignment_of(TensorView(0, (4, 15), (stride, 1), "bf16")) == wanted
    assert alignment_of(TensorView(0, (3, 4, 15), (1024, stride, 1), "bf16")) == wanted
