"""Tests of `python -m benchmarks invariant`, which measures batch-invariant products.

The tests cover time ratios that the command computes from recorded times, the plans' predicted
times, and options.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

import pytest

from benchmarks.measures import invariant
from benchmarks.measures.invariant import Ratios, means, parse_layer, predicted, ratios
from passes.choosing.pinned_orders import ROWS


def row(name: str, m: int, seconds: float | None) -> dict[str, Any]:
    found: dict[str, Any] = {"name": name, "m": m, "n": 64, "k": 128}
    return found if seconds is None else {**found, "seconds": {"median": seconds}}


RECORD = [
    row("coordgraph", 1, 1.0),
    row("coordgraph invariant", 1, 2.0),
    row("Triton invariant", 1, 6.0),
    row("Triton invariant, persistent", 1, 5.0),
    row("coordgraph", 16, 4.0),
    row("coordgraph invariant", 16, 4.0),
    row("Triton invariant", 16, None),
    row("coordgraph", 64, 4.0),
]


def test_ratios_compare_with_the_default_and_the_faster_triton_kernel():
    assert ratios(RECORD) == [
        Ratios(64, 128, 1, 2.0, 0.5, 2.5),
        Ratios(64, 128, 16, 4.0, 1.0, None),
    ]
    found = means(ratios(RECORD))["64x128"]
    assert found["of_default"] == {"mean": pytest.approx(0.5**0.5), "least": 0.5}
    assert found["of_triton"] == {"mean": pytest.approx(2.5), "least": 2.5}


@pytest.mark.slow
def test_predictions_of_a_layer():
    found = [*predicted([(1024, 4096)], "bf16", "nt")]
    assert [one.m for one in found] == [*ROWS]
    assert all(0.5 < one.of_default < 1.3 for one in found)
    assert all(one.of_triton is None for one in found)


def test_layers_are_n_and_k():
    assert parse_layer("4096x14336") == (4096, 14336)
    for text in ("4096", "4096x", "0x4", "axb", "1x2x3"):
        with pytest.raises(argparse.ArgumentTypeError, match="write n and k"):
            parse_layer(text)


@pytest.mark.slow
def test_predictions_are_printed_without_a_gpu(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(sys, "argv", ["benchmarks", "--predict", "--layers", "512x7168"])
    invariant.main()
    printed = capsys.readouterr().out
    assert "predicted for the H200, nt" in printed
    assert "512x7168  of default: mean 0." in printed
