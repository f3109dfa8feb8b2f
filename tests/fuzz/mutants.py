"""`mutant`: makes a random faulty input for fuzz tests.

An input is a correct graph with random changes in its text, its JSON or its objects, or a random
pipeline of passes.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from random import Random
from typing import NamedTuple

from coordgraph import KernelGraph, from_json, parse
from tests.fuzz.bases import CPU_BASES, GPU_BASES, GPU_SHARE, base_data, base_graph, base_text
from tests.fuzz.edits import edited
from tests.fuzz.pipelines import random_pipeline
from tests.fuzz.plain_data import mutated_data
from tests.fuzz.texts import mutated_text

__all__ = ["KINDS", "Mutant", "mutant"]

KINDS = ("text", "json", "pipeline", "edit")
SHARES = (0.55, 0.2, 0.1, 0.15)
"""Fractions of the mutants that are made from text, JSON, pipelines and edits."""


class Mutant(NamedTuple):
    """A random change of a correct graph, or a random pipeline.

    Args:
        kind: `text`, `json`, `pipeline` or `edit`.
        shown: the mutant as text, for the report.
        make: a function that returns the graph, or raises an error.
        draw: random generator that decides which stages and launches the mutant's trial runs.
    """

    kind: str
    shown: str
    make: Callable[[], KernelGraph]
    draw: Random


def mutant(seed: int, number: int) -> Mutant:
    """Change a correct graph, or make a pipeline, at random; equal arguments give equal results."""
    draw = Random(f"{seed}/{number}")
    (kind,) = draw.choices(KINDS, SHARES)
    if kind == "pipeline":
        return Mutant(kind, *random_pipeline(draw), draw)
    base = draw.choice(GPU_BASES if draw.random() < GPU_SHARE else CPU_BASES)
    if kind == "text":
        text = mutated_text(base_text(base), draw)
        return Mutant(kind, text, lambda: parse(text), draw)
    if kind == "json":
        data = mutated_data(base_data(base), draw)
        return Mutant(kind, _shown(data), lambda: from_json(data), draw)
    edit_seed = draw.random()
    graph = base_graph(base)
    what = f"edited(base_graph({base!r}), Random({edit_seed!r}))"
    return Mutant(kind, what, lambda: edited(graph, Random(edit_seed)), draw)


def _shown(data: object) -> str:
    try:
        return json.dumps(data)
    # Python refuses to print integers with more than 4300 digits, and data that is nested too deep.
    except (RecursionError, ValueError):
        return "too deep or too long to show"
