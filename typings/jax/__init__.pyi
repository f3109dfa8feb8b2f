# codegen.jax and tests use jax; it need not be installed to check their types. All of it may be
# anything.
from typing import Any

from jax import ffi as ffi
from jax import numpy as numpy

def __getattr__(name: str) -> Any: ...
