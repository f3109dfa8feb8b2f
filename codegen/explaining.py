"""`explain`: why `matmul` multiplies as it does."""

from __future__ import annotations

from coordgraph import Gemm
from passes.choosing import Constants, Explanation, constants_of
from passes.choosing import explain as explain_plans

__all__ = ["explain", "figures"]

HOPPER = "sm_90a"


def explain(
    m: int,
    n: int,
    k: int,
    dtype: str = "bf16",
    out_dtype: str | None = None,
    *,
    transpose_a: bool = False,
    transpose_b: bool = False,
    device: str | None = None,
    count: int = 8,
) -> Explanation:
    """The plans that `matmul` prefers for a problem, what each should take, and why.

    Args:
        m, n, k: the problem, D (m x n) = A (m x k) · B (k x n).
        dtype, out_dtype: of A and B, and of D.
        transpose_a, transpose_b: the array holds the transpose.
        device: a GPU's name; by default the Hopper GPU here, or else the one that was measured.
        count: plans to list.

    Raises:
        VerifyError: a size or type is none.
    """
    problem = Gemm(dtype, out_dtype, m, n, k, transpose_a, transpose_b)
    return explain_plans(problem, figures(device), count)


def figures(name: str | None) -> Constants:
    """The constants of a GPU by name, or of the one here."""
    if name is not None:
        return constants_of(name)
    from codegen.nvptx.driver import device, unavailable

    if unavailable() is None and device(0).architecture == HOPPER:
        return constants_of(device(0).name, device(0).processors)
    return constants_of()
