"""Code generation: scheduled graphs to machine code, and kernels to call.

It knows no schedule: it walks the control graph and asks the coordinate graph for every index.
"""

from typing import TYPE_CHECKING, Any

from codegen.api import TARGETS, compile
from codegen.cache import cache_directory
from codegen.kernel import Kernel

if TYPE_CHECKING:
    from codegen.call.explain import explain
    from codegen.call.matmul import grouped_matmul, matmul

__all__ = ["TARGETS", "Kernel", "cache_directory", "compile", "explain", "grouped_matmul", "matmul"]

_LATE = {
    "explain": "codegen.call.explain",
    "grouped_matmul": "codegen.call.matmul",
    "matmul": "codegen.call.matmul",
}
"""Functions whose modules import numpy: each is loaded when it is first used."""


def __getattr__(name: str) -> Any:
    if name not in _LATE:
        raise AttributeError(f"module 'codegen' has no attribute '{name}'")
    from importlib import import_module

    found = globals()[name] = getattr(import_module(_LATE[name]), name)
    return found
