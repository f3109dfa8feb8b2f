"""Contenders of the measure `epilogue`: one plan without and with the epilogue, and PyTorch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import codegen
from benchmarks.peers.contender import Contender, Unavailable
from benchmarks.peers.plans import Plan, build, gemm_of_layout
from benchmarks.problems.problem import Problem, as_multiplied
from coordgraph import CoordGraphError, Gemm

__all__ = [
    "EAGER",
    "FUSED",
    "LIBRARY",
    "PLAIN",
    "TORCH_COMPILE",
    "FusedKernel",
    "FusedLibrary",
    "PlainKernel",
    "fused_gemm",
    "kernels",
    "torch_peers",
]

PLAIN, FUSED, LIBRARY = "plain kernel", "fused kernel", "codegen.matmul"
EAGER, TORCH_COMPILE = "torch eager", "torch.compile"


def fused_gemm(dtype: str, layout: str, epilogue: Any) -> Gemm:
    """The GEMM of a layout with an epilogue, with sizes as launch arguments."""
    changes: dict[str, Any] = {"epilogue": epilogue}
    return replace(gemm_of_layout(dtype, layout), **changes)


class PlainKernel:
    """A plan's kernel without the epilogue: D = A · B."""

    name, ours = PLAIN, True

    def __init__(self, plan: Plan, kernel: Any) -> None:
        self.plan, self.kernel = plan, kernel
        self.details: dict[str, Any] = _details(plan, kernel)

    def prepare(self, problem: Problem) -> Any:
        """Launch the kernel on the grid of its plan; the epilogue's operands are not read."""
        kernel, grid = _loaded(self.kernel), self.plan.workgroups
        return lambda a, b, out, bias, residual: kernel(a, b, out=out, workgroups=grid)


class FusedKernel:
    """The same plan's kernel with the epilogue."""

    name, ours = FUSED, True

    def __init__(self, plan: Plan, kernel: Any) -> None:
        self.plan, self.kernel = plan, kernel
        self.details: dict[str, Any] = _details(plan, kernel)

    def prepare(self, problem: Problem) -> Any:
        """Launch the kernel on the grid of its plan."""
        kernel, grid = _loaded(self.kernel), self.plan.workgroups

        def run(a: Any, b: Any, out: Any, bias: Any, residual: Any) -> None:
            kernel(a, b, bias=bias, residual=residual, out=out, workgroups=grid)

        return run


class FusedLibrary:
    """`codegen.matmul` with the epilogue; it chooses the plan."""

    name, ours = LIBRARY, True

    def __init__(self, epilogue: Any) -> None:
        self.epilogue = epilogue
        self.details: dict[str, Any] = {}

    def prepare(self, problem: Problem) -> Any:
        """Call `codegen.matmul` with the transposes of the layout."""
        options: dict[str, Any] = {
            "transpose_a": problem.transpose_a,
            "transpose_b": problem.transpose_b,
            "epilogue": self.epilogue,
        }

        def run(a: Any, b: Any, out: Any, bias: Any, residual: Any) -> None:
            operands: dict[str, Any] = {"bias": bias, "residual": residual}
            codegen.matmul(a, b, out=out, **operands, **options)

        return run


def _details(plan: Plan, kernel: Any) -> dict[str, Any]:
    """Columns of the record about a kernel."""
    if isinstance(kernel, CoordGraphError):
        return {"plan": str(plan)}
    return {"plan": str(plan), "registers": kernel.registers, "resident": kernel.resident}


def _loaded(kernel: Any) -> Any:
    """The kernel; raises the error that building it ended with."""
    if isinstance(kernel, CoordGraphError):
        raise kernel
    return kernel


def kernels(plan: Plan, dtype: str, layout: str, target: str, epilogue: Any) -> Iterator[Contender]:
    """One plan as two contenders: without and with the epilogue."""
    for kind, gemm in (
        (PlainKernel, gemm_of_layout(dtype, layout)),
        (FusedKernel, fused_gemm(dtype, layout, epilogue)),
    ):
        try:
            kernel: Any = build(plan, gemm, target)
        except CoordGraphError as error:
            kernel = error
        yield kind(plan, kernel)


class TorchEager:
    """`F.linear`, `F.gelu` and `torch.add`: three or more kernels."""

    name, ours = EAGER, False

    def __init__(self) -> None:
        self.details: dict[str, Any] = {}

    def prepare(self, problem: Problem) -> Any:
        """Call the three functions on views of the stored operands."""
        torch, layout = problem.torch, problem.layout
        functional = torch.nn.functional

        def run(a: Any, b: Any, out: Any, bias: Any, residual: Any) -> None:
            a, b = as_multiplied(a, b, layout)
            hidden = functional.gelu(functional.linear(a, b.T, bias), approximate="tanh")
            torch.add(hidden, residual, out=out)

        return run


class TorchCompile:
    """The same three functions, compiled by `torch.compile` for each shape."""

    name, ours = TORCH_COMPILE, False

    def __init__(self) -> None:
        self.details: dict[str, Any] = {}

    def prepare(self, problem: Problem) -> Any:
        """Compile for the problem's shape.

        Raises:
            Unavailable: PyTorch cannot compile here, for example without Triton.
        """
        torch, layout = problem.torch, problem.layout
        functional = torch.nn.functional

        def function(a: Any, b: Any, out: Any, bias: Any, residual: Any) -> None:
            a, b = as_multiplied(a, b, layout)
            hidden = functional.gelu(functional.linear(a, b.T, bias), approximate="tanh")
            out.copy_(hidden + residual)

        try:
            compiled = torch.compile(function, dynamic=False)
            problem.launch(compiled, 0)
            torch.cuda.synchronize()
        except Exception as error:  # torch raises exceptions of many kinds, its own and Triton's
            raise Unavailable(f"torch.compile: {type(error).__name__}: {error}") from None
        return compiled


def torch_peers() -> list[Contender]:
    """PyTorch's ways to compute the problem."""
    return [TorchEager(), TorchCompile()]
