"""How a plan is chosen for each lowering: by the cost model if it has one, else by a fixed rule."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache

from coordgraph import Gemm
from coordgraph.tensors import dtype
from passes.choosing.candidates import fallback
from passes.choosing.constants import Constants, constants_of
from passes.choosing.fixed_rules import instructions_plan
from passes.choosing.gpu_figures import GpuFigures, figures_of
from passes.choosing.mma_sync import covers
from passes.choosing.plan import Plan
from passes.lowering import MMA_SYNC, WGMMA
from passes.lowering.architectures import ARCHITECTURES

__all__ = ["Chooser", "chooser_of", "modelled", "register_choosers"]

Rule = Callable[[int, int, int, int, int, int], Plan]
"""Type: a function that returns a plan without a cost model.

The arguments are m, n, k, the number of SMs, the number of products, and the number of elements of
A and B in 128 bytes, from which the extent of a tile along k is derived.
"""
Model = Callable[[Gemm, str, int], Constants | None]
"""Type: a function that returns the cost model's constants, None if the model does not apply.

The arguments are a problem, the name of a GPU and the GPU's number of SMs.
"""

Figures = Callable[[Gemm, str, int], GpuFigures | None]
"""Type: a function that returns a GPU's clock rate, memory bandwidth and other numbers that need no
calibration, or None if no numbers are known or no cost model uses them for the problem.

The arguments are a problem, the name of a GPU and the GPU's number of SMs.
"""


@dataclass(frozen=True)
class Chooser:
    """How plans are chosen for a lowering (a way to generate code for a target).

    Args:
        rule: returns a plan without a cost model. The rule is used if `model` is None or returns
            None, or if none of the plans that the cost model ranks can be built.
        model: returns the constants with which `passes.choosing.rank` ranks plans; None if the
            lowering has no cost model.
        figures: returns a GPU's data-sheet rates, with which `passes.choosing.mma_sync.ranked`
            ranks plans where `model` returns None; None if the lowering is not ranked this way.
    """

    rule: Rule = instructions_plan
    model: Model | None = None
    figures: Figures | None = None


@cache
def _has_code(gemm: Gemm) -> bool:
    """Whether the lowering that the cost model describes (wgmma) supports a problem.

    The answer depends on the element types and layouts of A and B, not on m, n and k.
    """
    return fallback(row=dtype(gemm.dtype).row).why_not(gemm) is None


def _wgmma(gemm: Gemm, device: str, processors: int) -> Constants | None:
    """The cost model's constants for the wgmma lowering.

    The result is None if wgmma cannot compute the problem.
    """
    if (gemm.m, gemm.n, gemm.k) != (None, None, None):
        gemm = replace(gemm, m=None, n=None, k=None)
    return constants_of(device, processors) if _has_code(gemm) else None


def _mma_sync(gemm: Gemm, device: str, processors: int) -> GpuFigures | None:
    """The published rates and sizes of a GPU, from which times of mma.sync kernels are predicted.

    The result is None if no file describes the GPU, or if the cost model of mma.sync
    kernels does not describe the problem.
    """
    return figures_of(device, processors) if covers(gemm) else None


_CHOOSERS = {
    WGMMA.instructions: Chooser(model=_wgmma),
    MMA_SYNC.instructions: Chooser(figures=_mma_sync),
}
"""The `Chooser` of each lowering, by the lowering's instructions (`Lowering.instructions`)."""


def register_choosers(choosers: Mapping[str, Chooser]) -> None:
    """Register choosers of plans for lowerings, by `Lowering.instructions`."""
    _CHOOSERS.update(choosers)


def chooser_of(instructions: str) -> Chooser:
    """The chooser of a lowering; if none is registered, a chooser that uses a fixed rule.

    Args:
        instructions: the lowering's `Lowering.instructions`, such as `wgmma`.
    """
    return _CHOOSERS.get(instructions, Chooser())


def modelled() -> tuple[str, ...]:
    """Names of architectures whose plans a cost model ranks, also on machines without a GPU."""
    return tuple(
        found.name
        for found in ARCHITECTURES.values()
        if any(chooser_of(lowering.instructions).model for lowering in found.lowerings)
    )
