"""A user's epilogue function costs a kernel nothing that the library's own function does not."""

from __future__ import annotations

from typing import Any

import pytest

import codegen
import coordgraph.epilogue as ep
from coordgraph import Gemm
from coordgraph.epilogue import ALPHA_BETA, EpilogueFunction
from passes import Pipeline
from tests.support.sampling import quick_cases

C = ep.operand("lmn", optional=True, summed=True)
TILES = {"sm_80": (64, 64, 32), "sm_90a": (128, 128, 64)}


@ep.epilogue(alpha="", beta="", c=C)
def scaled(acc: Any, alpha: Any, beta: Any, c: Any) -> Any:
    return beta * c + alpha * acc


@ep.epilogue(bias="n")
def own_silu(acc: Any, bias: Any) -> Any:
    return (acc + bias) * ep.sigmoid(acc + bias)


@ep.epilogue(bias="n")
def known_silu(acc: Any, bias: Any) -> Any:
    return ep.silu(acc + bias)


def ptx(function: EpilogueFunction, architecture: str) -> str:
    problem = Gemm("bf16", "bf16", transpose_b=True, epilogue=function)
    graph = Pipeline.parse("stream-k{owner=last}")(problem.graph(TILES[architecture]))
    return codegen.compile(graph, architecture).ptx


@quick_cases(2)
@pytest.mark.parametrize("architecture", TILES)
@pytest.mark.parametrize(("own", "known"), [(scaled, ALPHA_BETA), (own_silu, known_silu)])
def test_the_same_formula_gives_the_same_code(
    own: EpilogueFunction, known: EpilogueFunction, architecture: str
):
    """Kernels with equal PTX take the same time."""
    assert ptx(own, architecture) == ptx(known, architecture)
