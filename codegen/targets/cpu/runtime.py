"""`HostKernel`: a scheduled graph, compiled for the CPU that this process runs on."""

from __future__ import annotations

import ctypes
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from math import inf
from time import perf_counter
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
from codegen.lru import LRUCache
from codegen.targets.cpu.code import HostCode, host_code
from codegen.targets.cpu.control_block import ControlBlock
from codegen.targets.cpu.emit import RUN_NAME, HostWalker
from codegen.targets.cpu.failures import StoppedLaunch, failure_text
from codegen.targets.cpu.machine import host, lower
from codegen.targets.cpu.order import Circle, starting_order
from codegen.targets.cpu.threads import MOST_THREADS, run_on_threads, thread_count
from codegen.targets.cpu.workspace import Workspace, Workspaces
from coordgraph import CodegenError, KernelGraph, LaunchError
from coordgraph.foreign_graphs import faults_named
from coordgraph.integers import compile_function
from coordgraph.interpreter.arguments import Array, numpy_dtype
from coordgraph.progress import wait_direction
from coordgraph.tensors import Role, dtype

__all__ = ["HostKernel", "compile_host"]

WORKGROUPS_PER_THREAD = 2
"""How many workgroups a launch has for each thread, if neither schedule nor call says a number."""
BRIEF = 0.01
"""A launch that took less time than this, in seconds, is repeated in the caller's own thread. The
time includes the 70 microseconds that another thread costs, which is less than 1 % of it."""
KEPT_PLANS = 64
"""For how many combinations of sizes and offsets a kernel keeps the evaluated parameters of a
launch."""


class HostKernel(Kernel):
    """A kernel for this machine's CPU, called with numpy arrays.

    One thread executes a workgroup from beginning to end. The number of threads changes neither the
    result nor whether the kernel finishes. Workgroups that wait for each other
    (`reduction="scatter"`) get one thread each. A launch that deadlocks ends with a LaunchError.

    Args:
        graph: a scheduled graph.
        debug: whether to check every index; an index outside its tensor ends the launch with a
            LaunchError.
        watched: whether to check every index until a launch with the same parameters, tables and
            sizes of arrays has ended without an error. All addresses are functions of these, so
            later launches need no checks.
    """

    def __init__(self, graph: KernelGraph, *, debug: bool = False, watched: bool = False) -> None:
        graph.workgroup  # noqa: B018 - raises an error with advice if no schedule was applied
        if graph.level != "scheduled":
            raise CodegenError(
                f"the graph has the level '{graph.level}'; pass a graph with one schedule applied, "
                "such as StreamK()(graph), which the kernel lowers itself"
            )
        super().__init__(graph, "cpu")
        self._lowered = lower(graph)
        self.waits = wait_direction(graph)
        self._debug, self._watched = debug, watched and not debug
        self._good: LRUCache[Hashable, bool] = LRUCache(KEPT_PLANS)
        """Launches of a watched kernel that ended without an error, by all that addresses depend
        on."""
        first = self._guarded if debug or watched else self._plain
        self._workspaces = Workspaces(first.buffer_bytes)
        self._formulas = _Formulas(graph, first.parameters)
        self._plan = lru_cache(KEPT_PLANS)(self._make_plan)

    @cached_property
    def _plain(self) -> _Build:
        """The machine code without checks."""
        return _Build.of(self._lowered, guarded=False)

    @cached_property
    def _guarded(self) -> _Build:
        """The machine code that checks every index."""
        return _Build.of(self._lowered, guarded=True)

    @property
    def _code(self) -> HostCode:
        return (self._guarded if self._debug else self._plain).code

    @property
    def lowered(self) -> KernelGraph:
        """The lowered graph that the code was generated from."""
        return self._lowered

    @property
    def instruction_family(self) -> str:
        """The width of the host's vector instructions, such as `256-bit vectors`."""
        return f"{host().vector_bits}-bit vectors"

    @property
    def from_cache(self) -> bool:
        """Whether the machine code was read from the cache on disk."""
        return self._code.from_cache

    @property
    def build_steps(self) -> str:
        """The steps of compilation that made the machine code, for reports of compilation times."""
        source = "from the cache" if self.from_cache else "by LLVM"
        return f"lowering, LLVM IR, machine code {source}"

    @property
    def llvm_ir(self) -> str:
        """The kernel's LLVM IR before optimisation."""
        return self._code.text

    @property
    def assembly(self) -> str:
        """The machine code as assembly text; it is generated at the first use of this property."""
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
        """Compute D and return it; shapes are those of `codegen.Kernel`.

        Args:
            a, b, c, out: A, B, C and D as numpy arrays; without `out`, a new array is returned.
            alpha, beta: scalars of the default epilogue.
            stream: must be None, because CPU kernels have no streams.
            workgroups: how many workgroups to run, if the schedule's option `workgroups` is None;
                by default two for each thread, or one if workgroups wait for each other.
            offsets: the group offsets of a grouped kernel.
            operands: the operands of the graph's own epilogue, by name.
            threads: how many threads to use; by default `COORDGRAPH_THREADS`, or one for each
                processor.

        Raises:
            LaunchError: arguments do not fit the kernel, or memory cannot be allocated.
        """
        if stream is not None:
            raise LaunchError(f"stream = {stream!r}: CPU kernels have no streams; leave it out")
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
            # Workgroups that wait for each other need one thread each. With one workgroup for each
            # thread, there are no more busy threads than processors.
            default = threads if self.waits == "mixed" else WORKGROUPS_PER_THREAD * threads
            given["workgroups"] = default if workgroups is None else workgroups
        elif workgroups is not None:
            raise LaunchError(
                f"workgroups = {workgroups}, but the schedule was made for a fixed number; leave "
                "it out, or apply the schedule with workgroups=None"
            )
        rows = rows_of_offsets(self.graph.gemm, offsets)
        tables = tuple((name, tuple(map(int, row))) for name, row in rows.items())
        with faults_named("launching the kernel", self.graph):
            plan = self._plan(tuple(given.items()), tables)
            result = plan.new_output() if out is None else out
            views.setdefault("D", numpy_view(result, "out"))
            threads = plan.workgroups if plan.together else min(threads, plan.workgroups)
            self._launch(plan, by_table(self.graph, views), tuple(bound.scalars.values()), threads)
        return result

    def _make_plan(
        self, given: tuple[tuple[str, int], ...], tables: tuple[tuple[str, tuple[int, ...]], ...]
    ) -> _Plan:
        """Evaluate the values of a launch that depend only on its parameters and tables."""
        return self._formulas.plan(self.waits, dict(given), dict(tables))

    def _launch(
        self,
        plan: _Plan,
        views: Mapping[str, TensorView],
        scalars: tuple[float, ...],
        threads: int,
    ) -> None:
        """Run the kernel on `threads` threads, and wait until it has ended.

        Args:
            plan: the evaluated parameters of the launch.
            views: the arrays of A, B, C, D and operands, by tensor.
            scalars: the scalars of the epilogue.
            threads: how many threads run workgroups.
        """
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
            limits = self._limits(views, workspace, plan)
            control = ControlBlock(threads, limits)
            order = None if plan.order is None else plan.order.ctypes.data
            known = tuple(plan.given.items()), tuple(plan.known.items()), limits.tobytes()
            guarded = self._debug or (self._watched and not self._good.get(known))
            build = self._guarded if guarded else self._plain

            def work(thread: int) -> None:
                build.run(
                    order,
                    control.address,
                    control.slot(thread),
                    plan.workgroups,
                    *pointers,
                    buffers[thread].ctypes.data,
                    *scalars,
                    *plan.integers,
                )

            start = perf_counter()
            brief = plan.took.seconds < BRIEF and not guarded
            run_on_threads(work, threads, control.stop, brief=brief)
            plan.took.seconds = perf_counter() - start
            if control.fault:
                raise StoppedLaunch(
                    failure_text(
                        control, self._lowered, self.graph, build.operations, plan.given, plan.known
                    )
                )
        if self._watched:
            self._good.put(known, True)

    def _limits(self, views: Mapping[str, TensorView], workspace: Workspace, plan: _Plan) -> Array:
        """(first valid index, one past the last) of each tensor, in elements from its address.

        Derived tables come after the tensors.
        """
        limits: list[tuple[int, int]] = []
        for t in self.graph.tensors:
            if t.name in workspace.tensors:
                limits.append((0, workspace.tensors[t.name].nbytes // dtype(t.dtype).bytes))
            else:
                limits.append(views[t.name].span if t.name in views else (0, 0))
        limits += [(0, len(table)) for table in plan.tables]
        return np.array(limits, np.int64)


def compile_host(graph: KernelGraph, *, debug: bool = False) -> HostKernel:
    """Compile a scheduled graph for this machine's CPU; `debug` makes launches check every index.

    Raises:
        VerifyError: no schedule has been applied to the graph.
        CodegenError: the graph is not at the level "scheduled", or the CPU cannot run it.
    """
    return HostKernel(graph, debug=debug)


@dataclass(frozen=True)
class _Build:
    """Machine code of a kernel.

    Attributes:
        code: the machine code.
        run: the compiled function `run`, which executes workgroups.
        operations: (kind, dimension) of each operation that can stop a launch, by its number.
        buffer_bytes: bytes of the buffers of one thread.
        parameters: the names of the integer arguments of `run`, in order.
    """

    code: HostCode
    run: Any
    operations: tuple[tuple[str, str], ...]
    buffer_bytes: int
    parameters: list[str]

    @classmethod
    def of(cls, lowered: KernelGraph, *, guarded: bool) -> _Build:
        """Compile a lowered graph; `guarded` code checks every index."""
        walker = HostWalker(lowered, host().triple, guarded=guarded)
        code = host_code(str(walker.build()), quick=guarded)
        run = _prototype(walker)(code.address(RUN_NAME))
        operations = tuple(walker.operations)
        return cls(code, run, operations, walker.buffer_bytes, walker.parameters)


@dataclass
class _Took:
    """How long the last launch with a plan took, in seconds; infinite before the first one."""

    seconds: float = inf


@dataclass(frozen=True)
class _Plan:
    """The values that launches with equal parameters and tables share.

    Attributes:
        integers: the integer arguments of the compiled function, in order.
        workgroups: how many workgroups the launch has.
        workspace: bytes of each workspace tensor, by name.
        zeroed: names of the workspace tensors that must be zero before the launch.
        order: the workgroup numbers in the order in which to start them; None for 0, 1, 2, …
        together: whether all workgroups must run at the same time, each on its own thread.
        tables: the entries of the derived tables, i32.
        given: the parameters of the launch, by name.
        known: the entries of the tables that the call passes, by name.
        shape: the shape of D in elements.
        kind: the NumPy type of D's elements.
        took: how long the last launch took.
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
    shape: tuple[int, ...]
    kind: np.dtype[Any]
    took: _Took = field(default_factory=_Took, compare=False)

    def new_output(self) -> Array:
        """Allocate the array for D.

        Raises:
            LaunchError: the memory cannot be allocated.
        """
        try:
            return np.empty(self.shape, self.kind)
        except MemoryError:
            raise LaunchError(
                f"an output of shape {self.shape} and type {self.kind} cannot be allocated; "
                "compute it in parts, or pass out="
            ) from None


class _Formulas:
    """Evaluates the expressions that are known at a launch: grid, shapes, workspace sizes.

    Args:
        graph: the scheduled graph.
        integers: the names of the integer arguments of the compiled function, in order.
    """

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
        """Evaluate the expressions for the parameters and tables of a launch.

        Args:
            waits: which workgroups a workgroup waits for (`coordgraph.progress.WaitDirection`).
            given: the parameters of the launch, by name.
            tables: the entries of the tables that the call passes, by name.

        Raises:
            LaunchError: there are more workgroups than threads, and all must run at the same time.
        """
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
                    f"{circle}, so that all {count} must run at the same time, and there are at "
                    f"most {MOST_THREADS} threads; use fewer workgroups, or owner='last' and a "
                    "reduction other than scatter"
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
            given,
            tables,
            tuple(shape),
            numpy_dtype(self.output.dtype),
        )


def _prototype(walker: HostWalker) -> Any:
    """The ctypes type of the function `run`; ctypes releases Python's GIL during a call."""
    pointers = [ctypes.c_void_p] * (len(walker.graph.tensors) + len(walker.tables) + 1)
    scalars = [scalar_type(dtype(kind)) for kind in walker.arguments.float_kinds.values()]
    integers = [ctypes.c_int64] * len(walker.parameters)
    head = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)
    return ctypes.CFUNCTYPE(None, *head, *pointers, *scalars, *integers)
