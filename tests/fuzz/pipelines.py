"""Random pipelines: passes with random options, on random problems and tiles."""

from __future__ import annotations

from dataclasses import fields
from random import Random
from typing import Any

from coordgraph import Gemm, KernelGraph
from passes import PASSES, Pipeline
from passes.options import allowed_values, option_types
from tests.fuzz.texts import NUMBERS, mutated_expression

__all__ = ["random_pipeline"]

ORDERS = ("reorder", "rasterize", "grouped", "longest-first")
WORDS = ("first", "last", "none", "true", "0", "é", "", "1.5", "peers", "morton", "m", "[")
KINDS = ("f32", "f32", "f32", "f64", "bf16", "f16", "i8", "u8", "i32", "f8")
EXTENTS = (None, None, None, None, 1, 7, 64, 0, -1, 2**31 - 1, 2**31, 2**63, 10**30)


def random_pipeline(draw: Random) -> tuple[str, Any]:
    """(Python code of a random pipeline on a random problem, a function that runs the code)."""
    names = [draw.choice(ORDERS) for _ in range(draw.choice((0, 0, 0, 1, 1, 2)))]
    names += [draw.choice([n for n in PASSES if n not in ORDERS])]
    names += [draw.choice([*PASSES])] if draw.random() < 0.1 else []
    text = ",".join(name + _options(name, draw) for name in names)
    if draw.random() < 0.15:
        text = mutated_expression(text, draw)
    gemm: dict[str, Any] = {"dtype": draw.choice(KINDS)}
    for axis in "mnk":
        if (extent := draw.choice(EXTENTS)) is not None and draw.random() < 0.5:
            gemm[axis] = extent
    for name in ("transpose_a", "transpose_b", "batched", "grouped"):
        if draw.random() < 0.12:
            gemm[name] = True
    if draw.random() < 0.15:
        gemm |= {"grouped": True, "group_axis": draw.choice(("m", "k", "mnk"))}
    if draw.random() < 0.1:
        gemm["out_dtype"] = draw.choice(KINDS)
    sides = (1, 2, 3, 4, 4, 4, 4, 5, 8, 0, -1, 2**20, 2**31, 2**63)
    tile = tuple(draw.choice(sides[: 9 if draw.random() < 0.9 else len(sides)]) for _ in range(3))
    arguments = ", ".join(f"{name}={value!r}" for name, value in gemm.items())
    what = f"Pipeline.parse({text!r})(Gemm({arguments}).graph({tile}))"

    def make() -> KernelGraph:
        return Pipeline.parse(text)(Gemm(**gemm).graph(tile))  # type: ignore[arg-type]

    return what, make


def _options(name: str, draw: Random) -> str:
    kind = PASSES[name]
    given: list[str] = []
    for spec in fields(kind):
        if draw.random() < 0.5:
            continue
        allowed = [str(v) for v in allowed_values(kind).get(spec.name, ())]
        if draw.random() < 0.08:
            value = draw.choice((*WORDS, *NUMBERS))
        elif allowed:
            value = draw.choice(allowed)
        elif bool in option_types(kind)[spec.name]:
            value = draw.choice(("true", "false"))
        else:
            value = str(draw.choice((1, 2, 3, 4, 5, 7, 8, 100)))
        given.append(f"{spec.name}={value}")
    return f"{{{','.join(given)}}}" if given else ""
