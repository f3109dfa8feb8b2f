"""A small results record of `gemm` with invented times."""

from __future__ import annotations

from typing import Any

__all__ = ["Row", "record", "row"]

Row = dict[str, Any]


def row(name: str, ratio: float | None, group: str = "E", **more: Any) -> Row:
    """A result row with a speed relative to cuBLAS; a row with an error if `ratio` is None."""
    found: Row = {
        "group": group, "shape": "512^3", "m": 512, "n": 512, "k": 512, "layout": "nn",
        "regime": "sustained", "name": name, "ours": name.startswith("ours"), **more,
    }  # fmt: skip
    if ratio is None:
        return found | {"problem": "WRONG: 3 of 9 sampled elements"}
    seconds = 1e-5 / ratio
    spread = {"median": seconds, "low": seconds, "high": seconds, "least": seconds, "rounds": 1}
    return found | {
        "seconds": spread, "tflops": 2e-12 * 512**3 / seconds, "of_cublas": ratio,
        "floor": 5e-6, "of_floor": 5e-6 / seconds,
    }  # fmt: skip


def record() -> dict[str, Any]:
    """A results record with two groups of shapes, two of coordgraph's plans, and two error rows."""
    rows = [
        row("cuBLAS", 1.0), row("Triton", 0.5), row("ours a", 0.8), row("ours b", 0.92),
        row("cuBLAS", 1.0, layout="nt"), row("ours a", 1.25, layout="nt"),
        row("ours b", None, layout="nt"),
        row("cuBLAS", 1.0, group="D"), row("ours a", None, group="D"),
    ]  # fmt: skip
    date = "2026-01-31T12:00:00+00:00"
    return {"kind": "gemm", "date": date, "device": "a GPU", "dtype": "bf16", "rows": rows}
