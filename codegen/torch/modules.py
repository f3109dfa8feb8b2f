"""Layers that use kernels, and `replace_linears`, which makes linear layers of a model use them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from codegen.torch.activations import ACTIVATIONS
from codegen.torch.functions import linear
from codegen.torch.gated import gated
from coordgraph import LaunchError
from coordgraph.validation import flag

__all__ = ["GeGLU", "Linear", "ReGLU", "SwiGLU", "replace_linears"]

# `torch.fx.symbolic_trace` records calls of these functions here; it does not trace inside them.
for _function in ("gated", "linear"):
    torch.fx.wrap(_function)


class Linear(torch.nn.Linear):
    """`torch.nn.Linear` whose product is computed by `codegen.torch.linear`.

    The layer has the parameters, the initialization and the `state_dict` of `torch.nn.Linear`.
    """

    def forward(self, input: Tensor) -> Tensor:
        """`input·weightᵀ + bias`, for an input (…, in_features)."""
        return linear(input, self.weight, self.bias)


class _GateUp(Linear):
    """The layer `gate_up` of `SwiGLU`: a linear layer that can also apply the activation."""

    def forward(
        self, input: Tensor, activation: str | None = None, recompute: bool = False
    ) -> Tensor:
        """The sums of gate and up (…, 2·hidden), or `act(gate) * up` (…, hidden).

        Args:
            input: (…, dim).
            activation: None for the sums, or the name of `act`, as for `codegen.torch.gated`.
            recompute: as for `codegen.torch.gated`.
        """
        if activation is None:
            return super().forward(input)
        options: Any = {"activation": activation, "recompute": recompute}
        return gated(input, self.weight, self.bias, **options)


class SwiGLU(torch.nn.Module):
    """The feed-forward layer of Llama and Qwen: `down(silu(gate(x)) * up(x))`.

    One product computes `gate(x)` and `up(x)`: their weights are one parameter, `gate_up.weight`,
    with the rows of `gate` first. The kernel of this product also computes `silu(gate) * up`; see
    `codegen.torch.gated`.

    `gate_up` is called as a module, so its hooks, pruning and parametrizations have effect. Its
    forward hooks get `silu(gate) * up` as its result. Another module may replace `gate_up`, such as
    a wrapper that adds an adapter to its result: it is called with the input, must return gate and
    up side by side (…, 2·hidden), and PyTorch's functions apply the activation.

    A `state_dict` with `gate_proj.weight`, `up_proj.weight` and `down_proj.weight`, the names of
    Hugging Face's models, can be loaded, and so can biases of these names.

    Args:
        dim: extent of the input and of the result.
        hidden: extent of `gate(x)` and of `up(x)`.
        bias: whether the three products have a bias.
        device, dtype: device and type of the parameters, as for `torch.nn.Linear`.
        recompute: whether the backward pass computes `gate(x)` and `up(x)` again, so that they are
            not stored, as for `codegen.torch.gated`.

    Raises:
        LaunchError: `recompute` is neither True nor False.
    """

    activation = "silu"

    def __init__(
        self,
        dim: int,
        hidden: int,
        bias: bool = False,
        device: Any = None,
        dtype: Any = None,
        *,
        recompute: bool = False,
    ) -> None:
        super().__init__()
        self.recompute = flag(recompute, "recompute", LaunchError)
        self.gate_up = _GateUp(dim, 2 * hidden, bias=bias, device=device, dtype=dtype)
        self.down = Linear(hidden, dim, bias=bias, device=device, dtype=dtype)
        self.register_load_state_dict_pre_hook(_join_projections)

    def forward(self, input: Tensor) -> Tensor:
        """The layer's result (…, dim), for an input (…, dim)."""
        layer: torch.nn.Module = self.gate_up
        if isinstance(layer, _GateUp):
            options: Any = {"activation": self.activation, "recompute": self.recompute}
            return self.down(layer(input, **options))
        gate, up = layer(input).chunk(2, -1)
        return self.down(ACTIVATIONS[self.activation].torch_value(gate) * up)


class GeGLU(SwiGLU):
    """The feed-forward layer of Gemma: `down(gelu(gate(x)) * up(x))`.

    The GELU is approximated by the hyperbolic tangent. The parameters of the layer, the arguments
    and the names in a `state_dict` are those of `SwiGLU`.
    """

    activation = "gelu_tanh"


class ReGLU(SwiGLU):
    """A feed-forward layer `down(relu(gate(x)) * up(x))`, otherwise like `SwiGLU`.

    The parameters of the layer, the arguments and the names in a `state_dict` are the same.
    """

    activation = "relu"


def _join_projections(
    layer: torch.nn.Module, state: dict[str, Any], prefix: str, *rest: Any
) -> None:
    """Rename weights in a Hugging Face model's `state_dict`; join the gate and up weights.

    If only one of gate and up is present, as in one of several files of a model, the other half of
    the parameter stays as it is, and the missing name is added to those that `load_state_dict`
    reports.

    Weights that cannot be joined are left in `state`, and a message is added to the errors that
    `load_state_dict` reports, the last of its arguments.
    """
    for kind in ("weight", "bias"):
        gate, up, down = (f"{prefix}{name}_proj.{kind}" for name in ("gate", "up", "down"))
        given = {name: state[name] for name in (gate, up) if name in state}
        fault = _fault(given)
        if fault:
            rest[-1].append(fault)
        elif len(given) == 2:
            first, second = state.pop(gate), state.pop(up)
            state[f"{prefix}gate_up.{kind}"] = torch.cat([first, second.to(first.device)])
        elif given and f"{prefix}gate_up.{kind}" not in state:
            _fill_half(layer, state, prefix, kind, rest[2], rest[-1])
        if down in state:
            state[f"{prefix}down.{kind}"] = state.pop(down)


def _fault(given: dict[str, Any]) -> str:
    """The reason why weights of gate and up cannot be joined; '' if they can.

    Args:
        given: the weights, by their names in a `state_dict`.
    """
    for name, x in given.items():
        if not isinstance(x, Tensor):
            return f"{name} is a {type(x).__name__}, but a tensor is needed; load a tensor"
    shapes = {name: tuple(x.shape) for name, x in given.items()}
    if len({*shapes.values()}) == 2:
        gate, up = (f"{name} is {shape}" for name, shape in shapes.items())
        return f"{gate}, but {up}; load weights of equal shape"
    without = [name for name, x in given.items() if x.is_meta]
    if len(given) == 2 and len(without) == 1:
        return f"{without[0]} has no memory (it lies on 'meta'); load weights that both have memory"
    return ""


def _fill_half(
    layer: torch.nn.Module,
    state: dict[str, Any],
    prefix: str,
    kind: str,
    missing: list[str],
    errors: list[str],
) -> None:
    """Join the gate or up weights of a `state_dict` with the other half of the layer's parameter.

    Args:
        layer: the `SwiGLU`. If its `gate_up` has no parameter `kind`, nothing is changed.
        state, prefix: the `state_dict`, and what its names begin with.
        kind: `weight` or `bias`.
        missing: gets the name that the `state_dict` lacks.
        errors: gets a message if the weights do not fit the half of the parameter.
    """
    parameter = dict(layer.named_parameters()).get(f"gate_up.{kind}")
    if parameter is None:
        return
    names = [f"{prefix}{name}_proj.{kind}" for name in ("gate", "up")]
    index = int(names[1] in state)
    given = state[names[index]]
    # A copy, because `load_state_dict` may keep the tensor as the parameter.
    joined = parameter.detach().clone()
    half = joined.chunk(2)[index]
    if given.shape != half.shape:
        errors.append(
            f"{names[index]} is {tuple(given.shape)}, but {tuple(half.shape)} is needed; load "
            "weights of a layer with these extents"
        )
    elif parameter.is_meta and not given.is_meta:
        errors.append(
            f"gate_up.{kind} has no memory, so {names[index]} cannot be loaded into a half of it; "
            f"load it together with {names[1 - index]}, or call to_empty(device=…) before"
        )
    else:
        half.copy_(given.detach())
        state[f"{prefix}gate_up.{kind}"] = joined
        del state[names[index]]
        missing.append(names[1 - index])


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

    Raises:
        LaunchError: `model` is no module, or `where` no function; no layer was replaced.
    """
    given: tuple[Any, Any] = model, where
    if not isinstance(given[0], torch.nn.Module):
        raise LaunchError(
            f"model is a {type(model).__name__}, but a torch.nn.Module is needed; pass a model or "
            "a layer, or several of them as torch.nn.ModuleList([…])"
        )
    if where is not None and not callable(given[1]):
        raise LaunchError(
            f"where = {where!r} is no function; pass a function of a layer's name and the layer, "
            'as lambda name, layer: name != "head"'
        )
    replaced = list[str]()
    for name, layer in model.named_modules():
        if type(layer) is torch.nn.Linear and (where is None or where(name, layer)):
            layer.__class__ = Linear
            replaced.append(name)
    return replaced
