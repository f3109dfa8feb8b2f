"""`quick_key`: a cache key of a product with an epilogue that costs little host time to make."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

from codegen.call.describe import ALIGNED
from codegen.call.gradients import recorded
from coordgraph.epilogue import EpilogueFunction

__all__ = ["quick_key"]

NUMBERS = (float, int)
"""The types that alpha, beta and other numbers of a call may have, for a key by `quick_key`."""


def quick_key(
    epilogue: EpilogueFunction,
    matrices: Mapping[str, Any],
    factors: tuple[Any, Any],
    operands: Mapping[str, Any],
    tables: Mapping[str, Any],
    offsets: Any,
    options: Mapping[str, Any],
) -> Hashable:
    """A key that is equal for calls with the same checks and the same launch, or None.

    The key is made of attributes of PyTorch's tensors, and of the identity of the epilogue, because
    hashing the epilogue takes longer. The result is None for arrays of other libraries, with
    `tune=True`, for epilogues that reduce rows, and if an operand requires a gradient.

    Args:
        epilogue: the epilogue.
        matrices: A, B, C and D; None for a matrix that the call leaves out.
        factors: alpha and beta.
        operands: further operands and outputs of the epilogue, by name.
        tables: the arguments `rows` and `targets`; None for one that the call leaves out.
        offsets: the offsets of groups, or None.
        options: the other options of the call, by name.
    """
    alpha, beta = factors
    if options.get("tune") or type(alpha) not in NUMBERS:
        return None
    key: list[Hashable] = [id(epilogue), alpha == 1, beta == 0, *options.values(), *operands]
    gradient = False
    try:
        for x in (*matrices.values(), offsets, *tables.values(), *operands.values()):
            if x is None or type(x) in NUMBERS:
                key.append(type(x))
            else:
                key += x.shape, x.stride(), x.dtype, x.device, x.data_ptr() & ALIGNED
                gradient = gradient or x.requires_grad
        made = tuple(key)
        hash(made)
    except (AttributeError, RuntimeError, TypeError):
        return None
    for output in epilogue.outputs:
        if output.reduce:
            return None
    return None if gradient and recorded() else made
