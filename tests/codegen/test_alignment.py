"""The alignment of arrays is computed correctly from their addresses and strides."""

from __future__ import annotations

from dataclasses import replace

import pytest

from codegen.call.alignment import alignment_of, alignment_of_factors
from codegen.call.request import unaligned
from codegen.call.views import TensorView
from coordgraph import Gemm
from tests.support.gated import swiglu


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


@pytest.mark.parametrize(("columns", "wanted"), [(64, 16), (60, 8), (62, 4), (61, 2)])
def test_tma_loads_stacked_parts_only_if_each_begins_at_16_bytes(columns: int, wanted: int):
    """A row of B holds the columns of both parts, so the second part begins at `columns`.

    The rows themselves are aligned to 16 bytes.
    """
    a, b = TensorView(0, (7, 64), (64, 1), "bf16"), TensorView(0, (64, 128), (128, 1), "bf16")
    b = replace(b, shape=(64, 2 * columns))
    gemm = Gemm("bf16", epilogue=swiglu, parts="stacked")
    assert alignment_of_factors(gemm, {"A": a, "B": b}) == wanted
    # No TMA box begins inside a row where the second part begins if B is given as its transpose, if
    # single columns of the parts alternate, or if each part is an array of its own.
    rows = TensorView(0, (2 * columns, 64), (64, 1), "bf16")
    turned = replace(gemm, transpose_b=True)
    assert alignment_of_factors(turned, {"A": a, "B": rows}) == 16
    for parts in ("interleaved", "interleaved:8"):
        assert alignment_of_factors(replace(gemm, parts=parts), {"A": a, "B": b}) == 16


def test_explanations_name_the_bytes_of_a_part():
    gemm = Gemm("bf16", m=16, n=60, k=64, epilogue=swiglu, parts="stacked")
    assert unaligned(gemm) == [("B", 120)]
    assert not unaligned(replace(gemm, n=64))
