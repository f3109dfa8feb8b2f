"""`CudaKernel`: a scheduled graph, compiled for NVIDIA GPUs of one architecture."""

from __future__ import annotations

import threading
from collections.abc import Hashable, Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any
from weakref import finalize

from codegen.architectures import Alignment, Variant
from codegen.call.arrangement import Repeat
from codegen.call.arrays import Library, library, row_major, stream_handle
from codegen.call.checks import check_call, problem_parameters
from codegen.call.operands import Operands
from codegen.call.overlap import check_overlap
from codegen.call.seen_launches import saw_checked
from codegen.call.views import TensorView, label, single
from codegen.call.zero_extents import extents, lacks_depth, operands_of_depth, writes_nothing
from codegen.kernel import Kernel
from codegen.lru import LRUCache
from codegen.targets.nvptx.building import Builder, Choice
from codegen.targets.nvptx.driver import (
    Device,
    allow_while_capturing,
    device,
    is_capturing,
    require_gpu,
)
from codegen.targets.nvptx.launch.call import (
    CheckedCall,
    Depthless,
    Idle,
    Launches,
    Loaded,
    other_operands,
)
from codegen.targets.nvptx.launch.call_keys import LOW_BITS, call_key
from codegen.targets.nvptx.launch.device_workspaces import Workspaces
from codegen.targets.nvptx.launch.release import free_released, release
from codegen.targets.nvptx.launch.repeated import RepeatedCall, RepeatedEpilogue
from codegen.targets.nvptx.launch.variants import NARROW, variant_of
from codegen.targets.nvptx.program import CudaProgram
from coordgraph import KernelGraph, LaunchError
from coordgraph.epilogue import ALPHA_BETA
from coordgraph.gemm import OFFSETS
from coordgraph.interpreter.arguments import factor_of_c
from coordgraph.progress import wait_direction
from coordgraph.tensors import dtype
from passes import Pass
from passes.lowering.architectures import ALIGNED_BYTES

__all__ = ["CudaKernel"]

MOST_PLANS = 1024
"""The `limit` of the LRU cache in which a kernel keeps a `CheckedCall` for each key of a call. The
key holds, among other things, the shapes, types, strides and alignments of the call's arrays."""
ZEROS = "zeros"
"""The owner and the name, in `Workspaces`, of the buffer of zeros that calls with k = 0 read as A
and B. The owner is no stream, because calls on all streams share the buffer."""
IN_CAPTURE = (
    "this call would compile a kernel while a CUDA graph is captured; make the same call once "
    "before the capture, or build the kernels of all calls by codegen.warm or codegen.warm_calls"
)
"""The message of a call in a capture whose kernel is neither loaded nor in the cache on disk."""


class CudaKernel(Kernel):
    """A GEMM kernel for the tensor cores of NVIDIA GPUs.

    A kernel has several variants, which are compiled programs. The widest variant moves 16 bytes
    per access, and serves tensors whose addresses and contiguous extents are multiples of 16 bytes.
    Variants for other tensors are compiled at their first use.

    The first call with tensors of certain shapes, types and alignments is checked in full. The
    result is kept as a `CheckedCall`, which launches later calls with the same key without checks.

    Args:
        graph: a scheduled graph.
        architecture: the architecture to compile for, such as `sm_90a`.
        debug: whether kernels trap, instead of hanging, when a wait takes too long.
        lowering: the lowering pass with options; None means the architecture's default.
        instructions: the only lowering that may be used, by its name, such as `wgmma`.
        timeline: how many timeline records each role of a workgroup (the producer, or a consumer)
            keeps; 0 for a kernel without a timeline.
        verify: whether to check the graph before code is generated for it, even if only passes of
            this library made it.

    Raises:
        VerifyError: a check refutes the graph.
        CodegenError: the architecture's lowerings, `lowering` or `instructions` refuse the graph.
    """

    def __init__(
        self,
        graph: KernelGraph,
        architecture: str,
        *,
        debug: bool = False,
        lowering: Pass | None = None,
        instructions: str | None = None,
        timeline: int = 0,
        verify: bool = False,
    ) -> None:
        super().__init__(graph, architecture)
        self.architecture = architecture
        self.debug = debug
        self._builder = Builder(
            graph,
            architecture,
            debug=debug,
            lowering=lowering,
            instructions=instructions,
            timeline=timeline,
            verify=verify,
        )
        self._programs = self._builder.programs
        self._functions: dict[tuple[int, Variant], Loaded] = {}
        self._workspaces: dict[int, Workspaces] = {}
        self._plans = LRUCache[Hashable, Launches](MOST_PLANS)
        real = dtype(graph.gemm.accumulator).is_float
        self._default = graph.gemm.epilogue == ALPHA_BETA
        self._plain = self._default and real
        self._others = other_operands(graph.tensors)
        self._outputs, self._stores_d = tuple(graph.gemm.outputs), graph.gemm.epilogue.stores_d
        self._lock = threading.RLock()
        released = finalize(self, release, self._functions, self._workspaces)
        released.atexit = False  # the driver frees everything when the process ends

    @property
    def instructions(self) -> str:
        """The name of the lowering that is used for 16-byte aligned tensors, such as `wgmma`."""
        return self.choice().instructions

    @property
    def instruction_family(self) -> str:
        """The instructions that handle 16-byte aligned tensors, such as `wgmma + TMA`."""
        return self.choice().family

    @property
    def lowering_notes(self) -> tuple[str, ...]:
        """For each lowering that is faster than the one in use: the reason why it is not used."""
        return self.choice().notes

    @property
    def from_cache(self) -> bool:
        """Whether all code that was loaded on a GPU came from the cache on disk."""
        return bool(self._functions) and not self._builder.generated

    @property
    def build_steps(self) -> str:
        """The steps of compilation that were run so far, for reports of compilation times."""
        made = "PTX from the cache" if self.from_cache else "lowering, LLVM IR, PTX by LLVM"
        return f"{made}, loading by the driver" if self._functions else made

    def choice(self, alignment: int = ALIGNED_BYTES, *, reads_c: bool = False) -> Choice:
        """The lowering used for tensors of this alignment, and why faster lowerings are not used.

        Args:
            alignment: the largest power of two, up to 16, that divides the addresses and strides of
                A and B in bytes.
            reads_c: whether the call passes C.
        """
        return self._builder.choice(self._aligned(alignment), reads_c=reads_c)

    def variant(self, alignment: int = ALIGNED_BYTES, *, reads_c: bool = False) -> Variant:
        """The fastest variant for tensors aligned to `alignment` bytes; it reads C if `reads_c`.

        Raises:
            LaunchError: the caller of `compile` allows only a lowering that needs a larger
                alignment.
        """
        return self._builder.variant(self._aligned(alignment), reads_c=reads_c)

    def _aligned(self, alignment: int) -> Alignment:
        """The `Alignment` of tensors: addresses and strides are multiples of `alignment` bytes."""
        widest = self._builder.aligned.vectors
        return Alignment(widest if alignment == ALIGNED_BYTES else NARROW, alignment)

    def program(self, variant: Variant | None = None) -> CudaProgram:
        """The program of `variant`; None means the one for 16-byte aligned tensors, without C."""
        return self._builder.program(variant or self._builder.widest)

    @property
    def lowered(self) -> KernelGraph:
        """The lowered graph of the variant for 16-byte aligned tensors."""
        return self.program().lowered

    @property
    def llvm_ir(self) -> str:
        """The LLVM IR of the variant for 16-byte aligned tensors, before optimisation."""
        return self.program().llvm_ir

    @property
    def ptx(self) -> str:
        """The PTX of the variant for 16-byte aligned tensors."""
        return self.program().ptx

    @property
    def located_code(self) -> tuple[tuple[str, int], ...]:
        """The lines of the kernel's PTX, each with the preorder number of its graph operation."""
        return self.program().located_ptx

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
        """Launch the kernel on a stream, and return D without waiting for the end of the launch.

        The arguments (matrices, scalars, offsets, …) are described at `codegen.Kernel`. Without
        `out`, D is a new array of `a`'s library; the default stream is that library's current one.

        Raises:
            LaunchError: arguments do not fit the kernel, or the launch fails.
        """
        require_gpu()
        home, away = library(a), library(a if out is None else out)
        scalars, read, c, others = self._operands(c, alpha, beta, operands)
        named = zip(self._others, others, strict=True) if others else ()
        key, pointers = call_key((a, b, c, out, offsets), named, read, workgroups)
        plan = self._plans.get(key)
        if plan is None:
            views = self._views(a, b, c, out, offsets, others)  # refuses arrays in host memory
            handle = home.current_stream(a) if stream is None else stream_handle(stream)
            free_released(handle)
            plan = self._checked(views, scalars, workgroups, handle)
            self._plans.put(key, plan)
        missing = [name for name in self._outputs if operands.get(name) is None]
        makes_d = out is None and self._stores_d
        if makes_d or missing:
            made = {name: self._new(home, a, plan, name) for name in missing}
            if makes_d:
                out = self._new(home, a, plan, "D")
                pointers = (*pointers[:3], home.address(out), *pointers[4:])
            if made or pointers[3] & LOW_BITS:
                # Call again with the new outputs: their alignment may need another variant.
                more = {"workgroups": workgroups, "offsets": offsets, **operands, **made}
                return self(a, b, c, out, alpha, beta, stream, **more)
        elif plan.overlaps(pointers):
            # Address ranges overlap, but matrices of a batch may still be disjoint: check them.
            views = self._views(a, b, c, out, offsets, others)
            check_overlap(views, self.graph.gemm.stored)
        handle = home.current_stream(a) if stream is None else stream_handle(stream)
        plan.launch(pointers, scalars, handle)
        saw_checked()
        if away.waits:
            away.finish(handle)
        return (out, *(operands[name] for name in self._outputs)) if self._outputs else out

    def _operands(
        self, c: Any, alpha: float, beta: float | None, operands: Mapping[str, Any]
    ) -> tuple[tuple[float, ...], tuple[bool, ...], Any, tuple[Any, ...]]:
        """The operands of a call.

        Returns:
            The scalars of the epilogue in order; for each scalar on whose value the launch depends,
            whether it is not 0; C or None; and the arrays passed by keyword, in the order of the
            call's pointers.

        Args:
            c, alpha, beta, operands: the arguments of the call; any epilogue may have them.
        """
        beta = factor_of_c(beta, c, self.graph.gemm.epilogue)
        if self._plain and not operands and type(alpha) is float and type(beta) is float:
            return (alpha, beta), (beta != 0,), c, ()
        given = Operands.of(self.graph.gemm, c, alpha, beta, operands)
        passed = {**given.arrays, **given.outputs}
        others = tuple(map(passed.get, self._others))
        scalars = tuple(given.scalars.values())
        return scalars, tuple(value != 0 for value in scalars), given.arrays.get("C"), others

    def repeated(
        self,
        a: Any,
        b: Any,
        c: Any,
        out: Any,
        alpha: float,
        beta: float,
        workgroups: int | None,
        operands: Mapping[str, Any],
        offsets: Any = None,
    ) -> Repeat | None:
        scalars, read, c, others = self._operands(c, alpha, beta, operands)
        named = zip(self._others, others, strict=True) if others else ()
        arrays = [x for x in (a, b, c, out, offsets, *others) if x is not None]
        if not all(library(x).keyed for x in arrays) or not all(type(x) is float for x in scalars):
            return None
        key, pointers = call_key((a, b, c, out, offsets), named, read, workgroups)
        checked = self._plans.get(key)
        if checked is None or any(pointer & LOW_BITS for pointer in pointers):
            return None
        if not self._default or others:
            return RepeatedEpilogue(checked, self, a, scalars)
        return RepeatedCall(checked, self, (a, b, c, out, offsets))

    def _new(self, home: Library, like: Any, plan: Launches, tensor: str) -> Any:
        """A new array for D or another output, of the library of the array `like`."""
        return home.empty(like, plan.shapes[tensor], self.graph.tensor(tensor).dtype)

    def _views(
        self, a: Any, b: Any, c: Any, out: Any, offsets: Any, others: tuple[Any, ...]
    ) -> dict[str, TensorView]:
        """Views of the arrays that a call passes, by the name of the tensor."""
        arrays = {"A": a, "B": b, "C": c, "D": out, OFFSETS: offsets}
        arrays |= dict(zip(self._others, others, strict=False))
        return {
            name: single(name, library(array).view(array, label(name)))
            for name, array in arrays.items()
            if array is not None
        }

    def _checked(
        self,
        views: dict[str, TensorView],
        scalars: tuple[float, ...],
        workgroups: int | None,
        stream: int | None = None,
    ) -> Launches:
        """Check a call in full, and return a checked call, which can be launched repeatedly.

        Outputs that the call does not pass are assumed to be aligned to 16 bytes.

        Args:
            views: the arrays that the call passes, by the name of the tensor.
            scalars: the scalars of the epilogue, in order.
            workgroups: how many workgroups to launch, if the schedule's option `workgroups` is
                None.
            stream: the stream of the launch; None if it captures no CUDA graph.

        Raises:
            LaunchError: shapes, types, memory or parameters do not fit the kernel; or it would be
                compiled while the stream captures a CUDA graph.
        """
        names = (o.name for o in self.graph.gemm.epilogue.scalars)
        numbers = dict(zip(names, scalars, strict=True))
        given = problem_parameters(self.graph, views, scalars=numbers)
        check_call(self.graph, views, scalars=numbers)
        if writes_nothing(given):
            stored = self.graph.gemm.stored
            return Idle({name: extents(self.graph, name, given) for name in stored})
        where = device(int(views["A"].device or 0))
        with self._lock:
            workspaces = self._workspaces.setdefault(where.ordinal, Workspaces(where))
            zeros = None
            if lacks_depth(given):
                views |= self._zeros(workspaces, given)
                given = problem_parameters(self.graph, views, scalars=numbers)
                zeros = views["A"].pointer
            loaded = self._load(where, variant_of(self._builder, views, given), stream)
            plan = CheckedCall(loaded, loaded.parameters(given, workgroups), workspaces)
            return plan if zeros is None else Depthless(plan, zeros, self._default)

    def _zeros(self, workspaces: Workspaces, given: Mapping[str, int]) -> dict[str, TensorView]:
        """Views of A and B that are all zeros, for calls with k = 0.

        Both have the smallest k for which rows are multiples of 16 bytes. Both are in one buffer,
        which all streams share, because the buffer is never written again.
        """
        kind, where = self.graph.gemm.dtype, workspaces.device
        depth = ALIGNED_BYTES // dtype(kind).bytes
        made = {
            name: TensorView(0, shape, row_major(shape), kind, where.ordinal)
            for name, shape in operands_of_depth(self.graph, given, depth).items()
        }
        size = max(view.bytes for view in made.values())
        with where.current():
            pointer = workspaces.get(ZEROS, ZEROS, size, zeroed=True)
        return {name: replace(view, pointer=pointer) for name, view in made.items()}

    def _load(
        self, where: Device, variant: Variant | None = None, stream: int | None = None
    ) -> Loaded:
        """The compiled program of `variant`; the first call for a GPU and a variant loads it.

        Args:
            where: the GPU.
            variant: the variant; None means the variant `Builder.widest`, which needs tensors
                aligned to 16 bytes and does not read C.
            stream: the stream of a launch; None if nothing is launched. If it captures a CUDA
                graph, code is loaded from the cache on disk, but not compiled.

        Raises:
            LaunchError: the code would be compiled during a capture.
        """
        variant = variant or self._builder.widest
        key = (where.ordinal, variant)
        with self._lock:
            if key not in self._functions:
                with where.current():  # a thread that is new, as of a backward pass, has no context
                    captured = stream is not None and is_capturing(stream)
                if captured and not self._builder.is_cached(variant):
                    raise LaunchError(IN_CAPTURE)
                with allow_while_capturing():
                    self._functions[key] = self._builder.load(where, variant)
            return self._functions[key]

    def preload(self, where: Device, *, reads_c: bool = False) -> None:
        """Load the code for tensors with 16-byte aligned rows on a GPU, before the first call.

        Args:
            where: the GPU.
            reads_c: whether the code is for calls that pass C.

        Raises:
            CodegenError: the driver cannot assemble the code, or registers spill.
        """
        self._load(where, self._builder.variant(self._builder.aligned, reads_c=reads_c))

    def is_loaded_for(self, views: Mapping[str, TensorView], scalars: Mapping[str, float]) -> bool:
        """Whether a call with these arrays and scalars neither compiles nor loads code."""
        return bool(self._functions) and self._place(views, scalars) in self._functions

    def load_for(self, views: Mapping[str, TensorView], scalars: Mapping[str, float]) -> None:
        """Compile and load the code that a call with these arrays and scalars runs."""
        ordinal, variant = self._place(views, scalars)
        self._load(device(ordinal), variant)

    def _place(
        self, views: Mapping[str, TensorView], scalars: Mapping[str, float]
    ) -> tuple[int, Variant]:
        """The number of the GPU on which a call runs, and the variant that it runs."""
        given = problem_parameters(self.graph, views, scalars=scalars)
        return int(views["A"].device or 0), variant_of(self._builder, views, given)

    @cached_property
    def waits(self) -> str:
        """Whether workgroups wait for `lower` or `higher` numbers, `mixed` (both), or `none`."""
        return wait_direction(self.graph)

    @property
    def resident(self) -> int:
        """Workgroups that GPU 0 runs at once, in the variant for 16-byte aligned tensors."""
        return self._load(device(0)).function.resident

    @property
    def registers(self) -> int:
        """Registers of a thread on GPU 0, in the variant for 16-byte aligned tensors."""
        return self._load(device(0)).function.registers
