"""Activations of gated products: epilogue functions of `act(gate)·up` and of its gradient.

`SwiGLU` is `act = silu`, `GeGLU` is `act = gelu`, `ReGLU` is `act = relu`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from math import pi, sqrt
from typing import Any

import torch
from torch import Tensor

from coordgraph import LaunchError
from coordgraph import epilogue as ep
from coordgraph.epilogue import EpilogueFunction
from coordgraph.epilogue.operations.gelu import CUBE

__all__ = [
    "ACTIVATIONS",
    "OF_UP",
    "SUMS",
    "check_activation",
    "gated",
    "gradient",
    "gradient_of_sums",
]

SUMS = ("gate_sums", "up_sums")
"""Names of the outputs in which the epilogue `gated(…, kept=True)` stores gate and up."""
OF_UP = "of_up"
"""Name of the output in which the epilogue `gradient` stores the gradient of up. It stores the
gradient of gate in D."""
BIASES = {"gate_bias": "ln", "up_bias": "ln"}


@dataclass(frozen=True)
class Activation:
    """An activation function `act` of gated products `act(gate)·up`, with its derivative.

    Args:
        value: `act(x)` of a traced value x.
        gradient: `(g·act'(x), act(x))` of traced values g and x.
        torch_value: `act(x)` of a tensor.
        torch_gradient: `g·act'(x)` of tensors g and x.
    """

    value: Callable[[Any], Any]
    gradient: Callable[[Any, Any], tuple[Any, Any]]
    torch_value: Callable[[Tensor], Tensor]
    torch_gradient: Callable[[Tensor, Tensor], Tensor]


def _silu(g: Any, x: Any) -> tuple[Any, Any]:
    share = ep.sigmoid(x)
    return g * (share * (1 + x * (1 - share))), x * share


def _gelu(g: Any, x: Any) -> tuple[Any, Any]:
    below = 0.5 * ep.erf(x * sqrt(0.5)) + 0.5  # the probability that a normal variable is below x
    density = ep.exp(x * x * -0.5) * (1 / sqrt(2 * pi))
    return g * (below + x * density), x * below


def _gelu_tanh(g: Any, x: Any) -> tuple[Any, Any]:
    scale = sqrt(2 / pi)
    inner = ep.tanh(x * (x * x * (scale * CUBE) + scale))
    share = 0.5 * inner + 0.5
    slope = x * (x * (3 * scale * CUBE)) + scale
    return g * (share + 0.5 * x * (1 - inner * inner) * slope), x * share


def _relu(g: Any, x: Any) -> tuple[Any, Any]:
    return ep.where(x <= 0.0, 0.0, g), ep.relu(x)


_aten: Any = torch.ops.aten
_functional: Any = torch.nn.functional


def _torch_silu_gradient(g: Tensor, x: Tensor) -> Tensor:
    share = torch.sigmoid(x)  # not PyTorch's silu_backward, which cannot be differentiated
    return g * (share * (1 + x * (1 - share)))


def _approximated(approximate: str) -> dict[str, Any]:
    """Three fields of the `Activation` of a GELU: value, torch_value and torch_gradient."""
    option = {"approximate": approximate}
    return {
        "value": lambda x: ep.gelu(x, approximate=approximate),
        "torch_value": partial(_functional.gelu, **option),
        "torch_gradient": partial(_aten.gelu_backward, **option),
    }


ACTIVATIONS = {
    "silu": Activation(ep.silu, _silu, _functional.silu, _torch_silu_gradient),
    "gelu": Activation(gradient=_gelu, **_approximated("none")),
    "gelu_tanh": Activation(gradient=_gelu_tanh, **_approximated("tanh")),
    "relu": Activation(
        ep.relu, _relu, _functional.relu, lambda g, x: _aten.threshold_backward(g, x, 0)
    ),
}
"""The activation functions of gated products, by the name that `gated` takes."""


def check_activation(activation: Any) -> None:
    """Raise LaunchError if `activation` is not the name of an activation."""
    if not isinstance(activation, str) or activation not in ACTIVATIONS:
        raise LaunchError(
            f"activation = {activation!r} is unknown; choose one of {', '.join(ACTIVATIONS)}"
        )


def _traced(function: Callable[..., Any], biased: bool, **declared: Any) -> EpilogueFunction:
    """Trace `function` as an epilogue of two sums of products, gate and up.

    Args:
        function: computes what the epilogue returns from gate and up, and from the operand `grad`
            if `declared` has it.
        biased: whether the epilogue adds the operands `gate_bias` and `up_bias` to the sums first.
        declared: the outputs of the epilogue besides D, and its operand `grad` if it has one.
    """
    if "grad" not in declared:

        def gated(gate: Any, up: Any) -> Any:
            return function(gate, up)

        def gated_of_biased(gate: Any, up: Any, gate_bias: Any, up_bias: Any) -> Any:
            return function(gate + gate_bias, up + up_bias)

        chosen: Any = gated_of_biased if biased else gated
    else:

        def gradient(gate: Any, up: Any, grad: Any) -> Any:
            return function(gate, up, grad)

        def gradient_of_biased(gate: Any, up: Any, gate_bias: Any, up_bias: Any, grad: Any) -> Any:
            return function(gate + gate_bias, up + up_bias, grad)

        chosen = gradient_of_biased if biased else gradient
    return ep.epilogue(**(BIASES if biased else {}), **declared)(chosen)


@cache
def gated(activation: str, *, biased: bool, kept: bool) -> EpilogueFunction:
    """The epilogue `act(gate)·up`, where gate and up are two sums of products, plus biases if any.

    Args:
        activation: the name of the activation.
        biased: whether the operands `gate_bias` and `up_bias` are added to the two sums.
        kept: whether the epilogue has the outputs of `SUMS`, in which it stores gate and up.
    """
    value = ACTIVATIONS[activation].value

    def result(gate: Any, up: Any) -> Any:
        d = value(gate) * up
        return (d, gate, up) if kept else d

    return _traced(result, biased, **(dict.fromkeys(SUMS, ep.output("mn")) if kept else {}))


def _gradients(activation: str, gate: Any, up: Any, grad: Any) -> tuple[Any, Any]:
    """The gradients of gate and of up, as traced values."""
    of_gate, value = ACTIVATIONS[activation].gradient(grad * up, gate)
    return of_gate, grad * value


@cache
def gradient(activation: str, *, biased: bool) -> EpilogueFunction:
    """The epilogue that computes the gradients of gate and of up from the sums gate and up.

    The operand `grad` of the epilogue is the gradient of `act(gate)·up`; `biased` tells whether the
    epilogue adds `gate_bias` and `up_bias` to the sums.
    """
    function = partial(_gradients, activation)
    return _traced(function, biased, grad="lmn", **{OF_UP: ep.output("mn")})


@cache
def gradient_of_sums(activation: str) -> EpilogueFunction:
    """The epilogue that computes the gradients of gate and of up from tensors with gate and up.

    It reads gate, up and the gradient of `act(gate)·up` from memory. The sum of products is not
    used: the epilogue is for products with k = 0.
    """

    def gradient(acc: Any, gate: Any, up: Any, grad: Any) -> Any:
        return _gradients(activation, gate, up, grad)

    return ep.epilogue(gate="mn", up="mn", grad="mn", **{OF_UP: ep.output("mn")})(gradient)
