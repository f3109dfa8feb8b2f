"""Epilogues: elementwise functions of a product, traced from Python and compiled into its kernel.

```
from coordgraph import epilogue as ep

@ep.epilogue(bias="n", residual="mn")
def bias_gelu_residual(acc, bias, residual):
    return ep.gelu(acc + bias, approximate="tanh") + residual

@ep.epilogue(bias="n", pre=ep.output("mn", "bf16"))
def gelu_for_training(acc, bias):
    x = acc + bias
    return ep.gelu(x), x  # D, and the pre-activation that the backward pass needs
```
"""

from coordgraph.epilogue.default import ALPHA_BETA
from coordgraph.epilogue.emitter import Emitter
from coordgraph.epilogue.function import EpilogueFunction
from coordgraph.epilogue.operand import Operand, index, operand
from coordgraph.epilogue.operation import Algebra, Composed, Elementwise
from coordgraph.epilogue.operations import (
    abs,
    add,
    cast,
    clamp,
    compare,
    div,
    erf,
    exp,
    fma,
    gelu,
    leaky_relu,
    log,
    maximum,
    minimum,
    mul,
    neg,
    quantize,
    relu,
    rsqrt,
    sigmoid,
    silu,
    sqrt,
    sub,
    tanh,
    where,
)
from coordgraph.epilogue.output import Output, output
from coordgraph.epilogue.text import function_text, parse_function
from coordgraph.epilogue.trace import epilogue
from coordgraph.epilogue.values import Value

__all__ = [
    "ALPHA_BETA",
    "Algebra",
    "Composed",
    "Elementwise",
    "Emitter",
    "EpilogueFunction",
    "Operand",
    "Output",
    "Value",
    "abs",
    "add",
    "cast",
    "clamp",
    "compare",
    "div",
    "epilogue",
    "erf",
    "exp",
    "fma",
    "function_text",
    "gelu",
    "index",
    "leaky_relu",
    "log",
    "maximum",
    "minimum",
    "mul",
    "neg",
    "operand",
    "output",
    "parse_function",
    "quantize",
    "relu",
    "rsqrt",
    "sigmoid",
    "silu",
    "sqrt",
    "sub",
    "tanh",
    "where",
]
