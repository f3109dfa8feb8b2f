# codegen.torch, tests and benchmarks use torch; it need not be installed to check their types. What
# codegen.torch needs by name is declared here; all else may be anything.

from typing import Any

from torch import compiler as compiler
from torch import library as library
from torch import nn as nn
from torch import overrides as overrides

class dtype:
    is_floating_point: bool
    is_complex: bool

class Tensor:
    shape: Any
    dtype: dtype
    device: Any
    mT: Tensor
    matmul: Any
    mm: Any
    bmm: Any
    addmm: Any
    def __matmul__(self, other: Any) -> Tensor: ...
    def __rmatmul__(self, other: Any) -> Tensor: ...
    def __getitem__(self, index: Any) -> Tensor: ...
    def __add__(self, other: Any) -> Tensor: ...
    def __mul__(self, other: Any) -> Tensor: ...
    def __getattr__(self, name: str) -> Any: ...

bfloat16: dtype
float16: dtype
float32: dtype
float64: dtype
int16: dtype
ops: Any

def __getattr__(name: str) -> Any: ...
