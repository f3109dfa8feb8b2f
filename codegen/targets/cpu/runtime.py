"""`HostKernel`: a scheduled graph, compiled for the CPU that this process runs on."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from functools import cached_property, lru_cache, partial
from time import perf_counter
from typing import Any

import numpy as np

from codegen.call.checks import (
    by_table,
    check_call,
    numpy_views,
    problem_parameters,
    tables_of_call,
)
from codegen.call.operands import Operands
from codegen.call.outputs import returned, written
from codegen.call.views import TensorView, label, numpy_view
from codegen.call.zero_extents import (
    lacks_depth,
    new_output,
    of_depth,
    writes_nothing,
    zeros_of_depth,
)
from codegen.kernel import Kernel
from codegen.lru import LRUCache
from codegen.targets.cpu.code import HostCode
from codegen.targets.cpu.control_block import ControlBlock
from codegen.targets.cpu.failures import StoppedLaunch, failure_text
from codegen.targets.cpu.host_build import Build
from codegen.targets.cpu.launch_plan import Formulas, Plan
from codegen.targets.cpu.machine import host, lower
from codegen.targets.cpu.threads import run_on_threads, thread_count
from codegen.targets.cpu.workspace import Workspace, Workspaces
from coordgraph import CodegenError, KernelGraph, LaunchError
from coordgraph.foreign_graphs import faults_named
from coordgraph.interpreter.arguments import Array
from coordgraph.progress import wait_direction
from coordgraph.tensors import dtype

__all__ = ["HostKernel", "Plan", "compile_host"]

WORKGROUPS_PER_THREAD = 2
"""Number of workgroups that a launch has for each thread, if neither the schedule nor the caller
sets the number of workgroups."""
BRIEF = 0.01
"""A launch is brief if the last launch with the same parameters took less than `BRIEF` seconds.

A brief launch also uses the caller's thread, although Ctrl-C cannot interrupt the kernel there. Any
other launch leaves the main thread free for Ctrl-C, and uses one more pool thread instead. That
thread costs 70 microseconds, less than 1 % of the launch.
"""
KEPT_PLANS = 64
"""For how many combinations of sizes and offsets, the most recently used ones, a kernel keeps the
evaluated parameters of a launch."""


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
            array sizes has ended without an error. All addresses depend only on parameters, tables
            and sizes, so later launches need no checks.
        timeline: how many timeline records a workgroup keeps; 0 for a kernel without a timeline.
    """

    def __init__(
        self,
        graph: KernelGraph,
        *,
        debug: bool = False,
        watched: bool = False,
        timeline: int = 0,
    ) -> None:
        graph.workgroup  # noqa: B018 - raises an error with advice if no schedule was applied
        if graph.level != "scheduled":
            raise CodegenError(
                f"the graph has the level '{graph.level}'; pass a graph with one schedule applied, "
                "such as StreamK()(graph), because compiling the kernel lowers it"
            )
        super().__init__(graph, "cpu")
        self._lowered = lower(graph, timeline)
        self.waits = wait_direction(graph)
        self._debug, self._watched = debug, watched and not debug
        self._good: LRUCache[Hashable, bool] = LRUCache(KEPT_PLANS)
        """For a kernel with `watched=True`: keys of the launches that ended without an error.
        Launches with equal keys access equal addresses, so their indices are not checked again."""
        first = self._guarded if debug or watched else self._plain
        self._workspaces = Workspaces(first.buffer_bytes)
        self._formulas = Formulas(graph, self._lowered, first.parameters)
        self._plan = lru_cache(KEPT_PLANS)(self._make_plan)

    @cached_property
    def _plain(self) -> Build:
        """The machine code that does not check indices."""
        return Build.of(self._lowered, guarded=False, foreign=self._watched)

    @cached_property
    def _guarded(self) -> Build:
        """The machine code that checks every index."""
        return Build.of(self._lowered, guarded=True, foreign=self._watched)

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
        beta: float | None = None,
        stream: Any = None,
        *,
        workgroups: int | None = None,
        offsets: Any = None,
        threads: int | None = None,
        **operands: Any,
    ) -> Any:
        """Compute D and return it.

        Args:
            a, b, c, out: A (m x k), B (k x n), C and D (m x n) as numpy arrays; `codegen.Kernel`
                describes batches and groups. Without `out`, a new array is returned.
            alpha, beta: scalars of the default epilogue, `alpha·A·B + beta·C`; by default 1, and
                beta 0 without C.
            stream: must be None, because CPU kernels have no streams.
            workgroups: how many workgroups to run, if the schedule's option `workgroups` is None;
                by default two for each thread, or one if workgroups wait for each other.
            offsets: i32 array for a grouped kernel: the index at which each group begins, and the
                index at which the last group ends.
            operands: the operands of the graph's own epilogue, and arrays for its outputs besides
                D, by name.
            threads: how many threads to use; by default `COORDGRAPH_THREADS`, or one for each
                processor.

        Raises:
            LaunchError: arguments do not fit the kernel, or memory cannot be allocated.
        """
        if stream is not None:
            raise LaunchError(
                f"stream = {stream!r}, but kernels for the CPU have no streams; leave stream out"
            )
        bound = Operands.of(self.graph.gemm, c, alpha, beta, operands)
        views = numpy_views(a, b, None, out, offsets, bound.arrays, bound.outputs)
        given = problem_parameters(self.graph, views, scalars=bound.scalars)
        check_call(self.graph, views, scalars=bound.scalars)
        threads = thread_count(threads)
        if writes_nothing(given):
            make = partial(new_output, self.graph, sizes=given)
            return returned(self.graph.gemm, written(self.graph.gemm, out, bound.outputs, make))
        if lacks_depth(given):
            a, b = zeros_of_depth(self.graph, given)
            views |= numpy_views(a, b, None, None)
            bound = of_depth(self.graph.gemm, bound)
            given = problem_parameters(self.graph, views, scalars=bound.scalars)
        if any(p.name == "workgroups" for p in self.graph.parameters.given):
            # If workgroups wait for each other, each needs its own thread. By default there are
            # then as many workgroups as threads, so that each thread has a processor.
            default = threads if self.waits == "mixed" else WORKGROUPS_PER_THREAD * threads
            given["workgroups"] = default if workgroups is None else workgroups
        elif workgroups is not None:
            raise LaunchError(
                f"workgroups = {workgroups}, but the schedule was made for a fixed number; leave "
                "workgroups out, or apply the schedule with workgroups=None"
            )
        rows = tables_of_call(self.graph.gemm, offsets, bound.arrays)
        tables = tuple((name, tuple(map(int, row))) for name, row in rows.items())
        with faults_named("launching the kernel", self.graph):
            plan = self._plan(tuple(given.items()), tables)
            results = written(self.graph.gemm, out, bound.outputs, plan.new_output)
            for name, result in results.items():
                views.setdefault(name, numpy_view(result, label(name)))
            threads = plan.workgroups if plan.together else min(threads, plan.workgroups)
            self._launch(plan, by_table(self.graph, views), tuple(bound.scalars.values()), threads)
        return returned(self.graph.gemm, results)

    def _make_plan(
        self, given: tuple[tuple[str, int], ...], tables: tuple[tuple[str, tuple[int, ...]], ...]
    ) -> Plan:
        """Evaluate the values of a launch that depend only on its parameters and tables."""
        return self._formulas.plan(self.waits, dict(given), dict(tables))

    def _launch(
        self,
        plan: Plan,
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
                for t in self._lowered.tensors
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
            self.ended(plan, workspace)
        if self._watched:
            self._good.put(known, True)

    def ended(self, plan: Plan, workspace: Workspace) -> None:
        """Hook for subclasses: called at the end of a launch, before `workspace` is reused."""

    def _limits(self, views: Mapping[str, TensorView], workspace: Workspace, plan: Plan) -> Array:
        """The valid indices of each tensor, then of each table in `plan.tables`, as an int64 array.

        A row is (first valid index, one past the last), in elements from the tensor's address.
        """
        limits: list[tuple[int, int]] = []
        for t in self._lowered.tensors:
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
