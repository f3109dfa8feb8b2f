"""`Linear`, and `replace_linears`, which makes the linear layers of a model use it."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from codegen.torch.functions import linear

__all__ = ["Linear", "replace_linears"]


class Linear(torch.nn.Linear):
    """`torch.nn.Linear` whose product is computed by `codegen.torch.linear`.

    It has the parameters, the initialization and the `state_dict` of `torch.nn.Linear`.
    """

    def forward(self, input: Tensor) -> Tensor:
        """`input·weightᵀ + bias`, for an input (…, in_features)."""
        return linear(input, self.weight, self.bias)


def replace_linears(
    model: torch.nn.Module, where: Callable[[str, torch.nn.Linear], bool] | None = None
) -> list[str]:
    """Make the linear layers of a model use `codegen.torch.linear`, in place.

    Only the class of each layer changes, from `torch.nn.Linear` to `Linear`: parameters, hooks,
    the `state_dict` and references to the layer stay valid. Layers of a subclass of
    `torch.nn.Linear` are left as they are. Call it before `torch.compile`.

    Args:
        model: the model, which may itself be a linear layer.
        where: called with the name and the layer; a layer for which it is false is left as it is.

    Returns:
        The names of the replaced layers, as in `model.named_modules()`.
    """
    replaced = list[str]()
    for name, layer in model.named_modules():
        if type(layer) is torch.nn.Linear and (where is None or where(name, layer)):
            layer.__class__ = Linear
            replaced.append(name)
    return replaced
