"""`codegen.matmul` by PyTorch custom operators: for gradients, and inside `torch.compile`."""

from __future__ import annotations

from typing import Any

import torch

import codegen.call.matmul
from codegen.torch.functions import addmm, matmul
from coordgraph import LaunchError

__all__ = ["matmul_by_operators"]


def matmul_by_operators(
    a: Any,
    b: Any,
    c: Any,
    alpha: float,
    beta: float,
    transpose_a: bool,
    transpose_b: bool,
    invariant: bool = False,
) -> Any:
    """`alpha·A·B + beta·C` of tensors.

    For a batch, PyTorch multiplies by alpha and adds C after the product, which is then rounded
    before each of these.

    Args:
        a, b, c: A and B (matrices or batches), and C or None.
        alpha, beta: the factors of A·B and of C.
        transpose_a, transpose_b: whether to transpose each matrix of `a` and of `b` first.
        invariant: whether the bits of a row of the result must not depend on the other rows.

    Raises:
        LaunchError, CodegenError: the tensors do not fit, or kernels do not multiply their type, as
            for `codegen.matmul`; or `beta` is not 0 and `c` is missing.
    """
    if beta != 0 and c is None:
        raise LaunchError(f"beta = {beta} multiplies c, but c is missing; pass c or beta=0")
    a = a.mT if transpose_a else a
    b = b.mT if transpose_b else b
    if (beta != 0 or alpha != 1) and a.dim() == b.dim() == 2:
        c = c if beta != 0 else a.new_empty(b.shape[1])  # with a beta of 0, C is not read
        return addmm(c, a, b, beta=beta, alpha=alpha, invariant=invariant)
    product = matmul(a, b, invariant=invariant)
    product = product if alpha == 1 else product * alpha
    return product if beta == 0 else product + c * beta


@torch.compiler.substitute_in_graph(codegen.call.matmul.matmul)
def _matmul(
    a: Any,
    b: Any,
    c: Any = None,
    out: Any = None,
    alpha: float = 1.0,
    beta: float | None = None,
    *,
    transpose_a: bool = False,
    transpose_b: bool = False,
    stream: Any = None,
    tune: bool = False,
    plan: Any = None,
    invariant: bool = False,
    background: Any = None,
    epilogue: Any = None,
    rows: Any = None,
    targets: Any = None,
    parts: str = "stacked",
    **operands: Any,
) -> Any:
    """What `torch.compile` traces for a call of `codegen.matmul`.

    An error makes `torch.compile` run the call outside of the graph, or fail with `fullgraph=True`.
    """
    given = (out, stream, plan, background, epilogue, rows, targets)
    if tune or parts != "stacked" or any(option is not None for option in given):
        raise LaunchError(
            "inside torch.compile, matmul takes neither out, stream, tune, plan, background, "
            "epilogue, rows, targets nor parts; leave them out, or call matmul outside of the "
            "compiled function"
        )
    beta = beta if beta is not None else float(c is not None)
    return matmul_by_operators(a, b, c, alpha, beta, transpose_a, transpose_b, invariant)
