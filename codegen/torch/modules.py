"""`Linear`, `SwiGLU`, and `replace_linears`, which makes a model's linear layers use kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from codegen.torch.functions import linear
from codegen.torch.gated import swiglu

__all__ = ["Linear", "SwiGLU", "replace_linears"]


class Linear(torch.nn.Linear):
    """`torch.nn.Linear` whose product is computed by `codegen.torch.linear`.

    It has the parameters, the initialization and the `state_dict` of `torch.nn.Linear`.
    """

    def forward(self, input: Tensor) -> Tensor:
        """`input·weightᵀ + bias`, for an input (…, in_features)."""
        return linear(input, self.weight, self.bias)


class SwiGLU(torch.nn.Module):
    """The feed-forward layer of Llama and Qwen: `down(silu(gate(x)) * up(x))`.

    One product computes `gate(x)` and `up(x)`: their weights are one parameter, `gate_up.weight`,
    with the rows of `gate` first. Without gradients, as under `torch.no_grad()`, the kernel of this
    product also computes `silu(gate) * up`; see `codegen.torch.swiglu`. With gradients, PyTorch
    computes `silu(gate) * up` after the product, under `torch.compile` in one kernel.

    A `state_dict` with `gate_proj.weight`, `up_proj.weight` and `down_proj.weight`, the names of
    Hugging Face's models, can be loaded, and so can biases of these names.

    Args:
        dim: extent of the input and of the result.
        hidden: extent of `gate(x)` and of `up(x)`.
        bias: whether the three products have a bias.
        device, dtype: device and type of the parameters, as for `torch.nn.Linear`.
    """

    def __init__(
        self, dim: int, hidden: int, bias: bool = False, device: Any = None, dtype: Any = None
    ) -> None:
        super().__init__()
        self.gate_up = Linear(dim, 2 * hidden, bias=bias, device=device, dtype=dtype)
        self.down = Linear(hidden, dim, bias=bias, device=device, dtype=dtype)
        self.register_load_state_dict_pre_hook(_join_projections)

    def forward(self, input: Tensor) -> Tensor:
        """The layer's result (…, dim), for an input (…, dim)."""
        return self.down(swiglu(input, self.gate_up.weight, self.gate_up.bias))


def _join_projections(
    layer: torch.nn.Module, state: dict[str, Any], prefix: str, *unused: Any
) -> None:
    """Rename weights in a Hugging Face model's `state_dict`; join the gate and up weights."""
    for kind in ("weight", "bias"):
        gate, up, down = (f"{prefix}{name}_proj.{kind}" for name in ("gate", "up", "down"))
        if gate in state and up in state:
            state[f"{prefix}gate_up.{kind}"] = torch.cat([state.pop(gate), state.pop(up)])
        if down in state:
            state[f"{prefix}down.{kind}"] = state.pop(down)


def replace_linears(
    model: torch.nn.Module, where: Callable[[str, torch.nn.Linear], bool] | None = None
) -> list[str]:
    """Make the linear layers of a model use `codegen.torch.linear`, in place.

    Only the class of each layer changes, from `torch.nn.Linear` to `Linear`: parameters, hooks,
    the `state_dict` and references to the layer stay valid. Layers of a subclass of
    `torch.nn.Linear` are not changed. Call this function before `torch.compile`.

    Args:
        model: the model, which may itself be a linear layer.
        where: a function of a layer's name and the layer, which returns whether to replace the
            layer; None replaces all.

    Returns:
        The names of the replaced layers, as in `model.named_modules()`.
    """
    replaced = list[str]()
    for name, layer in model.named_modules():
        if type(layer) is torch.nn.Linear and (where is None or where(name, layer)):
            layer.__class__ = Linear
            replaced.append(name)
    return replaced
