"""Rotary embedding of a product's columns: an epilogue of two sums and two stored results."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import codegen
import coordgraph as cg
from passes import DataParallel, SplitK, StreamK
from tests.support.rotary import LAYOUT, angles, halves, rotary, rotary_of
from tests.support.sampling import quick_cases

PARTS = ("stacked", "interleaved")
SCHEDULES = (
    DataParallel(),
    SplitK(3),
    StreamK(workgroups=5),
    StreamK(workgroups=4, reduction="scatter"),
    StreamK(workgroups=5, reduction="turnstile"),
)


@pytest.mark.slow
@given(
    size=st.tuples(*[st.integers(1, 45)] * 3),
    parts=st.sampled_from(PARTS),
    turned=st.booleans(),
    schedule=st.sampled_from(SCHEDULES),
    target=st.sampled_from(["cpu", "interpreter"]),
)
@settings(max_examples=40, deadline=None)
def test_every_schedule_and_layout(
    size: tuple[int, int, int], parts: str, turned: bool, schedule: Any, target: str
):
    """D and the output `right` are halves of the rows of one array; gaps between rows stay NaN."""
    m, pairs, k = size
    gemm = cg.Gemm("f32", epilogue=rotary, parts=parts, transpose_b=turned, **LAYOUT)
    kernel = codegen.compile(schedule(gemm.graph(tile=(16, 32, 16))), target)
    rng = np.random.default_rng(sum(size))
    a, b = (rng.normal(size=s).astype("f4") for s in ((m, k), (k, 2 * pairs)))
    cos, sin = angles(m, pairs)
    d = np.full((m, 2 * pairs + 3), np.nan, "f4")
    kernel(
        a,
        np.ascontiguousarray(b.T) if turned else b,
        cos=cos,
        sin=sin,
        **halves(d[:, : 2 * pairs]),
    )
    exact = rotary_of(a.astype("f8") @ b, parts, cos, sin)
    assert np.allclose(d[:, : 2 * pairs], exact, atol=1e-4)
    assert np.isnan(d[:, 2 * pairs :]).all()


@pytest.mark.parametrize("parts", PARTS)
def test_checks(parts: str):
    gemm = cg.Gemm("f32", epilogue=rotary, parts=parts, **LAYOUT)
    graph = StreamK(workgroups=5)(gemm.graph(tile=(16, 32, 16)))
    assert cg.parse(graph.text()) == graph
    assert not graph.check().refuted


@quick_cases(2)
@pytest.mark.parametrize("parts", PARTS)
@pytest.mark.parametrize("turned", [False, True])
def test_heads(parts: str, turned: bool):
    """Heads are a batch: each head's columns of the weight are a matrix, as is its part of D."""
    m, heads, pairs, k = 37, 3, 8, 24
    rng = np.random.default_rng(0)
    x, weight = (rng.normal(size=s).astype("f4") for s in ((m, k), (k, heads * 2 * pairs)))
    if turned:
        of_heads = np.ascontiguousarray(weight.T).reshape(heads, 2 * pairs, k).swapaxes(1, 2)
    else:
        of_heads = weight.reshape(k, heads, 2 * pairs).swapaxes(0, 1)
    cos, sin = angles(m, pairs)
    d = np.full((m, heads, 2 * pairs), np.nan, "f4")
    views = halves(d.swapaxes(0, 1))
    codegen.matmul(x, of_heads, epilogue=rotary, parts=parts, cos=cos, sin=sin, **views)
    product = (x.astype("f8") @ weight).reshape(m, heads, 2 * pairs).swapaxes(0, 1)
    exact = rotary_of(product, parts, cos, sin).swapaxes(0, 1)
    assert np.allclose(d, exact, atol=1e-4)
