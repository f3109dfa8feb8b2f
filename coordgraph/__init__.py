"""Kernels as graphs of coordinate transforms, independent of schedules, targets and machines.

Every index that a kernel computes is a path through its coordinate graph. `Gemm` describes a
matrix product and builds its graph; `CoordinateGraph` is the graph; the package `passes` has the
schedules, which rewrite it; the package `codegen` compiles and runs the result.
"""

from coordgraph import checks as checks
from coordgraph import show as show
from coordgraph.coordinates import CoordinateGraph
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
from coordgraph.frontend import Gemm
from coordgraph.kernel import KernelGraph
from coordgraph.text import from_json
from coordgraph.text import parse_graph as parse

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
    "from_json",
    "parse",
]
