"""`InterpretedKernel`: runs a graph in the Python interpreter, as the reference for all targets."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from codegen.call.checks import check_call, numpy_views, problem_parameters, tables_of_call
from codegen.call.operands import Operands
from codegen.call.outputs import returned, written
from codegen.call.zero_extents import (
    lacks_depth,
    new_output,
    of_depth,
    writes_nothing,
    zeros_of_depth,
)
from codegen.kernel import Kernel
from coordgraph import KernelGraph, LaunchError
from coordgraph.gemm import tensor_of
from coordgraph.interpreter import interpret
from coordgraph.interpreter.arguments import Array

__all__ = ["InterpretedKernel"]

WORKGROUPS = 4
"""How many workgroups the interpreter runs if neither the graph nor the call gives a number."""


class InterpretedKernel(Kernel):
    """Interprets a scheduled graph in Python, with NumPy tiles.

    The interpreter is slow; its results are the reference for tests of all other targets.
    """

    def __init__(self, graph: KernelGraph) -> None:
        super().__init__(graph, "interpreter")

    @property
    def instruction_family(self) -> str:
        """The name of the library that multiplies tiles: `numpy`."""
        return "numpy"

    def __call__(
        self,
        a: Any,
        b: Any,
        c: Any = None,
        out: Any = None,
        alpha: float = 1.0,
        beta: float | None = None,
        stream: Any = None,
        *,
        workgroups: int | None = None,
        offsets: Any = None,
        **operands: Any,
    ) -> Any:
        """Compute D with NumPy, and return it.

        Args:
            workgroups: how many workgroups to interpret, if the schedule's option `workgroups` is
                None; 4 by default.

        The other arguments, such as A, B, C, the scalars and the group offsets, are described in
        the docstring of `codegen.Kernel`; `stream` must be None.
        """
        if stream is not None:
            raise LaunchError(
                f"stream = {stream!r}, but the interpreter has no streams; leave stream out"
            )
        given = Operands.of(self.graph.gemm, c, alpha, beta, operands)
        views = numpy_views(a, b, None, out, offsets, given.arrays, given.outputs)
        sizes = problem_parameters(self.graph, views, scalars=given.scalars)
        check_call(self.graph, views, scalars=given.scalars)
        if writes_nothing(sizes):
            make = partial(new_output, self.graph, sizes=sizes)
            return returned(self.graph.gemm, written(self.graph.gemm, out, given.outputs, make))
        if lacks_depth(sizes):
            a, b = zeros_of_depth(self.graph, sizes)
            given = of_depth(self.graph.gemm, given)
        parameters: dict[str, int] = {}
        if any(p.name == "workgroups" for p in self.graph.parameters.given):
            parameters["workgroups"] = WORKGROUPS if workgroups is None else workgroups
        elif workgroups is not None:
            raise LaunchError(
                f"workgroups = {workgroups}, but the schedule was made for a fixed number; leave "
                "workgroups out, or apply the schedule with workgroups=None"
            )
        # The shapes of A and B do not determine `elements_d` and `rows_d`, extents of the array D.
        parameters |= {name: sizes[name] for name in ("elements_d", "rows_d") if name in sizes}
        tables = tables_of_call(self.graph.gemm, offsets, given.arrays)
        values = {
            o.name: given.arrays.get(tensor_of(o.name)) for o in self.graph.gemm.epilogue.tensors
        }
        values |= given.scalars
        result = interpret(self.graph, a, b, operands=values, parameters=parameters, tables=tables)
        found = {"D": (result.d, result.written)}
        found |= {n: (x, result.stored[n]) for n, x in result.outputs.items()}
        given_arrays = {"D": out, **given.outputs}
        stored = {n: _stored(*found[n], given_arrays.get(n)) for n in self.graph.gemm.stored}
        return returned(self.graph.gemm, stored)


def _stored(found: Array, mask: Array, array: Array | None) -> Array:
    """Copy the elements of `found` where `mask` is true to `array`, and return `array`.

    If `array` is None, return `found`.
    """
    if array is None:
        return found
    np.copyto(array, found, where=mask)
    return array
