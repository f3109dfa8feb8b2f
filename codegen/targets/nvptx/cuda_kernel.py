"""`CudaKernel`: a scheduled graph compiled for an NVIDIA GPU, ready to be called."""

from __future__ import annotations

import threading
from collections.abc import Hashable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from math import gcd
from typing import Any
from weakref import finalize

from codegen.architectures import Alignment, Variant, Vectors
from codegen.call.alignment import alignment_of
from codegen.call.arrays import library, row_major, stream_handle
from codegen.call.checks import check_call, problem_parameters
from codegen.call.operands import Operands
from codegen.call.overlap import check_overlap
from codegen.call.views import TensorView, label, single
from codegen.call.zero_extents import extents, lacks_depth, operands_of_depth, writes_nothing
from codegen.kernel import Kernel
from codegen.lru import LRUCache
from codegen.targets.nvptx.building import Builder, Choice
from codegen.targets.nvptx.driver import Device, allow_while_capturing, cuda, device, require_gpu
from codegen.targets.nvptx.launch.call import (
    CheckedCall,
    Depthless,
    Idle,
    Launches,
    Loaded,
    other_operands,
)
from codegen.targets.nvptx.launch.workspace import Workspaces
from codegen.targets.nvptx.program import CudaProgram
from coordgraph import KernelGraph, LaunchError
from coordgraph.epilogue import ALPHA_BETA
from coordgraph.gemm import OFFSETS, read_of, stride_of
from coordgraph.progress import wait_direction
from coordgraph.tensors import dtype
from passes import Pass
from passes.lowering.architectures import ALIGNED_BYTES

__all__ = ["CudaKernel"]

MOST_PLANS = 1024
LOW_BITS = ALIGNED_BYTES - 1
"""The bits of an address that say how far it is aligned, and so which code serves it."""
NOTHING: tuple[Hashable, int] = (None, 0)
ZEROS = "zeros"
"""A buffer, and its owner."""
NARROW = Vectors(1, 1, 1)
"""Where nothing is known."""
PAIR = 2
"""Elements of C and D that lie side by side in a thread."""


class CudaKernel(Kernel):
    """A kernel for tensor cores.

    The code that moves 16 bytes at a time serves tensors whose addresses and contiguous extents
    allow it; narrower variants are compiled when they are first needed.

    The first call with tensors of some shapes, types and alignment is checked in full; what follows
    from the checks is kept as a `CheckedCall`, and calls like it go straight to the launch.

    Args:
        graph: a scheduled graph.
        architecture: as `sm_90a`.
        debug: let kernels that wait too long trap instead of hanging.
        lowering: options of one of the architecture's lowerings, in place of the default.
        instructions: the only lowering that may be used, by its name, such as `wgmma`.

    Raises:
        CodegenError: the graph, the lowering or the instructions are not for this architecture.
    """

    def __init__(
        self,
        graph: KernelGraph,
        architecture: str,
        *,
        debug: bool = False,
        lowering: Pass | None = None,
        instructions: str | None = None,
    ) -> None:
        super().__init__(graph, architecture)
        self.architecture = architecture
        self.debug = debug
        self._builder = Builder(
            graph, architecture, debug=debug, lowering=lowering, instructions=instructions
        )
        self._programs = self._builder.programs
        self._functions: dict[tuple[int, Variant], Loaded] = {}
        self._workspaces: dict[int, Workspaces] = {}
        self._plans = LRUCache[Hashable, Launches](MOST_PLANS)
        real = dtype(graph.gemm.accumulator).is_float
        self._default = graph.gemm.epilogue == ALPHA_BETA
        self._plain = self._default and real
        self._others = other_operands(graph.tensors)
        self._lock = threading.RLock()
        release = finalize(self, _release, self._functions, self._workspaces)
        release.atexit = False  # the driver frees everything with the process

    @property
    def instructions(self) -> str:
        """What multiplies well-aligned tensors: `wgmma` or `mma.sync`, the lowering's name."""
        return self.choice().instructions

    @property
    def instruction_family(self) -> str:
        """What multiplies and copies well-aligned tensors, such as `wgmma + TMA`."""
        return self.choice().family

    @property
    def lowering_notes(self) -> tuple[str, ...]:
        """Why better lowerings of the architecture make no code of this graph, one by one."""
        return self.choice().notes

    @property
    def from_cache(self) -> bool:
        """Whether all code that was loaded on a GPU came from the cache on disk."""
        return bool(self._functions) and not self._builder.generated

    @property
    def build_steps(self) -> str:
        """The steps that made the PTX, and loaded it where that was done."""
        made = "PTX from the cache" if self.from_cache else "lowering, LLVM IR, PTX by LLVM"
        return f"{made}, loading by the driver" if self._functions else made

    def choice(self, alignment: int = ALIGNED_BYTES, *, reads_c: bool = False) -> Choice:
        """The lowering that serves tensors of an alignment, and why better ones do not.

        Args:
            alignment: the power of two, up to 16, of which addresses and strides of A and B are
                multiples, in bytes.
            reads_c: whether C is added.
        """
        widest = self._builder.aligned
        vectors = widest.vectors if alignment == ALIGNED_BYTES else NARROW
        return self._builder.choice(Alignment(vectors, alignment), reads_c=reads_c)

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
        **operands: Any,
    ) -> Any:
        """Compute D on the stream; see `Kernel`. A new `out` comes from the library of `a`."""
        require_gpu()
        home = library(a)
        others: tuple[Any, ...] = ()
        if self._plain and not operands and type(alpha) is float and type(beta) is float:
            scalars, read = (alpha, beta), (beta != 0,)
        else:
            given = Operands.of(self.graph.gemm, c, alpha, beta, operands)
            c, others = given.arrays.get("C"), tuple(map(given.arrays.get, self._others))
            scalars = tuple(given.scalars.values())
            read = tuple(value != 0 for value in scalars)
        key_a, at_a = home.layout_key(a, "a")
        key_b, at_b = library(b).layout_key(b, "b")
        key_c, at_c = NOTHING if c is None else library(c).layout_key(c, "c")
        away = home if out is None else library(out)
        key_d, at_d = NOTHING if out is None else away.layout_key(out, "out")
        key_o, at_o = NOTHING if offsets is None else library(offsets).layout_key(offsets, OFFSETS)
        low = (at_a & LOW_BITS, at_b & LOW_BITS, at_c & LOW_BITS, at_d & LOW_BITS)
        key = (key_a, key_b, key_c, key_d, key_o, low, read, workgroups)
        at_others: tuple[int, ...] = ()
        if others:
            seen = [_layout_key(x, name) for x, name in zip(others, self._others, strict=True)]
            at_others = tuple(at for _, at in seen)
            key = (*key, *((found, at & LOW_BITS) for found, at in seen))
        plan = self._plans.get(key)
        if plan is None:
            views = self._views(a, b, c, out, offsets, others)
            plan = self._checked(views, scalars, workgroups)
            self._plans.put(key, plan)
        if out is None:
            out = home.empty(a, plan.shape, self.graph.gemm.out_dtype or "")
            at_d = home.address(out)
            if at_d & LOW_BITS:
                more = {"workgroups": workgroups, "offsets": offsets, **operands}
                return self(a, b, c, out, alpha, beta, stream, **more)
        elif plan.overlaps((at_a, at_b, at_c, at_d, at_o, *at_others)):
            # Ranges overlap: do matrices?
            check_overlap(self._views(a, b, c, out, offsets, others))
        handle = home.current_stream(a) if stream is None else stream_handle(stream)
        plan.launch((at_a, at_b, at_c, at_d, at_o, *at_others), scalars, handle)
        if away.waits:
            away.finish(handle)
        return out

    def _views(
        self, a: Any, b: Any, c: Any, out: Any, offsets: Any, others: tuple[Any, ...]
    ) -> dict[str, TensorView]:
        """What is given of the arrays of a call, by the names of tensors."""
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
    ) -> Launches:
        """Check a call in full; an `out` of None counts as one to be made, and well aligned.

        Raises:
            LaunchError: as `Kernel` says.
        """
        names = (o.name for o in self.graph.gemm.epilogue.scalars)
        numbers = dict(zip(names, scalars, strict=True))
        given = problem_parameters(self.graph, views, scalars=numbers)
        check_call(self.graph, views, scalars=numbers)
        if writes_nothing(given):
            return Idle(extents(self.graph, "D", given))
        where = device(int(views["A"].device or 0))
        with self._lock:
            workspaces = self._workspaces.setdefault(where.ordinal, Workspaces(where))
            zeros = None
            if lacks_depth(given):
                views |= self._zeros(workspaces, given)
                given = problem_parameters(self.graph, views, scalars=numbers)
                zeros = views["A"].pointer
            loaded = self._load(where, self._variant(views, given))
            plan = CheckedCall(loaded, loaded.parameters(given, workgroups), workspaces)
            return plan if zeros is None else Depthless(plan, zeros, self._default)

    def _zeros(self, workspaces: Workspaces, given: Mapping[str, int]) -> dict[str, TensorView]:
        """A and B of zeros, so deep that their rows are aligned for every lowering.

        They are in one place, which all streams share: nobody writes there again.
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

    def _variant(self, views: Mapping[str, TensorView], given: Mapping[str, int]) -> Variant:
        """The fastest code that serves these tensors."""
        gemm = self.graph.gemm
        if gemm.diagonal:
            # Rows begin at multiples of 16 bytes, wherever they end.
            reads_c = bool(given.get(read_of("C"), 0))
            names = {"A", "B", "D", *gemm.operands} - ({"C"} if not reads_c else set())
            moved = (view for name, view in views.items() if name in names)
            aligned = all(view.pointer % ALIGNED_BYTES == 0 for view in moved)
            alignment = self._builder.aligned if aligned else Alignment(NARROW, 1)
            return self._builder.variant(alignment, reads_c=reads_c)
        shape = tuple(getattr(gemm, axis) or given[axis] for axis in "mn")
        strides = (shape[1], 1)
        if gemm.batched:
            shape, strides = (given["batches"], *shape), (given[stride_of("D")], *strides)
        elif "D" in gemm.batched_tensors:
            shape, strides = (given["groups"], *shape), (shape[0] * shape[1], *strides)
        made = TensorView(0, shape, strides, gemm.out_dtype or gemm.dtype)
        aligned = min(alignment_of(views[name]) for name in "AB")
        along_rows = [name for name in gemm.operands if "n" in gemm.axes[name]]
        most = self._builder.aligned.vectors
        vectors = _vectors({"D": made, **views}, most, along_rows)
        reads_c = bool(given.get(read_of("C"), 0))
        return self._builder.variant(Alignment(vectors, aligned), reads_c=reads_c)

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


def _layout_key(array: Any, what: str) -> tuple[Hashable, int]:
    return NOTHING if array is None else library(array).layout_key(array, what)


def _vectors(views: Mapping[str, TensorView], most: Vectors, along_rows: Sequence[str]) -> Vectors:
    """The widest moves that rows and addresses of the tensors allow, up to `most`.

    Of D the widest is that of TMA, which is used where the epilogue's operands `along_rows`, such
    as C, can be read by pairs.
    """

    def widest(name: str, elements: int) -> int:
        found = views.get(name)
        if found is None:
            return elements
        vector = gcd(elements, found.shape[-1], found.matrix_stride if len(found.shape) == 3 else 0)
        while found.pointer % (vector * dtype(found.dtype).bytes):
            vector //= 2
        return vector

    pairs = min(widest(name, PAIR) for name in (*along_rows, "D"))
    whole = pairs == PAIR and alignment_of(views["D"]) == ALIGNED_BYTES
    return Vectors(widest("A", most.a), widest("B", most.b), most.d if whole else pairs)
