"""The elementwise operations that epilogues may use; each is a class in a separate file."""

from coordgraph.epilogue.operations.absolute import abs
from coordgraph.epilogue.operations.add import add
from coordgraph.epilogue.operations.cast import cast
from coordgraph.epilogue.operations.clamp import clamp
from coordgraph.epilogue.operations.compare import compare
from coordgraph.epilogue.operations.div import div
from coordgraph.epilogue.operations.erf import erf
from coordgraph.epilogue.operations.exp import exp
from coordgraph.epilogue.operations.fma import fma
from coordgraph.epilogue.operations.gelu import gelu
from coordgraph.epilogue.operations.leaky_relu import leaky_relu
from coordgraph.epilogue.operations.log import log
from coordgraph.epilogue.operations.maximum import maximum
from coordgraph.epilogue.operations.minimum import minimum
from coordgraph.epilogue.operations.mul import mul
from coordgraph.epilogue.operations.neg import neg
from coordgraph.epilogue.operations.quantize import quantize
from coordgraph.epilogue.operations.relu import relu
from coordgraph.epilogue.operations.rsqrt import rsqrt
from coordgraph.epilogue.operations.sigmoid import sigmoid
from coordgraph.epilogue.operations.silu import silu
from coordgraph.epilogue.operations.sqrt import sqrt
from coordgraph.epilogue.operations.sub import sub
from coordgraph.epilogue.operations.tanh import tanh
from coordgraph.epilogue.operations.where import where

__all__ = [
    "abs",
    "add",
    "cast",
    "clamp",
    "compare",
    "div",
    "erf",
    "exp",
    "fma",
    "gelu",
    "leaky_relu",
    "log",
    "maximum",
    "minimum",
    "mul",
    "neg",
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
