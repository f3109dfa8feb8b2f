"""Contenders of `benchmarks epilogue` pass the right arguments to coordgraph and to PyTorch."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import codegen
from benchmarks.peers import epilogue_peers
from benchmarks.peers.contender import Unavailable
from benchmarks.peers.epilogue_peers import (
    FUSED,
    PLAIN,
    FusedLibrary,
    TorchCompile,
    TorchEager,
    kernels,
)
from benchmarks.peers.plans import parse_plan
from coordgraph import CoordGraphError

PLAN = parse_plan("128x128x64 stream-k on 60")
OPERANDS = ("a", "b", "d", "bias", "residual")


class Kernel:
    """A kernel that records its calls."""

    registers, resident = 168, 132

    def __init__(self, gemm: Any) -> None:
        self.gemm, self.calls = gemm, list[Any]()

    def __call__(self, *arrays: Any, **named: Any) -> None:
        self.calls.append((arrays, named))


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> list[Kernel]:
    """The simulated kernels that contenders build, in order.

    For a kernel with an epilogue, the attribute `gemm` is the epilogue function, not a `Gemm`.
    """
    found: list[Kernel] = []

    def build(plan: Any, gemm: Any, target: str) -> Kernel:
        assert (plan, target) == (PLAN, "sm_90a")
        found.append(Kernel(gemm))
        return found[-1]

    monkeypatch.setattr(epilogue_peers, "build", build)
    monkeypatch.setattr(epilogue_peers, "fused_gemm", lambda dtype, layout, function: function)
    return found


def test_one_plan_is_built_without_and_with_the_epilogue(built: list[Kernel]):
    plain, fused = kernels(PLAN, "bf16", "nt", "sm_90a", "traced")
    problem: Any = None
    for contender in (plain, fused):
        contender.prepare(problem)(*OPERANDS)  # pyright: ignore[reportCallIssue]
        assert contender.details == {"plan": str(PLAN), "registers": 168, "resident": 132}
    assert (plain.name, fused.name) == (PLAIN, FUSED)
    assert built[0].gemm.transpose_b
    assert built[1].gemm == "traced"
    assert built[0].calls == [(("a", "b"), {"out": "d", "workgroups": 60})]
    named = {"bias": "bias", "residual": "residual", "out": "d", "workgroups": 60}
    assert built[1].calls == [(("a", "b"), named)]


def test_a_kernel_that_was_not_built_raises_its_error(
    built: list[Kernel], monkeypatch: pytest.MonkeyPatch
):
    def refuse(*_: Any) -> Any:
        raise CoordGraphError("too many registers")

    monkeypatch.setattr(epilogue_peers, "build", refuse)
    problem: Any = None
    for contender in kernels(PLAN, "bf16", "nt", "sm_90a", "traced"):
        assert contender.details == {"plan": str(PLAN)}
        with pytest.raises(CoordGraphError, match="too many registers"):
            contender.prepare(problem)


def test_the_library_is_given_the_epilogue_and_its_operands(monkeypatch: pytest.MonkeyPatch):
    calls: list[Any] = []
    monkeypatch.setattr(codegen, "matmul", lambda *arrays, **named: calls.append((arrays, named)))
    problem: Any = SimpleNamespace(transpose_a=False, transpose_b=True)
    FusedLibrary("traced").prepare(problem)(*OPERANDS)
    named = {"transpose_a": False, "transpose_b": True, "epilogue": "traced", "out": "d"}
    assert calls == [(("a", "b"), {**named, "bias": "bias", "residual": "residual"})]


def torch(compile_: Any = None) -> Any:
    """A stand-in for the PyTorch functions that contenders call, over NumPy; GELU doubles
    its input.
    """
    functional = SimpleNamespace(
        linear=lambda x, weight, bias: x @ weight.T + bias,
        gelu=lambda x, approximate: 2 * x if approximate == "tanh" else None,
    )

    def add(x: Any, y: Any, out: Any) -> None:
        out[...] = x + y

    return SimpleNamespace(
        nn=SimpleNamespace(functional=functional),
        add=add,
        compile=compile_,
        compiler=SimpleNamespace(reset=lambda: None),
        cuda=SimpleNamespace(synchronize=lambda: None),
    )


@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
@pytest.mark.parametrize("peer", [TorchEager, TorchCompile])
def test_pytorch_multiplies_what_is_stored_in_every_layout(layout: str, peer: Any):
    random = np.random.default_rng(0)
    a, b = random.standard_normal((3, 5)), random.standard_normal((5, 4))
    bias, residual = random.standard_normal(4), random.standard_normal((3, 4))

    class Out(np.ndarray):
        def copy_(self, values: Any) -> None:
            self[...] = values

    out = np.zeros((3, 4)).view(Out)
    stored = (a.T if layout[0] == "t" else a, b.T if layout[1] == "t" else b)
    compiled = torch(lambda function, dynamic, mode: function)
    problem: Any = SimpleNamespace(torch=compiled, layout=layout)
    problem.launch = lambda run, number: run(*stored, out, bias, residual)
    run = peer().prepare(problem)
    out[...] = 0
    run(*stored, out, bias, residual)
    assert np.allclose(out, 2 * (a @ b + bias) + residual)


def test_where_pytorch_cannot_compile_it_is_left_out():
    def refuse(function: Any, dynamic: bool, mode: str) -> Any:
        raise RuntimeError("no triton")

    problem: Any = SimpleNamespace(torch=torch(refuse), layout="nt")
    with pytest.raises(Unavailable, match=r"torch\.compile failed: RuntimeError: no triton"):
        TorchCompile().prepare(problem)
