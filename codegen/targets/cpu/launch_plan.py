"""`Plan` holds the values that launches of a CPU kernel with equal parameters and tables share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any

import numpy as np

from codegen.call.views import label
from codegen.targets.cpu.order import Circle, starting_order
from codegen.targets.cpu.threads import MOST_THREADS
from coordgraph import KernelGraph, LaunchError
from coordgraph.integers import compile_function
from coordgraph.interpreter.arguments import Array, numpy_dtype
from coordgraph.tensors import Role, dtype

__all__ = ["Formulas", "Plan"]


@dataclass
class _Took:
    """Seconds that the last launch which used a `Plan` took; infinite before the first launch."""

    seconds: float = inf


@dataclass(frozen=True)
class Plan:
    """What launches of a CPU kernel with equal parameters and tables have in common.

    Attributes:
        integers: the integer arguments of the compiled function, in order.
        workgroups: how many workgroups the launch has.
        workspace: size of each workspace tensor in bytes, by name.
        zeroed: names of the workspace tensors that must be zero before the launch.
        order: the workgroup numbers in the order in which to start them; None for 0, 1, 2, …
        together: whether all workgroups must run at the same time, each on its own thread.
        tables: the entries (i32) of the tables that are computed from the passed tables.
        given: the parameters of the launch, by name.
        known: the entries of the tables that the call passes, by name.
        outputs: the shape in elements and the NumPy dtype of D and other outputs, by tensor.
        took: the duration of the latest launch with this plan, in seconds.
    """

    integers: tuple[int, ...]
    workgroups: int
    workspace: Mapping[str, int]
    zeroed: tuple[str, ...]
    order: Array | None
    together: bool
    tables: tuple[Array, ...]
    given: Mapping[str, int]
    known: Mapping[str, Sequence[int]]
    outputs: Mapping[str, tuple[tuple[int, ...], np.dtype[Any]]]
    took: _Took = field(default_factory=_Took, compare=False)

    def new_output(self, tensor: str) -> Array:
        """Allocate the array for D or another output.

        Raises:
            LaunchError: the memory cannot be allocated.
        """
        shape, kind = self.outputs[tensor]
        try:
            return np.empty(shape, kind)
        except MemoryError:
            raise LaunchError(
                f"an output of shape {shape} and type {kind} cannot be allocated; "
                f"compute it in parts, or pass {label(tensor)}="
            ) from None


class Formulas:
    """Evaluates the expressions that a launch needs: grid, shapes, workspace sizes.

    Args:
        graph: the scheduled graph.
        lowered: the lowered graph, whose workspace a launch needs.
        integers: the names of the integer arguments of the compiled function, in order.
    """

    def __init__(self, graph: KernelGraph, lowered: KernelGraph, integers: list[str]) -> None:
        self.graph, self.parameters = graph, lowered.parameters
        self.integers = integers
        size = graph.workgroup.size
        assert size is not None
        symbols = [p.symbol for p in self.parameters.items]
        self.outputs = [t for t in graph.tensors if t.role is Role.OUTPUT]
        self.workspace = [t for t in lowered.tensors if t.role.workspace]
        shapes = (extent for t in self.outputs for extent in t.shape)
        wanted = [size, *(t.elements for t in self.workspace), *shapes]
        self._values = compile_function(wanted, symbols)

    def plan(
        self, waits: Any, given: Mapping[str, int], tables: Mapping[str, Sequence[int]]
    ) -> Plan:
        """Make a launch's `Plan`: evaluate grid, shapes and sizes for its parameters and tables.

        Args:
            waits: which workgroups a workgroup waits for, by number: "none", "lower", "higher", or
                "mixed" (both, or nothing is proved).
            given: the parameters of the launch, by name.
            tables: the entries of the tables that the call passes, by name.

        Raises:
            LaunchError: there are more workgroups than threads, and all must run at the same time.
        """
        parameters = self.parameters
        values = parameters.launch(given, tables)
        count, *numbers = self._values(*(values[p.name] for p in parameters.items))
        elements, extents = numbers[: len(self.workspace)], iter(numbers[len(self.workspace) :])
        order, together = None, False
        try:
            order = starting_order(self.graph, waits, count, given, tables)
        except Circle as circle:
            if count > MOST_THREADS:
                raise LaunchError(
                    f"{circle}; that takes a thread for each of the {count} workgroups, but a "
                    f"launch has at most {MOST_THREADS} threads; use fewer workgroups, or "
                    "owner='last' and a reduction other than scatter"
                ) from None
            together = True
        return Plan(
            tuple(values[name] for name in self.integers),
            count,
            {
                t.name: size * dtype(t.dtype).bytes
                for t, size in zip(self.workspace, elements, strict=True)
            },
            tuple(t.name for t in self.workspace if t.role.zeroed),
            order,
            together,
            tuple(np.array(values[t.name], np.int32) for t in parameters.tables if t.derived),
            given,
            tables,
            {
                t.name: (tuple(next(extents) for _ in t.shape), numpy_dtype(t.dtype))
                for t in self.outputs
            },
        )
