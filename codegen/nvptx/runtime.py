"""`CudaKernel`: a scheduled graph compiled for an NVIDIA GPU, ready to be called."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from functools import cached_property
from math import gcd
from typing import Any, NamedTuple
from weakref import finalize

from codegen import arrays
from codegen.checks import TensorView, check_call, problem_parameters
from codegen.kernel import Kernel
from codegen.nvptx.driver import (
    Device,
    Function,
    Spilled,
    allow_while_capturing,
    cuda,
    device,
    require_gpu,
)
from codegen.nvptx.emit import KERNEL_NAME
from codegen.nvptx.packing import ArgumentPacker
from codegen.nvptx.program import WIDEST, CudaProgram, Vectors
from codegen.nvptx.tensormaps import TensorMaps, copy_engine_takes
from codegen.nvptx.workspace import Workspaces
from coordgraph import KernelGraph, LaunchError
from coordgraph.integers import compile_function
from coordgraph.progress import wait_direction
from coordgraph.tensors import Role, dtype

__all__ = ["CudaKernel"]


class Variant(NamedTuple):
    """Which code of a kernel: how far tensors are aligned decides."""

    vectors: Vectors
    boxes: bool


class CudaKernel(Kernel):
    """A kernel for tensor cores.

    The code that moves 8 elements at a time serves tensors whose addresses and contiguous extents
    allow it; narrower variants are compiled when they are first needed.
    """

    def __init__(self, graph: KernelGraph, architecture: str, *, debug: bool = False) -> None:
        super().__init__(graph, architecture)
        self.architecture = architecture
        self.debug = debug
        self._programs: dict[Variant, CudaProgram] = {}
        self._functions: dict[tuple[int, Variant], _Loaded] = {}
        self._workspaces: dict[int, Workspaces] = {}
        self._maps = TensorMaps()
        release = finalize(self, _release, self._functions, self._workspaces)
        release.atexit = False  # the driver frees everything with the process
        self.boxes = CudaProgram(graph, architecture, boxes=True).why_not() is None
        self.program().lowered  # noqa: B018 - refuse what cannot be lowered now, not later

    def program(self, variant: Variant | None = None) -> CudaProgram:
        """The code of a variant; by default of the one for well-aligned tensors."""
        variant = variant or Variant(WIDEST, self.boxes)
        if variant not in self._programs:
            self._programs[variant] = CudaProgram(
                self.graph, self.architecture, *variant, watchdog=self.debug
            )
        return self._programs[variant]

    def _variant(self, views: Mapping[str, TensorView]) -> Variant:
        """The fastest code that serves these tensors."""
        vectors = _vectors(views)
        aligned = vectors.d == WIDEST.d and all(copy_engine_takes(views[name]) for name in "AB")
        if self.boxes and aligned:
            return Variant(WIDEST, boxes=True)
        return Variant(vectors, boxes=False)

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
    ) -> Any:
        """Compute D on the stream; see `Kernel`. A new `out` comes from the library of `a`."""
        require_gpu()
        arrays.prepare(a, b, c, out)
        views = {"A": arrays.view(a, "a"), "B": arrays.view(b, "b")}
        if c is not None:
            views["C"] = arrays.view(c, "c")
        given = problem_parameters(self.graph, views, beta=beta)
        made = out is None
        if made:
            check_call(self.graph, views, beta=beta)
            where = device(_ordinal(views["A"]))
            self._check_grid(self._load(where, self._variant(views)), given, workgroups)
            out = arrays.empty(a, _extents(self.graph, given), self.graph.gemm.out_dtype or "")
        views["D"] = arrays.view(out, "out")
        check_call(self.graph, views, beta=beta)
        handle = arrays.current_stream(a) if stream is None else arrays.stream_handle(stream)
        self._launch(views, given, float(alpha), float(beta), handle, workgroups)
        arrays.finish(out, handle)
        return out

    def _launch(
        self,
        views: Mapping[str, TensorView],
        given: dict[str, int],
        alpha: float,
        beta: float,
        stream: int,
        workgroups: int | None,
    ) -> None:
        loaded = self._load(device(_ordinal(views["A"])), self._variant(views))
        values, grid = self._check_grid(loaded, given, workgroups)
        where = loaded.function.device
        with where.current():
            workspaces = self._workspaces.setdefault(where.ordinal, Workspaces(where))
            pointers: list[int] = []
            for tensor in self.graph.tensors:
                if tensor.role in (Role.PARTIALS, Role.FLAGS):
                    size = loaded.sizes(tensor.name, values) * dtype(tensor.dtype).bytes
                    zeroed = tensor.role is Role.FLAGS
                    pointers.append(workspaces.get(stream, tensor.name, size, zeroed=zeroed))
                else:
                    found = views.get(tensor.name)
                    pointers.append(found.pointer if found is not None else 0)
            maps = [self._maps.get(views[name], box) for name, box in loaded.boxes.items()]
            table, alive = loaded.pack(pointers, maps, (alpha, beta), values)
            loaded.function.launch(grid, stream, table, together=self._together)
            del alive

    @cached_property
    def waits(self) -> str:
        """Which workgroups wait for which: none, lower, higher or mixed."""
        return wait_direction(self.graph)

    @property
    def _together(self) -> bool:
        """Workgroups that wait for higher-numbered ones need all of them resident."""
        return self.waits in ("higher", "mixed")

    def _check_grid(
        self, loaded: _Loaded, given: dict[str, int], workgroups: int | None
    ) -> tuple[dict[str, int], int]:
        """Parameter values and grid of a launch; LaunchError where it could not make progress."""
        parameters = self.graph.parameters
        if "workgroups" in parameters and parameters["workgroups"].value is None:
            count = loaded.function.resident if workgroups is None else workgroups
            given = {**given, "workgroups": count}
        elif workgroups is not None:
            raise LaunchError("this graph fixes its workgroups; schedule it with workgroups=None")
        values = parameters.evaluate(given)
        grid = loaded.grid(values)
        if self._together and grid > loaded.function.resident:
            raise LaunchError(
                f"{grid} workgroups wait for each other, but {loaded.function.device.name} holds "
                f"only {loaded.function.resident} at a time; use at most that many workgroups, "
                "or owner='last'"
            )
        return values, grid

    def _build(self, where: Device, variant: Variant) -> _Loaded:
        """Load the variant's code; where it spills, code with fewer loads under way."""
        while True:
            program = self.program(variant)
            try:
                with where.current():
                    return _Loaded(program, where)
            except Spilled:
                leaner = program.leaner()
                if leaner is None:
                    raise
                self._programs[variant] = leaner

    def _load(self, where: Device, variant: Variant | None = None) -> _Loaded:
        variant = variant or Variant(WIDEST, self.boxes)
        key = (where.ordinal, variant)
        if key not in self._functions:
            with allow_while_capturing():
                self._functions[key] = self._build(where, variant)
        return self._functions[key]

    @property
    def resident(self) -> int:
        """Workgroups of the widest variant that device 0 holds at a time."""
        return self._load(device(0)).function.resident

    @property
    def registers(self) -> int:
        """Registers of a thread of the widest variant, as loaded on device 0."""
        return self._load(device(0)).function.registers


def _release(
    functions: dict[tuple[int, Variant], _Loaded], workspaces: dict[int, Workspaces]
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


class _Loaded:
    """A program on a device, with what the host computes for a launch."""

    def __init__(self, program: CudaProgram, where: Device) -> None:
        self.function = Function(
            where, program.ptx, KERNEL_NAME, program.threads, program.shared_bytes
        )
        graph = program.lowered
        self._names = [p.name for p in graph.parameters.items]
        symbols = [p.symbol for p in graph.parameters.items]
        size = graph.workgroup.size
        assert size is not None
        self._grid = compile_function([size], symbols)
        self._elements = {t.name: compile_function([t.elements], symbols) for t in graph.tensors}
        arguments = program.walker.arguments
        self._integers = arguments.host_function()
        self.boxes = program.walker.boxes
        self._packer = ArgumentPacker(
            len(graph.tensors),
            len(self.boxes),
            len(arguments.floats),
            [kind.width for _, kind in arguments.integer_types()],
        )

    def _values(self, values: dict[str, int]) -> list[int]:
        return [values[name] for name in self._names]

    def grid(self, values: dict[str, int]) -> int:
        """Workgroups to launch."""
        return int(self._grid(*self._values(values))[0])

    def sizes(self, tensor: str, values: dict[str, int]) -> int:
        """Elements of a tensor."""
        return int(self._elements[tensor](*self._values(values))[0])

    def pack(
        self,
        pointers: list[int],
        maps: list[Any],
        floats: tuple[float, ...],
        values: dict[str, int],
    ) -> tuple[Any, tuple[Any, ...]]:
        """Kernel arguments, and what must stay alive during the launch."""
        return self._packer.pack(pointers, maps, floats, self._integers(values))


def _ordinal(found: TensorView) -> int:
    return int(found.device or 0)


def _extents(graph: KernelGraph, given: Mapping[str, int]) -> tuple[int, int]:
    gemm = graph.gemm
    m = gemm.m if gemm.m is not None else given["m"]
    n = gemm.n if gemm.n is not None else given["n"]
    return m, n


def _vectors(views: Mapping[str, TensorView]) -> Vectors:
    """The widest moves that rows and addresses of the tensors allow."""

    def widest(name: str, most: int) -> int:
        found = views.get(name)
        if found is None:
            return most
        vector = gcd(most, found.shape[-1])
        while found.pointer % (vector * dtype(found.dtype).bytes):
            vector //= 2
        return vector

    return Vectors(
        widest("A", WIDEST.a), widest("B", WIDEST.b), min(widest(x, WIDEST.d) for x in "CD")
    )
