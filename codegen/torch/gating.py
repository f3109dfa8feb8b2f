"""The operators of `codegen.torch.gated` on real (not fake) tensors: each launches a kernel."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from codegen.torch.activations import OF_UP, SUMS, gated, gradient, gradient_of_sums
from codegen.torch.grouped import starts_of
from codegen.torch.launching import has_rows, launch, launch_groups
from codegen.torch.repeats import uninitialized
from coordgraph.epilogue import EpilogueFunction

__all__ = ["differentiate", "differentiate_product", "multiply_and_gate"]


def multiply_and_gate(
    a: Tensor,
    b: Tensor,
    bias: Tensor | None,
    activation: str,
    ends: Tensor | None,
    sums: Tensor | None = None,
    *,
    invariant: bool = False,
) -> Tensor:
    """`act(gate)·up` as a new tensor; gate and up are the left and right half of `A·B + bias`.

    Args:
        a, b: A and B, two matrices or two batches of matrices; with `ends` a matrix, and a matrix
            for each group of its rows.
        bias: an element for each column of B, also one such row for each matrix of a batch or for
            each group; or None.
        activation: the name of `act`.
        ends: i32, the end of each group of rows of A; None for products without groups.
        sums: a contiguous tensor that receives `A·B + bias`, or None. Rows of no group are not
            written.
        invariant: whether the bits of a row of the result must not depend on the other rows, as for
            `codegen.matmul`.
    """
    stored: dict[str, Any] = {} if sums is None else dict(zip(SUMS, sums.chunk(2, -1), strict=True))
    epilogue = gated(activation, biased=bias is not None, kept=sums is not None)
    return _launch(a, b, ends, epilogue, invariant, **_biases(bias, b), **stored)


def differentiate_product(
    grad: Tensor,
    a: Tensor,
    b: Tensor,
    bias: Tensor | None,
    activation: str,
    ends: Tensor | None,
    *,
    invariant: bool,
) -> Tensor:
    """The gradient of `A·B + bias`, given the gradient of `act(gate)·up`.

    The kernel computes `A·B + bias` again.

    Args:
        grad: the gradient of `act(gate)·up`.
        a, b, bias, activation, ends, invariant: A, B, the bias or None, the name of `act`, the ends
            of groups or None, and whether the bits of a row must not depend on the other rows, as
            for `multiply_and_gate`.
    """
    shape = (*a.shape[:-1], b.shape[-1])
    found = uninitialized(a, shape, None) if ends is None else a.new_zeros(shape)
    of_gate, of_up = found.chunk(2, -1)
    epilogue = gradient(activation, biased=bias is not None)
    given: dict[str, Any] = {"grad": _with_rows(grad), OF_UP: of_up, **_biases(bias, b)}
    _launch(a, b, ends, epilogue, invariant, of_gate, **given)
    return found


def differentiate(grad: Tensor, sums: Tensor, activation: str) -> Tensor:
    """The gradient of `sums`, given the gradient of `act(gate)·up`.

    The kernel is that of a product with k = 0, so the epilogue does all the work.

    Args:
        grad: the gradient of `act(gate)·up` (…, n).
        sums: (…, 2n): gate in the first n columns, up in the last n columns.
        activation: the name of `act`.
    """
    found = uninitialized(sums, tuple(sums.shape), None)
    of_gate, of_up = found.flatten(0, -2).chunk(2, -1)
    gate, up = _with_rows(sums.flatten(0, -2)).chunk(2, -1)
    grad = _with_rows(grad.flatten(0, -2))
    m, n = grad.shape
    given: dict[str, Any] = {"gate": gate, "up": up, "grad": grad, OF_UP: of_up}
    a, b = sums.new_empty((m, 0)), sums.new_empty((0, n))
    launch(a, b, epilogue=gradient_of_sums(activation), out=of_gate, **given)
    return found


def _launch(
    a: Tensor,
    b: Tensor,
    ends: Tensor | None,
    epilogue: EpilogueFunction,
    invariant: bool,
    out: Tensor | None = None,
    **operands: Any,
) -> Tensor:
    """D of a product, or of all groups; rows of no group are not written, and 0 in a new tensor."""
    options: Any = {"epilogue": epilogue, "invariant": invariant, **operands}
    if ends is None:
        return launch(a, b, out=out, **options)
    d = a.new_zeros(a.shape[0], b.shape[-1] // 2) if out is None else out
    launch_groups(a, b, starts_of(ends, a.shape[0]), d, **options)
    return d


def _biases(bias: Tensor | None, b: Tensor) -> dict[str, Any]:
    """The epilogue's bias operands by name: of the gate and of up, a row for each matrix of B."""
    if bias is None:
        return {}
    parts = [part.expand(*b.shape[:-2], -1).contiguous() for part in bias.chunk(2, -1)]
    return dict(zip(("gate_bias", "up_bias"), parts, strict=True))


def _with_rows(tensor: Tensor) -> Tensor:
    """The tensor; a contiguous copy if a row's elements are not adjacent, or if rows overlap."""
    return tensor if has_rows(tensor) else tensor.contiguous()
