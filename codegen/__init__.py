"""Code generation: compiles scheduled kernel graphs to machine code, and calls the kernels.

Code generation depends on no particular schedule: it emits the operations of the control graph in
order, and computes every index from the coordinate graph.
"""

from typing import TYPE_CHECKING

from coordgraph.import_names import require
from coordgraph.late import late_names

require("passes")  # raise an error if `passes` is another library's package

if TYPE_CHECKING:
    from codegen.api import TARGETS, compile
    from codegen.cache import cache_directory
    from codegen.call.background import background_builds
    from codegen.call.explain import explain
    from codegen.call.matmul import grouped_matmul, matmul
    from codegen.call.warm_calls import warm_calls
    from codegen.call.warming import warm
    from codegen.kernel import Kernel
    from passes.simulation.launching import simulate
else:
    # These names are imported at their first use, because their modules load sympy, networkx and
    # numpy, which takes long.
    __getattr__, __dir__ = late_names(
        __name__,
        {
            "Kernel": "codegen.kernel:Kernel",
            "TARGETS": "codegen.api:TARGETS",
            "background_builds": "codegen.call.background:background_builds",
            "cache_directory": "codegen.cache:cache_directory",
            "compile": "codegen.api:compile",
            "explain": "codegen.call.explain:explain",
            "grouped_matmul": "codegen.call.matmul:grouped_matmul",
            "matmul": "codegen.call.matmul:matmul",
            "simulate": "passes.simulation.launching:simulate",
            "warm": "codegen.call.warming:warm",
            "warm_calls": "codegen.call.warm_calls:warm_calls",
        },
        modules=("api", "architectures", "cache", "call", "export", "kernel", "targets"),
    )

__all__ = [
    "TARGETS",
    "Kernel",
    "background_builds",
    "cache_directory",
    "compile",
    "explain",
    "grouped_matmul",
    "matmul",
    "simulate",
    "warm",
    "warm_calls",
]
