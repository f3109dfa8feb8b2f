"""The interface of everything that is timed on a GEMM problem: a library, or a kernel of ours."""

from __future__ import annotations

from typing import Any, Protocol

from benchmarks.problems.problem import Problem, Run

__all__ = ["COORDGRAPH", "CUBLAS", "Contender", "Unavailable"]

CUBLAS, COORDGRAPH = "cuBLAS", "coordgraph"
"""Names of contenders in records: `torch.matmul`, and `codegen.matmul`."""


class Unavailable(Exception):
    """A contender is not installed or cannot compute this problem; the message says why."""


class Contender(Protocol):
    """A way to multiply.

    Attributes:
        name: the contender's name in records and tables.
        ours: whether it is a kernel of this project rather than a peer.
        details: columns for the record, about the problem that was prepared last.
    """

    name: str
    ours: bool
    details: dict[str, Any]

    def prepare(self, problem: Problem) -> Run:
        """Return a function that computes the problem.

        Raises:
            Unavailable, CoordGraphError: the contender cannot compute it.
        """
        ...
