"""What measures of gated layers share: the activation, and how results are compared."""

from __future__ import annotations

from typing import Any

from coordgraph import epilogue as ep

__all__ = ["CHECKED", "fault_of", "swiglu"]

CHECKED, BOUND = 16, 3e-2
"""CHECKED: number of tokens whose outputs are compared with a product in f32. BOUND: the largest
error of an output, as a fraction of the largest output."""


@ep.epilogue()
def swiglu(gate: Any, up: Any) -> Any:
    """The gated activation of a feed-forward layer."""
    return ep.silu(gate) * up


def fault_of(found: Any, exact: Any) -> str | None:
    """What is wrong with the outputs `found`, compared with `exact`; None if they are right."""
    error = float((found - exact).abs().max() / exact.abs().max())
    return None if error <= BOUND else f"the largest error is {error:.3g} of the largest output"
