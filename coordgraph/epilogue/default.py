"""The default epilogue of a matrix product: `alpha·acc + beta·C`."""

from __future__ import annotations

from coordgraph.epilogue.operand import operand
from coordgraph.epilogue.operations import add, mul
from coordgraph.epilogue.trace import epilogue
from coordgraph.epilogue.values import Value

__all__ = ["ALPHA_BETA"]


@epilogue(alpha="", beta="", c=operand("lmn", optional=True, summed=True))
def alpha_beta(acc: Value, alpha: Value, beta: Value, c: Value) -> Value:
    """The epilogue `alpha·acc + beta·C`, as in BLAS.

    C is read only if the call passes C and beta is not 0.
    """
    return add(mul(acc, alpha), mul(c, beta))


ALPHA_BETA = alpha_beta
"""The default epilogue of `Gemm`: `alpha·acc + beta·C`."""
