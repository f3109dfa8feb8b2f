"""The interface of contenders, which are timed on GEMMs: libraries, and coordgraph's kernels."""

from __future__ import annotations

from typing import Any, Protocol

from benchmarks.problems.problem import Problem, Run

__all__ = ["COORDGRAPH", "CUBLAS", "CUBLASLT", "Contender", "Unavailable"]

CUBLAS, CUBLASLT, COORDGRAPH = "cuBLAS", "cuBLASLt", "coordgraph"
"""Names in records of the contenders `torch.matmul`, the fastest algorithm of cuBLASLt, and
`codegen.matmul`."""


class Unavailable(Exception):
    """Raised if a contender is not installed or cannot compute a problem; the message says why."""


class Contender(Protocol):
    """Protocol: a library or kernel that multiplies matrices and is timed against others.

    Attributes:
        name: the contender's name in records and tables.
        ours: True for a kernel of coordgraph, False for other libraries and kernels.
        details: columns for the record, about the problem that was prepared last.
    """

    name: str
    ours: bool
    details: dict[str, Any]

    def prepare(self, problem: Problem) -> Run:
        """Return a function that computes the problem.

        Raises:
            Unavailable, CoordGraphError: the contender cannot compute the problem.
        """
        ...
