"""Coordinate graphs: what a kernel is, before any schedule, target or machine.

Every index in a kernel is a path through a graph of coordinate transforms. See `Gemm` for the
front end, `CoordinateGraph` for the graph, `passes` for schedules and `codegen` to run them.
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
