"""`Operands`: what a call passes besides A, B, C, D and offsets: operands, outputs and tables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from coordgraph.elements import dtype
from coordgraph.epilogue import ALPHA_BETA
from coordgraph.gemm import GemmProblem, tensor_of
from coordgraph.interpreter.arguments import factor_of_c, scalar, scalars, with_defaults

__all__ = ["Operands"]


@dataclass(frozen=True)
class Operands:
    """The epilogue's operands, its outputs besides D, and the row indices that a call passes.

    Args:
        arrays: the operands in memory, and the arrays `rows` and `targets` of row indices, by the
            names of the graph's tensors. `rows` has the row of A for each row of the product, and
            `targets` the row of D.
        scalars: the operands passed by value, by name, in the order of the function's parameters.
        outputs: the arrays that the call passes for outputs besides D, by name.
    """

    arrays: Mapping[str, Any]
    scalars: Mapping[str, float]
    outputs: Mapping[str, Any]

    @classmethod
    def of(
        cls, gemm: GemmProblem, c: Any, alpha: Any, beta: Any, others: Mapping[str, Any]
    ) -> Operands:
        """The operands of a call, from its arguments `c`, `alpha`, `beta` and keyword arguments.

        Keyword arguments with the name of an output besides D are arrays for this output. If the
        problem gathers rows of A or scatters rows of D, `rows` and `targets` are their indices.

        Raises:
            LaunchError: an operand is missing, an argument is no operand of the epilogue, or a
                scalar is not a number.
        """
        function, beta = gemm.epilogue, factor_of_c(beta, c, gemm.epilogue)
        outputs = {o.name: others[o.name] for o in function.outputs if o.name in others}
        tables = {name: others[name] for name in gemm.tables_of_rows if name in others}
        operands = {name: x for name, x in others.items() if name not in {**outputs, **tables}}
        given = with_defaults(function, {"c": c, "alpha": alpha, "beta": beta, **operands})
        arrays = {tensor_of(o.name): given.get(o.name) for o in function.tensors} | tables
        kinds = function.kinds(gemm.accumulator, gemm.out_dtype or gemm.dtype).operands
        numbers = {
            o.name: scalar(given[o.name], o.name, dtype(kinds[o.name])) for o in function.scalars
        }
        if function == ALPHA_BETA:
            scalars(gemm, alpha, beta)  # raises LaunchError if beta is not 0 and C cannot be added
        present = ({n: x for n, x in each.items() if x is not None} for each in (arrays, outputs))
        read, written = present
        return cls(read, numbers, written)
