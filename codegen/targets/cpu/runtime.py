"""`HostKernel`: a scheduled graph compiled for the host, ready to be called."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from codegen.call.checks import (
    by_table,
    check_call,
    numpy_views,
    problem_parameters,
    rows_of_offsets,
)
from codegen.call.operands import Operands
from codegen.call.views import TensorView, numpy_view
from codegen.call.zero_extents import (
    lacks_depth,
    new_output,
    of_depth,
    writes_nothing,
    zeros_of_depth,
)
from codegen.emit.elements import scalar_type
from codegen.kernel import Kernel
from codegen.targets.cpu.code import host_code
from codegen.targets.cpu.emit import RUN_NAME, HostWalker
from codegen.targets.cpu.machine import host, lower
from codegen.targets.cpu.order import Circle, starting_order
from codegen.targets.cpu.threads import MOST_THREADS, run_on_threads, thread_count
from codegen.targets.cpu.workspace import Workspaces
from coordgraph import CodegenError, KernelGraph, LaunchError
from coordgraph.integers import compile_function
from coordgraph.interpreter.arguments import Array, numpy_dtype
from coordgraph.progress import wait_direction
from coordgraph.tensors import Role, dtype

__all__ = ["HostKernel", "compile_host"]

WORKGROUPS_PER_THREAD = 2
KEPT_PLANS = 64


class HostKernel(Kernel):
    """A kernel for this machine's processor cores, called with numpy arrays.

    A workgroup is run by one thread from beginning to end; how many threads there are decides
    neither the result nor whether the kernel ends. Workgroups that wait for each other
    (`reduction="scatter"`) get a thread each.
    """

    def __init__(self, graph: KernelGraph) -> None:
        graph.workgroup  # noqa: B018 - says what to do where no schedule was applied
        if graph.level != "scheduled":
            raise CodegenError(
                f"the graph is {graph.level}, not scheduled: apply one schedule, as in "
                "StreamK()(graph); the kernel lowers it itself"
            )
        super().__init__(graph, "cpu")
        self._lowered = lower(graph)
        self.waits = wait_direction(graph)
        walker = HostWalker(self._lowered, host().triple)
        self._code = host_code(str(walker.build()))
        self._run = _prototype(walker)(self._code.address(RUN_NAME))
        self._workspaces = Workspaces(walker.buffer_bytes)
        self._formulas = _Formulas(graph, walker.parameters)
        self._plan = lru_cache(KEPT_PLANS)(self._make_plan)

    @property
    def lowered(self) -> KernelGraph:
        """The graph that the code was generated from."""
        return self._lowered

    @property
    def instruction_family(self) -> str:
        """Vector instructions of the host's processor."""
        return f"{host().vector_bits}-bit vectors"

    @property
    def from_cache(self) -> bool:
        """Whether the machine code was read from the cache on disk."""
        return self._code.from_cache

    @property
    def build_steps(self) -> str:
        """The steps that made the machine code."""
        source = "from the cache" if self.from_cache else "by LLVM"
        return f"lowering, LLVM IR, machine code {source}"

    @property
    def llvm_ir(self) -> str:
        """The LLVM IR before optimisation."""
        return self._code.text

    @property
    def assembly(self) -> str:
        """The machine code, in the host's assembly language: made when it is asked for."""
        return self._code.assembly

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
        threads: int | None = None,
        **operands: Any,
    ) -> Array:
        """Compute D; see `Kernel`.

        Args:
            a, b, c, out: numpy arrays; a new `out` is made where none is given.
            alpha, beta: scalars of the epilogue.
            stream: the host has none; must be None.
            workgroups: where the graph leaves it open; by default two a thread, or one where they
                wait for each other.
            offsets: of groups.
            operands: of an epilogue of the graph's own, by name.
            threads: by default `COORDGRAPH_THREADS`, or one a processor.
        """
        if stream is not None:
            raise LaunchError("the host has no streams; leave stream out")
        bound = Operands.of(self.graph.gemm, c, alpha, beta, operands)
        views = numpy_views(a, b, None, out, offsets, bound.arrays)
        given = problem_parameters(self.graph, views, scalars=bound.scalars)
        check_call(self.graph, views, scalars=bound.scalars)
        threads = thread_count(threads)
        if writes_nothing(given):
            return new_output(self.graph, given) if out is None else out
        if lacks_depth(given):
            a, b = zeros_of_depth(self.graph, given)
            views |= numpy_views(a, b, None, None)
            bound = of_depth(self.graph.gemm, bound)
            given = problem_parameters(self.graph, views, scalars=bound.scalars)
        if any(p.name == "workgroups" for p in self.graph.parameters.given):
            # Those that may wait for each other would keep more threads than processors busy.
            default = threads if self.waits == "mixed" else WORKGROUPS_PER_THREAD * threads
            given["workgroups"] = default if workgroups is None else workgroups
        elif workgroups is not None:
            raise LaunchError("this graph fixes its workgroups; schedule it with workgroups=None")
        rows = rows_of_offsets(self.graph.gemm, offsets)
        tables = tuple((name, tuple(map(int, row))) for name, row in rows.items())
        plan = self._plan(tuple(given.items()), tables)
        result = plan.new_output() if out is None else out
        views.setdefault("D", numpy_view(result, "out"))
        threads = plan.workgroups if plan.together else min(threads, plan.workgroups)
        self._launch(plan, by_table(self.graph, views), tuple(bound.scalars.values()), threads)
        return result

    def _make_plan(
        self, given: tuple[tuple[str, int], ...], tables: tuple[tuple[str, tuple[int, ...]], ...]
    ) -> _Plan:
        """The plan that launches with the same parameters and tables share."""
        return self._formulas.plan(self.waits, dict(given), dict(tables))

    def _launch(
        self,
        plan: _Plan,
        views: Mapping[str, TensorView],
        scalars: tuple[float, ...],
        threads: int,
    ) -> None:
        with (
            self._workspaces.borrow(plan.workspace, plan.zeroed) as workspace,
            self._workspaces.buffers(threads) as buffers,
        ):
            pointers = [
                workspace.tensors[t.name].ctypes.data
                if t.name in workspace.tensors
                else views[t.name].pointer
                if t.name in views
                else None
                for t in self.graph.tensors
            ]
            pointers += [table.ctypes.data for table in plan.tables]
            counter = ctypes.c_int64(0)
            order = None if plan.order is None else plan.order.ctypes.data
            head = (order, ctypes.addressof(counter), plan.workgroups, *pointers)

            def work(thread: int) -> None:
                self._run(*head, buffers[thread].ctypes.data, *scalars, *plan.integers)

            run_on_threads(work, threads)


def compile_host(graph: KernelGraph) -> HostKernel:
    """Compile a scheduled graph for this machine.

    Raises:
        VerifyError: no schedule has been applied.
        CodegenError: the graph is not at the level "scheduled", or the processor cannot run it.
    """
    return HostKernel(graph)


@dataclass(frozen=True)
class _Plan:
    """A launch of one size: integer arguments, workspace in bytes, order of workgroups.

    `together`: they must all run at the same time.
    """

    integers: tuple[int, ...]
    workgroups: int
    workspace: Mapping[str, int]
    zeroed: tuple[str, ...]
    order: Array | None
    together: bool
    tables: tuple[Array, ...]
    shape: tuple[int, ...]
    kind: np.dtype[Any]

    def new_output(self) -> Array:
        """Memory for D."""
        try:
            return np.empty(self.shape, self.kind)
        except MemoryError:
            raise LaunchError(f"no memory for an output of shape {self.shape}") from None


class _Formulas:
    """The host's part of the index arithmetic: everything that is known at launch."""

    def __init__(self, graph: KernelGraph, integers: list[str]) -> None:
        self.graph = graph
        self.integers = integers
        size = graph.workgroup.size
        assert size is not None
        symbols = [p.symbol for p in graph.parameters.items]
        (self.output,) = (t for t in graph.tensors if t.role is Role.OUTPUT)
        self.workspace = [t for t in graph.tensors if t.role.workspace]
        wanted = [size, *self.output.shape, *(t.elements for t in self.workspace)]
        self._values = compile_function(wanted, symbols)

    def plan(
        self, waits: Any, given: Mapping[str, int], tables: Mapping[str, Sequence[int]]
    ) -> _Plan:
        """Evaluate for one size."""
        parameters, axes = self.graph.parameters, len(self.output.shape)
        values = parameters.launch(given, tables)
        count, *numbers = self._values(*(values[p.name] for p in parameters.items))
        shape, elements = numbers[:axes], numbers[axes:]
        order, together = None, False
        try:
            order = starting_order(self.graph, waits, count, given, tables)
        except Circle as circle:
            if count > MOST_THREADS:
                raise LaunchError(
                    f"{circle}, and {count} are more than the {MOST_THREADS} threads that can run "
                    "them at the same time; use fewer, or owner='last' and a reduction other than "
                    "scatter"
                ) from None
            together = True
        return _Plan(
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
            tuple(shape),
            numpy_dtype(self.output.dtype),
        )


def _prototype(walker: HostWalker) -> Any:
    """The type of `run`; ctypes lets other threads go on while it runs."""
    pointers = [ctypes.c_void_p] * (len(walker.graph.tensors) + len(walker.tables) + 1)
    scalars = [scalar_type(dtype(kind)) for kind in walker.arguments.float_kinds.values()]
    integers = [ctypes.c_int64] * len(walker.parameters)
    head = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)
    return ctypes.CFUNCTYPE(None, *head, *pointers, *scalars, *integers)
