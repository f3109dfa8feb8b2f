"""How plans are chosen for each lowering: by the cost model, or by a fixed rule without a model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache

from coordgraph import Gemm
from coordgraph.tensors import dtype
from passes.choosing.candidates import fallback
from passes.choosing.constants import Constants, constants_of
from passes.choosing.fixed_rules import instructions_plan
from passes.choosing.plan import Plan
from passes.lowering import WGMMA
from passes.lowering.architectures import ARCHITECTURES

__all__ = ["Chooser", "chooser_of", "modelled", "register_choosers"]

Rule = Callable[[int, int, int, int, int, int], Plan]
"""Returns a plan for m, n, k, the number of SMs, the number of products, and the elements of A and
B in 128 bytes, from which the k of a tile is derived."""
Model = Callable[[Gemm, str, int], Constants | None]
"""Returns the cost model's constants for a problem, a GPU's name and its number of SMs; None if the
model does not cover them."""


@dataclass(frozen=True)
class Chooser:
    """How plans are chosen for a lowering.

    Args:
        rule: makes a plan without a model. It is used if there is no model, or if none of the plans
            that the model ranks can be built.
        model: makes the constants by which `passes.choosing.rank` ranks plans; None for no model.
    """

    rule: Rule = instructions_plan
    model: Model | None = None


@cache
def _has_code(gemm: Gemm) -> bool:
    """Whether the lowering of the cost model (wgmma) takes these element types and layouts."""
    return fallback(row=dtype(gemm.dtype).row).why_not(gemm) is None


def _wgmma(gemm: Gemm, device: str, processors: int) -> Constants | None:
    any_size = replace(gemm, m=None, n=None, k=None)
    return constants_of(device, processors) if _has_code(any_size) else None


_CHOOSERS = {WGMMA.instructions: Chooser(model=_wgmma)}


def register_choosers(choosers: Mapping[str, Chooser]) -> None:
    """Register how plans are chosen for lowerings, by `Lowering.instructions`."""
    _CHOOSERS.update(choosers)


def chooser_of(instructions: str) -> Chooser:
    """The chooser of a lowering, by its instructions; a fixed rule if none was registered."""
    return _CHOOSERS.get(instructions, Chooser())


def modelled() -> tuple[str, ...]:
    """The architectures with a cost model, which can rank plans without a GPU."""
    return tuple(
        found.name
        for found in ARCHITECTURES.values()
        if any(chooser_of(lowering.instructions).model for lowering in found.lowerings)
    )
