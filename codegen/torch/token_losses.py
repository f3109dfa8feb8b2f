"""Losses of logits that are not stored, and their gradients.

The functions launch kernels, so they take real tensors, not the fake tensors of PyTorch's tracing.
The logits are `hidden·weightᵀ`, with a row for each token and a column for each class. The epilogue
of this product reduces each row, and D, the logits, is not stored.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor

from codegen.call.matmul import matmul
from codegen.torch.host import copied, on_host
from codegen.torch.launching import launch, readable
from coordgraph import LaunchError
from coordgraph import epilogue as ep
from coordgraph.epilogue import EpilogueFunction

__all__ = ["kind_of_losses", "token_loss_gradients", "token_losses"]

BLOCK = 1 << 27
"""Largest number of logits whose gradients are stored at a time: 256 MiB of 16-bit elements. With
many tokens there may be more logits, because a block has at least `COLUMNS` columns."""
COLUMNS = 256
"""A block of logits whose gradients are stored at a time has a multiple of this number of columns,
so that its rows are aligned to 16 bytes. Only the last block may have another number."""
PINNED_CLASSES = 16 * COLUMNS
"""Number of classes in each block of the backward pass of `cross_entropy(…, invariant=True)`."""


def kind_of_losses(hidden: Tensor) -> torch.dtype:
    """The element type in which logits are computed and losses are returned."""
    return torch.float64 if hidden.dtype is torch.float64 else torch.float32


@cache
def _loss(kind: str) -> EpilogueFunction:
    """The epilogue that outputs the logsumexp of each row of logits, and the logit of its target.

    Args:
        kind: the element type of the sums of products.
    """
    totals, picked = ep.output("m", kind, reduce="logsumexp"), ep.output("m", kind, reduce="sum")
    rows = ep.operand("m", "i32")

    @ep.epilogue(target=rows, column=ep.index("n"), totals=totals, picked=picked)
    def loss(acc: Any, target: Any, column: Any) -> Any:
        here = ep.compare(column, target, relation="==")
        return None, acc, ep.where(here, acc, 0.0)

    return loss


@cache
def _gradient(kind: str) -> EpilogueFunction:
    """The epilogue whose D is the gradient of each logit.

    The gradient is `scale·(exp(logit - total) - (column == target))`, where `total` is the
    logsumexp of the row of logits, and `scale` the gradient of the token's loss (0 if ignored). The
    columns may be a block of the classes; `target` is then counted from the block's first class.

    Args:
        kind: the element type of the sums of products.
    """
    rows, numbers = ep.operand("m", "i32"), ep.operand("m", kind)

    @ep.epilogue(target=rows, column=ep.index("n"), total=numbers, scale=numbers)
    def logit_gradient(acc: Any, target: Any, column: Any, total: Any, scale: Any) -> Any:
        here = ep.compare(column, target, relation="==")
        share = ep.exp(acc - total)
        return ep.where(here, share - 1.0, share) * scale

    return logit_gradient


def _kind(hidden: Tensor) -> str:
    return "f64" if hidden.dtype is torch.float64 else "f32"


def token_losses(
    hidden: Tensor, weight: Tensor, targets: Tensor, ignore_index: int, *, invariant: bool = False
) -> tuple[Tensor, Tensor]:
    """The cross entropy of each token, and the logsumexp of its logits.

    Args:
        hidden: (tokens, k).
        weight: (classes, k).
        targets: (tokens), the class of each token. On a GPU, a target that is no class gives NaN.
        ignore_index: the target of tokens whose loss is 0.
        invariant: whether the bits of a token's loss must not depend on the other tokens.

    Raises:
        LaunchError: on the CPU, a target is neither a class nor `ignore_index`.
    """
    kept, classes = targets.ne(ignore_index), weight.shape[0]
    outside = kept & (targets.lt(0) | targets.ge(classes))
    if not hidden.is_cuda and bool(outside.any()):
        raise LaunchError(
            f"the target {targets[outside][0].item()} is neither ignore_index = {ignore_index} "
            f"nor a class, 0 to {classes - 1}; correct the target"
        )
    a, b = readable(hidden, by_rows=invariant), readable(weight.t())
    given: dict[str, Any] = {"target": _narrow(targets)}
    options: Any = {"epilogue": _loss(_kind(hidden)), "invariant": invariant}
    if hidden.is_cuda:
        _, totals, picked = matmul(a, b, **options, **given)
    else:
        arrays: Any = {name: on_host(tensor) for name, tensor in given.items()}
        found = matmul(on_host(a), on_host(b), **options, **arrays)
        totals, picked = map(copied, found[1:])
    losses = torch.where(kept, totals - picked, 0.0)
    return losses.masked_fill_(outside, float("nan")) if hidden.is_cuda else losses, totals


def token_loss_gradients(
    grad: Tensor,
    totals: Tensor,
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    ignore_index: int,
    needs: tuple[bool, bool],
    *,
    invariant: bool = False,
) -> tuple[Tensor | None, Tensor | None]:
    """The gradients of `hidden` and `weight`, given the gradients of the losses.

    The gradients of the logits are computed for all tokens and a block of classes at a time. So
    each row of the gradient of `weight` is one sum over all tokens. The gradient of `hidden` is
    added up over the blocks of classes, in the element type `kind_of_losses(hidden)`.

    Args:
        grad: (tokens), the gradients of the losses.
        totals: (tokens), the logsumexp of each token's logits.
        hidden, weight, targets, ignore_index: the rows of the tokens, the weight of the linear
            layer, the classes of the tokens, and the target of ignored tokens, as for
            `token_losses`.
        needs: for `hidden` and for `weight`, whether to compute the gradient.
        invariant: whether the bits of a row of the gradient of `hidden` must not depend on the
            other tokens. Then the number of classes in a block does not depend on the tokens.
    """
    kind = kind_of_losses(hidden)
    scale = torch.where(targets.ne(ignore_index), grad.to(kind), 0.0).contiguous()
    target = _narrow(targets)
    rows: dict[str, Any] = {"total": totals.contiguous(), "scale": scale}
    tokens, classes = hidden.shape[0], weight.shape[0]
    step = PINNED_CLASSES if invariant else _step(tokens, classes)
    same: Any = {"invariant": invariant}
    memory = hidden.new_empty(tokens * min(step, classes))
    of_weight = weight.new_empty(weight.shape) if needs[1] else None
    of_hidden = None
    for first in range(0, classes, step):
        part = weight[first : first + step]
        count = part.shape[0]
        block = memory[: tokens * count].view(tokens, count)
        rows["target"] = torch.sub(target, first) if first else target
        launch(hidden, part.t(), epilogue=_gradient(_kind(hidden)), out=block, **rows, **same)
        if of_weight is not None:
            launch(block.t(), hidden, out=of_weight[first : first + count])
        if not needs[0]:
            continue
        if of_hidden is None:
            last = step >= classes
            of_hidden = hidden.new_empty(hidden.shape, dtype=hidden.dtype if last else kind)
            launch(block, part, out=of_hidden, **same)
        else:
            launch(block, part, beta=1.0, c=of_hidden, out=of_hidden, **same)
    if needs[0]:
        of_hidden = torch.zeros_like(hidden) if of_hidden is None else of_hidden.to(hidden.dtype)
    return of_hidden, of_weight


def _step(tokens: int, classes: int) -> int:
    """Number of classes in each block of classes; the last block may have fewer."""
    most = max(BLOCK // max(tokens, 1) // COLUMNS, 1) * COLUMNS
    blocks = max(-(-classes // most), 1)
    return max(-(-classes // blocks // COLUMNS), 1) * COLUMNS


def _narrow(targets: Tensor) -> Tensor:
    """The targets as a contiguous i32 tensor, which kernels read."""
    return targets.to(torch.int32).contiguous()
