"""`Kernel`: the interface of compiled kernels, the same for every target."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from coordgraph import CodegenError, KernelGraph
from coordgraph.control.resolve import Node, resolve
from coordgraph.integers import to_text

if TYPE_CHECKING:
    from codegen.call.arrangement import Repeat
    from codegen.call.views import TensorView
    from codegen.timeline import Timeline
    from coordgraph.show.html_report import HtmlReport

__all__ = ["IndexExpression", "Kernel", "index_expressions"]


@dataclass(frozen=True)
class IndexExpression:
    """An index that a kernel computes, such as an element's index in a tensor, as text.

    Attributes:
        operation: the kind of the operation that uses the index, such as `CopyElements`.
        coordinate: the dimension of the coordinate graph along which the index counts, such as
            `A.shared`.
        index: the expression of the index.
        guard: the condition under which the index is inside the tensor; `true` if the index always
            is.
    """

    operation: str
    coordinate: str
    index: str
    guard: str

    def __str__(self) -> str:
        where = "" if self.guard == "true" else f"   if {self.guard}"
        return f"{self.operation}: {self.coordinate} = {self.index}{where}"


def index_expressions(nodes: tuple[Node, ...]) -> list[IndexExpression]:
    """All indices that operations and their bodies compute, in order of first use, once each."""
    found: dict[IndexExpression, None] = {}
    for root in nodes:
        for node in root.walk():
            for name, index, guard in node.index_expressions():
                text = IndexExpression(node.op.kind, name, to_text(index), to_text(guard))
                found.setdefault(text)
    return list(found)


def _remade(kind: Callable[..., Kernel], args: tuple[Any, ...], options: dict[str, Any]) -> Kernel:
    """A kernel that was pickled, compiled again, or loaded from the cache on disk.

    Args:
        kind: the class of the kernel.
        args, options: the arguments that the kernel was made from.
    """
    return kind(*args, **options)


class Kernel(ABC):
    """A compiled GEMM kernel: call it with A, B and, optionally, C and the output D.

    Args of a call:
        a, b: A (m x k) and B (k x n), or their transposes if the graph was built with
            `transpose_a` or `transpose_b`. In a batch, all matrices have an additional first axis:
            the number of the product. With groups along m only B has that axis, with groups along k
            only C and D. For a list of products (groups along mnk), A, B, C and D are vectors, in
            which `codegen.lists.pack` stores the matrices one after another.
        c: C (m x n), or None. C is required if beta is not 0, and not read if beta is 0.
        out: the array for D (m x n); None allocates an array of the same library as `a`. A list of
            products requires `out`.
        alpha, beta: scalars of the default epilogue, `alpha·A·B + beta·C`; by default 1, and beta 0
            without C.
        stream: the CUDA stream of the launch; None for the current stream. Only GPU kernels accept
            a stream.
        workgroups: how many workgroups to launch, if the schedule's option `workgroups` is None.
        offsets: the group offsets of a grouped kernel, i32: the index along m or k at which each
            group begins, and the index at which the last group ends. For a list of products, such
            offsets along m, n and k (3 x (groups + 1)).
        operands: the operands of the graph's own epilogue, by name: arrays, and numbers for
            scalars. A kernel with its own epilogue accepts c, alpha or beta only if the epilogue
            has operands of these names. An array with the name of one of the epilogue's outputs
            besides D receives this output; a new array is made for an output that is left out.

    A call returns D. If the epilogue has further outputs, it returns a tuple: D, then the other
    outputs in the order of their declaration.

    Raises:
        LaunchError: shapes, element types, memory or parameters do not fit the kernel; nothing was
            launched.

    A copy of a kernel, by `copy.copy` or `copy.deepcopy`, is the kernel itself. A pickle holds the
    graph and the options of `codegen.compile`, no code. Reading it compiles the kernel for the same
    target, or loads the code from the cache on disk.
    """

    _made_from: tuple[tuple[Any, ...], dict[str, Any]]
    """The arguments that the kernel was made from, by which a pickle makes it again."""

    def __new__(cls, *args: Any, **options: Any) -> Self:
        """A kernel that remembers the arguments that it is made from."""
        made = super().__new__(cls)
        made._made_from = args, options
        return made

    def __init__(self, graph: KernelGraph, target: str) -> None:
        self.graph = graph
        self.target = target
        self.title = ", ".join(graph.log) or "unscheduled"
        """The kernel's name in timelines and profilers: its plan, or the names of its passes."""

    @abstractmethod
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
        """Compute D from A, B and C and return it; see the docstring of `Kernel` for arguments."""

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
        """A function that makes calls like an earlier one with less host time; None if none is.

        The function has the arguments (a, b, c, out, alpha, beta, stream, operands, offsets), and
        returns what the call returns; or None, without a launch, if the kernel must be called
        instead. Its caller makes sure that the arguments are those of the earlier call, except for
        addresses of arrays, values of numbers, and the stream: the same arguments are left out, and
        arrays have the same shapes, strides, types and devices. For kernels with the default
        epilogue, the caller need not compare the type and device of B, the shape, type and device
        of C, the shape and device of `out`, and of `offsets` all but the shape; but beta must be a
        float, and the caller must compare whether it is 0. The function checks alignments and
        overlapping memory, and with other epilogues which numbers are 0.

        Args:
            a, b, c, out, alpha, beta, workgroups, operands, offsets: the arguments of the earlier
                call. `operands` also has the tables `rows` and `targets`.
        """
        return None

    def is_loaded_for(self, views: Mapping[str, TensorView], scalars: Mapping[str, float]) -> bool:
        """Whether a call with these arrays and scalars neither compiles nor loads code.

        The result is always True on targets that compile and load all code before `compile`
        returns.

        Args:
            views: the arrays of the call, by the names of tensors; none of them is empty.
            scalars: the numbers of the call, by name.
        """
        return True

    def load_for(self, views: Mapping[str, TensorView], scalars: Mapping[str, float]) -> None:
        """Compile and load the code that a call with these arrays and scalars runs.

        Args:
            views: the arrays of the call, by the names of tensors; none of them is empty.
            scalars: the numbers of the call, by name.

        Raises:
            CodegenError: the driver cannot assemble the code, or registers spill.
        """
        return

    def timeline(self, *args: Any, **options: Any) -> Timeline:
        """Run the kernel once and return its timeline: what every workgroup did, when, on which SM.

        Pass the arrays, scalars and other arguments that a call of the kernel takes; D is only
        available as `out`. The method waits for the end of the launch. The first launch of a kernel
        also loads code and fills caches, so call the kernel once before this method.

        Raises:
            CodegenError: the kernel was compiled without `timeline=True`.
            LaunchError: arguments do not fit the kernel, or the launch fails.
        """
        raise CodegenError(
            "this kernel records no timeline; compile it with codegen.compile(…, timeline=True), "
            "for a GPU or the CPU"
        )

    @property
    def lowered(self) -> KernelGraph:
        """The lowered graph that the code was generated from."""
        return self.graph

    @property
    def index_expressions(self) -> list[IndexExpression]:
        """All indices that the kernel computes, in order of first use, without duplicates."""
        graph = self.lowered
        return index_expressions(resolve(graph.control.root.body, graph.scope()))

    @property
    def instruction_family(self) -> str:
        """The instructions that multiply and copy, such as `wgmma + TMA`; '' if unknown."""
        return ""

    @property
    def from_cache(self) -> bool:
        """Whether the code was read from the cache on disk."""
        return False

    @property
    def build_steps(self) -> str:
        """The steps of compilation that were run, as text for reports of compilation times."""
        return "nothing to compile"

    @property
    def llvm_ir(self) -> str:
        """The kernel's LLVM IR before optimisation.

        Raises:
            CodegenError: the target does not generate LLVM IR.
        """
        raise CodegenError(
            f"the target '{self.target}' generates no LLVM IR; compile for 'cpu' or 'sm_80'"
        )

    @property
    def ptx(self) -> str:
        """The PTX of the program for tensors whose rows and addresses are aligned to 16 bytes.

        Raises:
            CodegenError: the target does not generate PTX.
        """
        raise CodegenError(
            f"the target '{self.target}' generates no PTX; compile for 'sm_80' or later"
        )

    @property
    def located_code(self) -> tuple[tuple[str, int], ...]:
        """The lines of the kernel's code, each with the number of the operation it came from.

        The number is a position in preorder in the control graph of `lowered`, where the kernel is
        0. The result is empty for targets whose code is not text.
        """
        return ()

    def report(
        self, path: str | Path | None = None, machine: Any = "NVIDIA H200", **options: Any
    ) -> HtmlReport:
        """Make an HTML page about one launch of the kernel, with its lowered graph and its code.

        Args:
            path: the file to write, as in `kernel.report("out.html", m=…, n=…, k=…)`; None writes
                no file.
            machine: the GPU on which the launch is simulated, a `Machine` or its name.
            options: the launch arguments, such as `m`, `n`, `k` and `workgroups`; and other options
                of `KernelGraph.report`, such as the page's `title`.
        """
        compiled = {"lowered": self.lowered, "target": self.target, "code": self.located_code}
        return self.graph.report(path, machine, **{**compiled, **options})

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: Any) -> Self:
        """The kernel itself, since calls do not change what it computes."""
        return self

    def __reduce__(self) -> Any:
        """A pickle holds the graph and the options. Reading it compiles the kernel again."""
        return _remade, (type(self), *self._made_from)

    def __repr__(self) -> str:
        gemm, how = self.graph.gemm, ", ".join(self.graph.log) or "unscheduled"
        family = f" ({self.instruction_family})" if self.instruction_family else ""
        kinds = f"{gemm.dtype} -> {gemm.out_dtype}"
        return f"<{type(self).__name__} {self.target}{family}: {kinds}, {how}>"
