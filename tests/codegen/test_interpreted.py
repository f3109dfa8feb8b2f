"""The interpreter as a target refuses the calls that compiled kernels refuse."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from codegen.targets.interpreter import InterpretedKernel
from coordgraph import Gemm, LaunchError
from passes import DataParallel, StreamK

M, N, K = 4, 6, 5


def ones(*shape: int, kind: Any = np.float32) -> np.ndarray:
    return np.ones(shape, kind)


def read_only() -> np.ndarray:
    out = ones(M, N)
    out.flags.writeable = False
    return out


BAD: dict[str, tuple[Callable[[], dict[str, Any]], str]] = {
    "shape of out": (lambda: {"out": ones(N, M)}, "out is 6x4"),
    "a row as out": (lambda: {"out": ones(3, M, N)}, "out has shape"),
    "dtype of out": (lambda: {"out": ones(M, N, kind=np.float64)}, "out holds f64"),
    "read-only out": (lambda: {"out": read_only()}, "argument 'out' is a read-only array"),
    "out is a list": (lambda: {"out": [[1.0]]}, "out is a list"),
    "a list": (lambda: {"a": ones(M, K).tolist()}, "a is a list"),
    "missing": (lambda: {"b": None}, "argument 'b' is missing"),
    "alpha": (lambda: {"alpha": "x"}, "alpha = 'x' is not a number"),
    "beta": (lambda: {"beta": 10**400}, "is not a number"),
    "beta without c": (lambda: {"beta": 0.5}, "needs c"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_calls_are_refused_and_write_nothing(name: str):
    change, words = BAD[name]
    given: dict[str, Any] = {"a": ones(M, K), "b": ones(K, N), "out": ones(M, N), **change()}
    with pytest.raises(LaunchError, match=words):
        InterpretedKernel(DataParallel()(Gemm("f32").graph((4, 4, 4))))(**given)
    assert (np.asarray(given["out"]) == 1).all()


@pytest.mark.parametrize("name", ["a", "b"])
def test_out_may_not_share_memory(name: str):
    memory = ones(3 * M * M)
    start = memory[: M * M].reshape(M, M)
    later = memory[M : M * M + M].reshape(M, M)
    given: dict[str, Any] = {"a": ones(M, M), "b": ones(M, M), "out": later, name: start}
    with pytest.raises(LaunchError, match=f"'out' overlaps {name}"):
        InterpretedKernel(DataParallel()(Gemm("f32").graph((4, 4, 4))))(**given)
    assert (memory == 1).all()


def test_rows_of_no_group_are_left_as_they_were():
    graph = StreamK(workgroups=3)(Gemm("f32", grouped=True).graph((4, 4, 4)))
    a, b, out = ones(9, K), ones(2, K, N), np.full((9, N), 7, np.float32)
    offsets = np.array([1, 4, 7], np.int32)
    assert InterpretedKernel(graph)(a, b, out=out, offsets=offsets) is out
    assert (out[1:7] == K).all()
    assert (out[[0, 7, 8]] == 7).all()


def test_a_good_call_writes_out():
    out = ones(M, N)
    code = InterpretedKernel(DataParallel()(Gemm("f32").graph((4, 4, 4))))
    assert code(ones(M, K), ones(K, N), out=out, alpha=2) is out
    assert (out == 2 * K).all()
