"""Calls with wrong arguments are refused before anything is written."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from codegen.targets.cpu import HostKernel, compile_host
from coordgraph import CodegenError, Gemm, LaunchError, VerifyError
from passes import DataParallel, StreamK
from passes.lowering.host import LowerToHost
from tests.codegen.cpu.kernels import TILE, kernel

M, N, K = 20, 50, 30


def ones(*shape: int, kind: Any = np.float32) -> np.ndarray:
    return np.ones(shape, kind)


def unaligned(*shape: int) -> np.ndarray:
    raw = np.zeros(4 * shape[0] * shape[1] + 1, np.uint8)[1:]
    return raw.view(np.float32).reshape(shape)


def read_only() -> np.ndarray:
    out = ones(M, N)
    out.flags.writeable = False
    return out


BAD: dict[str, tuple[Callable[[], dict[str, Any]], str]] = {
    "k of a and b": (lambda: {"b": ones(K + 1, N)}, "k would be"),
    "axes": (lambda: {"a": ones(M)}, "matrix"),
    "out of no rows": (lambda: {"out": ones(0, N)}, "out is 0x50"),
    "dtype": (lambda: {"a": ones(M, K, kind=np.float64)}, "f64"),
    "unknown dtype": (
        lambda: {"a": ones(M, K, kind=np.int16)},
        r"unknown dtype 'int16'; .*; convert it to a type that holds its integers: i8 if",
    ),
    "unknown float": (
        lambda: {"a": ones(M, K, kind=np.longdouble)},
        "convert it to bfloat16, float16, float32, float64, float8_e4m3fn, float8_e5m2$",
    ),
    "a mask": (
        lambda: {"a": ones(M, K, kind=np.bool_)},
        "convert it to int8 or uint8, in which True is 1, or to bfloat16, float16, float32, ",
    ),
    "complex": (lambda: {"a": ones(M, K, kind=np.complex64)}, "imaginary parts separately$"),
    "a number": (lambda: {"a": 3}, "a is an int, not a numpy array"),
    "byte order": (lambda: {"a": ones(M, K, kind=">f4")}, "swapped"),
    "a list": (lambda: {"a": [[1.0]]}, "numpy"),
    "missing": (lambda: {"a": None}, "missing"),
    "columns first": (lambda: {"a": np.asfortranarray(ones(M, K))}, "contiguous"),
    "a slice": (lambda: {"b": ones(K, 2 * N)[:, ::2]}, "contiguous"),
    "unaligned": (lambda: {"a": unaligned(M, K)}, "multiple of 4"),
    "shape of c": (lambda: {"c": ones(M, N + 1), "beta": 1.0}, "c is"),
    "beta without c": (lambda: {"beta": 0.5}, "needs c"),
    "shape of out": (lambda: {"out": ones(N, M)}, "out is"),
    "dtype of out": (lambda: {"out": ones(M, N, kind=np.float64)}, "out holds"),
    "read-only out": (lambda: {"out": read_only()}, "read-only"),
    "alpha": (lambda: {"alpha": "two"}, "alpha"),
    "workgroups": (lambda: {"workgroups": 0}, "workgroups"),
    "many workgroups": (lambda: {"workgroups": 2**20}, "workgroups"),
    "threads": (lambda: {"threads": 0}, "threads"),
    "stream": (lambda: {"stream": 1}, "stream"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_calls_are_refused_and_write_nothing(name: str):
    change, words = BAD[name]
    given: dict[str, Any] = {"a": ones(M, K), "b": ones(K, N), "out": ones(M, N)} | change()
    out = given["out"]
    before = out.copy()
    with pytest.raises(LaunchError, match=words):
        kernel("stream-k")(**given)
    assert np.array_equal(out, before)


@pytest.mark.parametrize("name", ["a", "b", "part of c"])
def test_out_may_not_share_memory(name: str):
    memory = np.ones(6 * M * M, np.float32)
    start = memory[: M * M].reshape(M, M)
    later = memory[M : M * M + M].reshape(M, M)
    apart = memory[3 * M * M : 4 * M * M].reshape(M, M)
    given: dict[str, Any] = {"a": apart, "b": apart, "out": later}
    given |= {"c": start} if name == "part of c" else {name: start}
    with pytest.raises(LaunchError, match="overlaps"):
        kernel("stream-k")(**given, beta=float("c" in given))
    assert (memory == 1).all()


def test_a_fixed_size_must_be_met():
    code = HostKernel(DataParallel()(Gemm("f32", m=M, n=N).graph(TILE)))
    assert code(ones(M, K), ones(K, N)).shape == (M, N)
    with pytest.raises(LaunchError, match="m = 20"):
        code(ones(M + 1, K), ones(K, N))
    with pytest.raises(LaunchError, match="was made for a fixed number"):
        code(ones(M, K), ones(K, N), workgroups=3)


def test_strides_of_single_rows_mean_nothing():
    row = ones(8, K)[3:4]
    assert np.array_equal(kernel("stream-k")(row, ones(K, 1)), [[K]])


def test_graphs_must_be_scheduled():
    problem = Gemm("f32").graph(TILE)
    with pytest.raises(VerifyError, match=r"DataParallel\(\)\(graph\)"):
        compile_host(problem)
    with pytest.raises(CodegenError, match="has the level 'lowered'"):
        compile_host(LowerToHost()(StreamK()(problem)))


def test_the_same_kernel_made_again_has_the_same_code(monkeypatch: pytest.MonkeyPatch):
    graph = StreamK(workgroups=3)(Gemm("f32").graph((8, 16, 8)))
    first = compile_host(graph)

    def never(*_: object, **__: object) -> None:
        raise AssertionError("optimised again")

    monkeypatch.setattr("codegen.targets.cpu.code.optimize", never)
    again = compile_host(graph)
    a, b = ones(9, 20), ones(20, 17)
    assert np.array_equal(again(a, b), first(a, b))
    assert np.array_equal(again(a, b), a @ b)
    with pytest.raises(AssertionError, match="optimised again"):
        compile_host(StreamK(workgroups=3)(Gemm("f32").graph((8, 16, 4))))


def test_what_was_made_is_there_to_read():
    code = kernel("stream-k")
    assert code.lowered.level == "lowered"
    assert "llvm.fma" in code.llvm_ir or "fmul" in code.llvm_ir
    assert "gemm" in code.assembly
    assert any(e.operation == "StoreFragment" for e in code.index_expressions)
    with pytest.raises(CodegenError, match="sm_80"):
        code.ptx  # noqa: B018
