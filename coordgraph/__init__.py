"""GPU kernels as graphs of coordinate transforms, independent of schedules and target machines.

Every index that a kernel computes is a path through its coordinate graph. `Gemm` describes a matrix
product and builds its kernel graph, which contains a `CoordinateGraph`. Schedules in the package
`passes` rewrite kernel graphs; the package `codegen` compiles and runs them.
"""

import warnings
from typing import TYPE_CHECKING

from coordgraph.errors import (
    AmbiguousPath,
    CodegenError,
    CoordGraphError,
    EvaluationError,
    LaunchError,
    NoPath,
    NotInvertible,
    ParseError,
    PassError,
    VerifyError,
)
from coordgraph.import_names import hidden
from coordgraph.late import late_names
from coordgraph.version import __version__

if TYPE_CHECKING:
    from coordgraph import checks as checks
    from coordgraph import show as show
    from coordgraph import verification as verification
    from coordgraph.coordinates import CoordinateGraph
    from coordgraph.frontend import Gemm
    from coordgraph.kernel import KernelGraph
    from coordgraph.text import from_json
    from coordgraph.text import parse_graph as parse
else:
    # Names are imported at first use: their modules load sympy and networkx, which takes time.
    __getattr__, __dir__ = late_names(
        __name__,
        {
            "CoordinateGraph": "coordgraph.coordinates:CoordinateGraph",
            "Gemm": "coordgraph.frontend:Gemm",
            "KernelGraph": "coordgraph.kernel:KernelGraph",
            "from_json": "coordgraph.text:from_json",
            "parse": "coordgraph.text:parse_graph",
        },
        modules=(
            *("checks", "control", "coordinates", "elements", "epilogue", "frontend", "gemm"),
            *("integers", "interpreter", "kernel", "parameters", "problem", "products", "progress"),
            *("show", "tables", "tensors", "text", "tilings", "validation", "verification"),
        ),
    )

# Warn now if another package hides `passes` or `codegen`: later errors would not show the cause.
if reason := hidden():
    warnings.warn(reason, RuntimeWarning, stacklevel=2)
del reason

__all__ = [
    "AmbiguousPath",
    "CodegenError",
    "CoordGraphError",
    "CoordinateGraph",
    "EvaluationError",
    "Gemm",
    "KernelGraph",
    "LaunchError",
    "NoPath",
    "NotInvertible",
    "ParseError",
    "PassError",
    "VerifyError",
    "__version__",
    "from_json",
    "parse",
]
