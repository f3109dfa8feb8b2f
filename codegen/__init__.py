"""Code generation: compiles scheduled kernel graphs to machine code, and calls the kernels.

Code generation depends on no particular schedule: it emits the operations of the control graph in
order, and computes every index from the coordinate graph.
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
"""Functions whose modules import numpy, by name: a module is imported at the first use."""


def __getattr__(name: str) -> Any:
    if name not in _LATE:
        raise AttributeError(f"module 'codegen' has no attribute '{name}'")
    from importlib import import_module

    found = globals()[name] = getattr(import_module(_LATE[name]), name)
    return found
