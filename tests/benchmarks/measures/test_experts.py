"""Tests of `python -m benchmarks experts`, which measures a mixture-of-experts layer."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import pytest

import codegen
from benchmarks.measures.experts import Layer, parse_layer, weighted
from benchmarks.problems.layers import swiglu
from benchmarks.reports import layer_speeds
from benchmarks.reports.layer_speeds import means


def test_layers_are_read():
    assert parse_layer("2048x768x128x8") == Layer(2048, 768, 128, 8)
    assert str(parse_layer("2048x768x128x8")) == "2048x768x128x8"
    for text in ("2048x768x8x9", "2048x768", "0x1x1x1", "axbxcxd"):
        with pytest.raises(argparse.ArgumentTypeError, match="is no layer; write inputs"):
            parse_layer(text)


def test_the_means_are_geometric():
    rows = [{"speed": {"torch eager": 1.0}}, {"speed": {"torch eager": 4.0}}, {}]
    assert means(rows) == {"torch eager": {"mean": pytest.approx(2), "least": 1}}
    assert means([]) == {}


class FakeProblem:
    """A layer whose results are plain numbers; the result of `torch eager` is wrong."""

    def __init__(self) -> None:
        self.ways = {"coordgraph": lambda: 1, "torch eager": lambda: 2}
        self.peak_bytes = {"coordgraph": 3 << 20}

    def fault(self, compute: Callable[[], Any], /) -> str | None:
        return None if compute() == 1 else "not 1"


def test_layers_are_recorded_and_wrong_results_end_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def timed(ways: Any, fault: Any, options: Any, deadline: float) -> dict[str, Any]:
        faults = {name: found for name, way in ways.items() if (found := fault(way))}
        seconds = {name: {"median": 1e-6} for name in ways}
        return {"faults": faults, "seconds": seconds, "speed": {"torch eager": 1.0}}

    monkeypatch.setattr(layer_speeds, "time_ways", timed)
    monkeypatch.setattr(layer_speeds, "environment", lambda kind: {"kind": kind, "date": "2026"})
    monkeypatch.setattr(layer_speeds, "result_path", lambda *_: tmp_path / "found.json")
    monkeypatch.setitem(sys.modules, "torch", MagicMock())
    options = argparse.Namespace(results=tmp_path, time_limit=1.0)
    with pytest.raises(SystemExit, match=r"one: .*torch eager.*not 1"):
        layer_speeds.measure("experts", "layers", {"one": FakeProblem}, options)
    (row,) = json.loads((tmp_path / "found.json").read_text())["rows"]
    assert (row["name"], row["speed"]) == ("one", {"torch eager": 1.0})
    assert row["peak_bytes"] == {"coordgraph": 3 << 20}


def test_the_two_products_make_a_layer():
    """Two grouped products make a layer: one gathers rows and gates, one scales and scatters."""
    rng = np.random.default_rng(0)
    tokens, hidden, inner, experts = 20, 24, 16, 3
    x = rng.standard_normal((tokens, hidden), dtype=np.float32)
    first = rng.standard_normal((experts, 2 * inner, hidden), dtype=np.float32)
    second = rng.standard_normal((experts, hidden, inner), dtype=np.float32)
    expert = rng.integers(0, experts, tokens)
    order = np.argsort(expert, kind="stable").astype(np.int32)
    offsets = np.searchsorted(expert[order], np.arange(experts + 1)).astype(np.int32)
    weights = rng.random(tokens, dtype=np.float32)
    values = codegen.grouped_matmul(
        x, first, offsets, transpose_b=True, rows=order, epilogue=swiglu
    )
    out = np.full((tokens, hidden), np.nan, np.float32)
    codegen.grouped_matmul(
        values, second, offsets, transpose_b=True, targets=order, epilogue=weighted,
        weight=weights[order], out=out,
    )  # fmt: skip
    for token in range(tokens):
        gate, up = np.split(first[expert[token]] @ x[token], 2)
        exact = second[expert[token]] @ (gate / (1 + np.exp(-gate)) * up) * weights[token]
        np.testing.assert_allclose(out[token], exact, rtol=1e-3, atol=1e-3)
