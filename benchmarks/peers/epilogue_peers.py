"""Contenders of `python -m benchmarks epilogue`: a plan without and with epilogue, and PyTorch."""

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
    """The `Gemm` for a layout and an epilogue; m, n and k are launch arguments."""
    changes: dict[str, Any] = {"epilogue": epilogue}
    return replace(gemm_of_layout(dtype, layout), **changes)


class PlainKernel:
    """Contender: the kernel of a plan without an epilogue, D = A · B."""

    name, ours = PLAIN, True

    def __init__(self, plan: Plan, kernel: Any) -> None:
        self.plan, self.kernel = plan, kernel
        self.details: dict[str, Any] = _details(plan, kernel)

    def prepare(self, problem: Problem) -> Any:
        """A function that launches the kernel with its plan's grid, without bias and residual."""
        kernel, grid = _loaded(self.kernel), self.plan.workgroups
        return lambda a, b, out, bias, residual: kernel(a, b, out=out, workgroups=grid)


class FusedKernel:
    """Contender: the kernel of a plan with the epilogue fused into it."""

    name, ours = FUSED, True

    def __init__(self, plan: Plan, kernel: Any) -> None:
        self.plan, self.kernel = plan, kernel
        self.details: dict[str, Any] = _details(plan, kernel)

    def prepare(self, problem: Problem) -> Any:
        """A function that launches the fused kernel with its plan's grid."""
        kernel, grid = _loaded(self.kernel), self.plan.workgroups

        def run(a: Any, b: Any, out: Any, bias: Any, residual: Any) -> None:
            kernel(a, b, bias=bias, residual=residual, out=out, workgroups=grid)

        return run


class FusedLibrary:
    """Contender: `codegen.matmul`, which chooses a plan by its cost model, with the epilogue."""

    name, ours = LIBRARY, True

    def __init__(self, epilogue: Any) -> None:
        self.epilogue = epilogue
        self.details: dict[str, Any] = {}

    def prepare(self, problem: Problem) -> Any:
        """A function that calls `codegen.matmul` with the problem's layout and epilogue."""
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
    """Values for the results file: a kernel's plan, registers, and resident workgroups per SM."""
    if isinstance(kernel, CoordGraphError):
        return {"plan": str(plan)}
    return {"plan": str(plan), "registers": kernel.registers, "resident": kernel.resident}


def _loaded(kernel: Any) -> Any:
    """Return `kernel`, or raise it if it is the exception that compiling or loading it raised."""
    if isinstance(kernel, CoordGraphError):
        raise kernel
    return kernel


def kernels(plan: Plan, dtype: str, layout: str, target: str, epilogue: Any) -> Iterator[Contender]:
    """The two contenders of one plan: its kernel without the epilogue, and with it."""
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
    """Contender: PyTorch's `F.linear`, `F.gelu` and `torch.add`, which run as separate kernels."""

    name, ours = EAGER, False

    def __init__(self) -> None:
        self.details: dict[str, Any] = {}

    def prepare(self, problem: Problem) -> Any:
        """A function that calls `F.linear`, `F.gelu` and `torch.add` in turn."""
        torch, layout = problem.torch, problem.layout
        functional = torch.nn.functional

        def run(a: Any, b: Any, out: Any, bias: Any, residual: Any) -> None:
            a, b = as_multiplied(a, b, layout)
            hidden = functional.gelu(functional.linear(a, b.T, bias), approximate="tanh")
            torch.add(hidden, residual, out=out)

        return run


class TorchCompile:
    """Contender: `F.linear`, `F.gelu` and an addition, compiled by `torch.compile` per shape."""

    name, ours = TORCH_COMPILE, False

    def __init__(self, mode: str = "default") -> None:
        self.mode = mode
        self.details: dict[str, Any] = {"mode": mode}

    def prepare(self, problem: Problem) -> Any:
        """A function compiled by `torch.compile` for the problem's shape.

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
            # Without this, the same function is compiled for eight shapes and then runs uncompiled.
            torch.compiler.reset()
            compiled = torch.compile(function, dynamic=False, mode=self.mode)
            problem.launch(compiled, 0)
            torch.cuda.synchronize()
        except Exception as error:  # torch.compile raises many exception types, also Triton's
            raise Unavailable(
                f"torch.compile failed: {type(error).__name__}: {error}; "
                "it needs Triton and a C compiler"
            ) from None
        return compiled


def torch_peers(mode: str = "default") -> list[Contender]:
    """The contenders that compute the product and the epilogue by PyTorch.

    Args:
        mode: the `mode` of `torch.compile`. One without CUDA graphs: the benchmark captures each
            contender in a graph of its own.
    """
    return [TorchEager(), TorchCompile(mode)]
