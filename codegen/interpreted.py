"""`InterpretedKernel`: the reference meaning of a graph, called like any kernel."""

from __future__ import annotations

from typing import Any

import numpy as np

from codegen.checks import (
    check_call,
    number,
    numpy_views,
    problem_parameters,
    rows_of_offsets,
)
from codegen.empty import lacks_depth, new_output, writes_nothing, zeros_of_depth
from codegen.kernel import Kernel
from coordgraph import KernelGraph, LaunchError
from coordgraph.interpreter import interpret

__all__ = ["InterpretedKernel"]

WORKGROUPS = 4


class InterpretedKernel(Kernel):
    """Runs a scheduled graph in Python over numpy tiles; slow, and the measure of all targets."""

    def __init__(self, graph: KernelGraph) -> None:
        super().__init__(graph, "interpreter")

    def __call__(
        self,
        a: Any,
        b: Any,
        c: Any = None,
        out: Any = None,
        alpha: float = 1.0,
        beta: float = 0.0,
        stream: Any = None,
        *,
        workgroups: int | None = None,
        offsets: Any = None,
    ) -> Any:
        """Compute D with numpy; `workgroups` (4 by default) where the graph leaves it open."""
        if stream is not None:
            raise LaunchError("the interpreter has no streams")
        alpha, beta = number(alpha, "alpha"), number(beta, "beta")
        views = numpy_views(a, b, c, out, offsets)
        sizes = problem_parameters(self.graph, views, beta=beta)
        check_call(self.graph, views, beta=beta)
        if writes_nothing(sizes):
            return new_output(self.graph, sizes) if out is None else out
        if lacks_depth(sizes):
            (a, b), alpha = zeros_of_depth(self.graph, sizes), 0.0
        parameters: dict[str, int] = {}
        if any(p.name == "workgroups" for p in self.graph.parameters.given):
            parameters["workgroups"] = WORKGROUPS if workgroups is None else workgroups
        elif workgroups is not None:
            raise LaunchError("this graph fixes its workgroups; schedule it with workgroups=None")
        for name in ("elements_d",) if self.graph.gemm.diagonal else ():
            parameters[name] = sizes[name]
        tables = rows_of_offsets(self.graph.gemm, offsets)
        result = interpret(
            self.graph, a, b, c, alpha=alpha, beta=beta, parameters=parameters, tables=tables
        )
        if out is None:
            return result.d
        np.copyto(out, result.d, where=result.written)
        return out
