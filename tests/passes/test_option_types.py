"""Which types of pass options pipeline text supports; `Timing` adds up seconds of equal passes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordgraph import Gemm, KernelGraph, ParseError, PassError
from passes import Pass, Pipeline
from passes.pipeline import Timing


@dataclass(frozen=True)
class Tuned(Pass):
    """A pass with options that changes nothing."""

    name = "test-tuned"
    factor: float = 1.0
    limit: float | None = 2.0
    mode: Literal["fast", "slow"] = "fast"
    point: int | None = 3
    sizes: tuple[int, ...] = ()
    either: int | str = 0

    def apply(self, graph: KernelGraph) -> KernelGraph:
        return graph


@given(st.floats(allow_nan=False), st.none() | st.floats(allow_nan=False))
def test_floats_read_back(factor: float, limit: float | None):
    step = Tuned(factor=factor, limit=limit, mode="slow", point=None)
    assert Pipeline.parse(str(step)).passes == (step,)


def test_a_float_may_be_whole_or_of_numpy():
    graph = Gemm("f32").graph()
    for step in (Tuned(factor=3), Tuned(factor=np.float64(0.1))):
        assert step(graph) is graph
        assert Pipeline.parse(str(step)).passes == (step,)


@pytest.mark.parametrize("factor", ["1", True, None, 2**60 + 1, float("nan")])
def test_what_is_no_float_is_refused(factor: Any):
    with pytest.raises(PassError, match=r"test-tuned refuses: factor = .* should be a number$"):
        Tuned(factor=factor)(Gemm("f32").graph())


@pytest.mark.parametrize(
    ("option", "why"),
    [
        ("factor=nan", "option 'factor' must be a number, not 'nan'"),
        ("factor=1_0", "option 'factor' must be a number, not '1_0'"),
        ("point=1.5", "option 'point' must be a whole number"),
        (
            "sizes=3",
            r"'sizes' of 'test-tuned' has the type tuple\[int, \.\.\.\], which pipeline",
        ),
        (
            "either=3",
            r"'either' of 'test-tuned' has the type int \| str, which pipeline text",
        ),
    ],
)
def test_text_refuses_what_it_cannot_hold(option: str, why: str):
    with pytest.raises(ParseError, match=why):
        Pipeline.parse(f"test-tuned{{{option}}}")


def test_times_of_equal_passes_add_up():
    timing, graph = Timing(), Gemm("f32").graph()
    for seconds in (1.0, 2.0):
        timing.after(Tuned(), graph, graph, seconds)
    timing.after(Tuned(factor=2.0), graph, graph, 4.0)
    assert timing.seconds == {"test-tuned": 3.0, "test-tuned{factor=2.0}": 4.0}
