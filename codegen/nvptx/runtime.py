"""`CudaKernel`: a scheduled graph compiled for an NVIDIA GPU, ready to be called."""

from __future__ import annotations

import threading
from collections.abc import Hashable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from math import gcd
from typing import Any
from weakref import finalize

from codegen.arrays import library, row_major, stream_handle
from codegen.checks import (
    LABELS,
    TensorView,
    check_call,
    check_overlap,
    number,
    problem_parameters,
)
from codegen.empty import extents, lacks_depth, operands_of_depth, writes_nothing
from codegen.kernel import Kernel
from codegen.nvptx.building import Builder, Variant
from codegen.nvptx.driver import Device, allow_while_capturing, cuda, device, require_gpu
from codegen.nvptx.plan import Depthless, Idle, Launches, Loaded, Plan
from codegen.nvptx.program import WIDEST, CudaProgram, Vectors
from codegen.nvptx.tensormaps import ALIGNMENT, copy_engine_takes
from codegen.nvptx.workspace import Workspaces
from codegen.recent import Recent
from coordgraph import KernelGraph, LaunchError
from coordgraph.gemm import OFFSETS, stride_of
from coordgraph.progress import wait_direction
from coordgraph.tensors import dtype
from passes.lowering import LowerToHopper

__all__ = ["CudaKernel"]

MOST_PLANS = 1024
LOW_BITS = ALIGNMENT - 1
"""What of an address decides which code serves it."""
NOTHING: tuple[Hashable, int] = (None, 0)
ZEROS = "zeros"
"""A buffer, and its owner."""
NARROW = Vectors(1, 1, 1)
"""Where nothing is known."""
PAIR = 2
"""Elements of C and D that lie side by side in a thread."""


class CudaKernel(Kernel):
    """A kernel for tensor cores.

    The code that moves 8 elements at a time serves tensors whose addresses and contiguous extents
    allow it; narrower variants are compiled when they are first needed.

    The first call with tensors of some shapes, types and alignment is checked in full; what follows
    from the checks is kept as a `Plan`, and calls like it go straight to the launch.

    Args:
        graph: a scheduled graph.
        architecture: as `sm_90a`.
        debug: let kernels that wait too long trap instead of hanging.
        lowering: how to lower the code for the copy engine, in place of the default.

    Raises:
        CodegenError: the graph or the lowering is not for this architecture.
    """

    def __init__(
        self,
        graph: KernelGraph,
        architecture: str,
        *,
        debug: bool = False,
        lowering: LowerToHopper | None = None,
    ) -> None:
        super().__init__(graph, architecture)
        self.architecture = architecture
        self.debug = debug
        self._builder = Builder(graph, architecture, debug=debug, lowering=lowering)
        self._programs = self._builder.programs
        self._functions: dict[tuple[int, Variant], Loaded] = {}
        self._workspaces: dict[int, Workspaces] = {}
        self._plans = Recent[Hashable, Launches](MOST_PLANS)
        self._lock = threading.RLock()
        release = finalize(self, _release, self._functions, self._workspaces)
        release.atexit = False  # the driver frees everything with the process

    @property
    def boxes(self) -> bool:
        """Whether well-aligned tensors are brought by the copy engine."""
        return self._builder.boxes

    def program(self, variant: Variant | None = None) -> CudaProgram:
        """The code of a variant; by default of the one for well-aligned tensors."""
        return self._builder.program(variant or self._builder.widest)

    @property
    def lowered(self) -> KernelGraph:
        """The graph that the widest variant was generated from."""
        return self.program().lowered

    @property
    def llvm_ir(self) -> str:
        """LLVM IR of the widest variant, before optimisation."""
        return self.program().llvm_ir

    @property
    def ptx(self) -> str:
        """PTX of the widest variant."""
        return self.program().ptx

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
        """Compute D on the stream; see `Kernel`. A new `out` comes from the library of `a`."""
        require_gpu()
        home = library(a)
        key_a, at_a = home.glance(a, "a")
        key_b, at_b = library(b).glance(b, "b")
        key_c, at_c = NOTHING if c is None else library(c).glance(c, "c")
        away = home if out is None else library(out)
        key_d, at_d = NOTHING if out is None else away.glance(out, "out")
        key_o, at_o = NOTHING if offsets is None else library(offsets).glance(offsets, OFFSETS)
        alpha = alpha if type(alpha) is float else number(alpha, "alpha")
        beta = beta if type(beta) is float else number(beta, "beta")
        low = (at_a & LOW_BITS, at_b & LOW_BITS, at_c & LOW_BITS, at_d & LOW_BITS)
        key = (key_a, key_b, key_c, key_d, key_o, low, beta != 0, workgroups)
        plan = self._plans.get(key)
        if plan is None:
            plan = self._checked(a, b, c, out, offsets, beta, workgroups)
            self._plans.put(key, plan)
        if out is None:
            out = home.empty(a, plan.shape, self.graph.gemm.out_dtype or "")
            at_d = home.address(out)
            if at_d & LOW_BITS:
                return self(
                    *(a, b, c, out, alpha, beta, stream), workgroups=workgroups, offsets=offsets
                )
        elif plan.overlaps((at_a, at_b, at_c, at_d, at_o)):
            check_overlap(_views(a, b, c, out, offsets))  # ranges do: do matrices?
        handle = home.current_stream(a) if stream is None else stream_handle(stream)
        plan.launch((at_a, at_b, at_c, at_d, at_o), alpha, beta, handle)
        if away.waits:
            away.finish(handle)
        return out

    def _checked(
        self,
        a: Any,
        b: Any,
        c: Any,
        out: Any,
        offsets: Any,
        beta: float,
        workgroups: int | None,
    ) -> Launches:
        """Check a call in full; an `out` of None counts as one to be made, and well aligned.

        Raises:
            LaunchError: as `Kernel` says.
        """
        views = _views(a, b, c, out, offsets)
        given = problem_parameters(self.graph, views, beta=beta)
        check_call(self.graph, views, beta=beta)
        if writes_nothing(given):
            return Idle(extents(self.graph, "D", given))
        where = device(int(views["A"].device or 0))
        with self._lock:
            workspaces = self._workspaces.setdefault(where.ordinal, Workspaces(where))
            zeros = None
            if lacks_depth(given):
                views |= self._zeros(workspaces, given)
                given, zeros = problem_parameters(self.graph, views, beta=beta), views["A"].pointer
            loaded = self._load(where, self._variant(views, given))
            plan = Plan(loaded, loaded.parameters(given, workgroups), workspaces)
            return plan if zeros is None else Depthless(plan, zeros)

    def _zeros(self, workspaces: Workspaces, given: Mapping[str, int]) -> dict[str, TensorView]:
        """A and B of zeros, as deep as the copy engine takes at least.

        They are in one place, which all streams share: nobody writes there again.
        """
        kind, where = self.graph.gemm.dtype, workspaces.device
        depth = ALIGNMENT // dtype(kind).bytes
        made = {
            name: TensorView(0, shape, row_major(shape), kind, where.ordinal)
            for name, shape in operands_of_depth(self.graph, given, depth).items()
        }
        size = max(view.bytes for view in made.values())
        with where.current():
            pointer = workspaces.get(ZEROS, ZEROS, size, zeroed=True)
        return {name: replace(view, pointer=pointer) for name, view in made.items()}

    def _variant(self, views: Mapping[str, TensorView], given: Mapping[str, int]) -> Variant:
        """The fastest code that serves these tensors."""
        gemm = self.graph.gemm
        if gemm.diagonal:
            # Rows begin where the copy engine wants them, wherever they end.
            reads_c = bool(given["read_c"])
            moved = (views[name] for name in ("ABCD" if reads_c else "ABD") if name in views)
            aligned = all(view.pointer % ALIGNMENT == 0 for view in moved)
            vectors = WIDEST if aligned else NARROW
            return self._builder.variant(vectors, aligned=aligned, reads_c=reads_c)
        shape = tuple(getattr(gemm, axis) or given[axis] for axis in "mn")
        strides = (shape[1], 1)
        if gemm.batched:
            shape, strides = (given["batches"], *shape), (given[stride_of("D")], *strides)
        elif "D" in gemm.batched_tensors:
            shape, strides = (given["groups"], *shape), (shape[0] * shape[1], *strides)
        made = TensorView(0, shape, strides, gemm.out_dtype or gemm.dtype)
        aligned = all(copy_engine_takes(views[name]) for name in "AB")
        vectors, reads_c = _vectors({"D": made, **views}), bool(given["read_c"])
        return self._builder.variant(vectors, aligned=aligned, reads_c=reads_c)

    def _load(self, where: Device, variant: Variant | None = None) -> Loaded:
        variant = variant or self._builder.widest
        key = (where.ordinal, variant)
        with self._lock:
            if key not in self._functions:
                with allow_while_capturing():
                    self._functions[key] = self._builder.load(where, variant)
            return self._functions[key]

    @cached_property
    def waits(self) -> str:
        """Which workgroups wait for which: none, lower, higher or mixed."""
        return wait_direction(self.graph)

    @property
    def resident(self) -> int:
        """Workgroups of the widest variant that device 0 holds at a time."""
        return self._load(device(0)).function.resident

    @property
    def registers(self) -> int:
        """Registers of a thread of the widest variant, as loaded on device 0."""
        return self._load(device(0)).function.registers


def _release(
    functions: dict[tuple[int, Variant], Loaded], workspaces: dict[int, Workspaces]
) -> None:
    """Free what a kernel held, once its launches have ended."""
    for owned in workspaces.values():
        with suppress(LaunchError), owned.device.current():
            cuda("cuCtxSynchronize")
            owned.close()
    for loaded in functions.values():
        with suppress(LaunchError), loaded.function.device.current():
            cuda("cuCtxSynchronize")
            loaded.function.close()


def _views(a: Any, b: Any, c: Any, out: Any, offsets: Any) -> dict[str, TensorView]:
    """What is given of the arrays of a call, by the names of tensors."""
    arrays = {"A": a, "B": b, "C": c, "D": out, OFFSETS: offsets}
    return {
        name: library(array).view(array, LABELS[name])
        for name, array in arrays.items()
        if array is not None
    }


def _vectors(views: Mapping[str, TensorView]) -> Vectors:
    """The widest moves that rows and addresses of the tensors allow.

    Of D the widest is that of the copy engine, which is used where C can keep up with pairs.
    """

    def widest(name: str, most: int) -> int:
        found = views.get(name)
        if found is None:
            return most
        vector = gcd(most, found.shape[-1], found.matrix_stride if len(found.shape) == 3 else 0)
        while found.pointer % (vector * dtype(found.dtype).bytes):
            vector //= 2
        return vector

    pairs = min(widest("C", PAIR), widest("D", PAIR))
    whole = pairs == PAIR and copy_engine_takes(views["D"])
    return Vectors(widest("A", WIDEST.a), widest("B", WIDEST.b), WIDEST.d if whole else pairs)
