"""Code generation: scheduled graphs to machine code, and kernels to call.

It knows no schedule: it walks the control graph and asks the coordinate graph for every index.
"""

from codegen.api import TARGETS, compile
from codegen.cache import cache_directory
from codegen.kernel import Kernel
from codegen.matmul import matmul

__all__ = ["TARGETS", "Kernel", "cache_directory", "compile", "matmul"]
