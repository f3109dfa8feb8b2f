"""Extents of 0 on every target: an empty D is not touched, and D is 0 (or beta·C) if k is 0."""

from __future__ import annotations

import struct
from functools import cache
from itertools import pairwise, product
from typing import Any

import numpy as np
import pytest

import codegen
from codegen.call import matmul
from codegen.targets.nvptx import driver
from coordgraph import Gemm, LaunchError
from passes import DataParallel, StreamK
from tests.codegen.nvptx.fake_driver import CONTEXT, FakeDriver, install, matrix
from tests.support.sampling import cover, quick_cases

HOSTS = ("cpu", "interpreter")
NO_D = [(0, 5, 6), (4, 5, 0), (0, 0, 6), (0, 0, 0)]
A, B, C, D, OFFSETS = (place << 28 for place in (1, 2, 3, 4, 5))
ZEROS = 1 << 32
"""The address of the fake CUDA driver's first allocation, a buffer of zeros."""
DEPTH = 8
"""The number of 16-bit elements in 16 bytes, the length of the shortest row that TMA loads."""


@cache
def kernel(target: str, **options: Any) -> Any:
    return codegen.compile(StreamK()(Gemm("f32", **options).graph((16, 16, 16))), target)


def ones(*shape: int) -> np.ndarray:
    return np.ones(shape, np.float32)


@quick_cases(4)
@pytest.mark.parametrize("target", HOSTS)
@pytest.mark.parametrize(("m", "k", "n"), NO_D)
def test_an_empty_d(target: str, m: int, k: int, n: int):
    made = kernel(target)
    assert made(ones(m, k), ones(k, n)).shape == (m, n)
    out = ones(m, n)
    assert made(ones(m, k), ones(k, n), ones(m, n), out, beta=1.0) is out


@pytest.mark.parametrize("target", HOSTS)
def test_no_depth(target: str):
    """With k = 0, D is 0 or beta·C, whatever alpha is, NaN included."""
    made, c, out = kernel(target), np.arange(24, dtype=np.float32).reshape(4, 6), ones(4, 6)
    assert np.array_equal(made(ones(4, 0), ones(0, 6)), np.zeros((4, 6)))
    made(ones(4, 0), ones(0, 6), c, out, np.nan, 2.0)
    assert np.array_equal(out, 2 * c)
    assert np.array_equal(made(ones(4, 0), ones(0, 6), c, out, beta=0.0), np.zeros((4, 6)))
    assert np.array_equal(made(ones(4, 0), ones(0, 6), c, out), c)


@quick_cases(4)
@pytest.mark.parametrize("target", HOSTS)
@pytest.mark.parametrize("shape", [(0, 4, 5, 6), (2, 0, 5, 6), (2, 4, 0, 6), (2, 4, 5, 0)])
def test_batches(target: str, shape: tuple[int, ...]):
    batch, m, k, n = shape
    a, b = ones(batch, m, k), ones(batch, k, n)
    assert np.array_equal(kernel(target, batched=True)(a, b), a @ b)


@pytest.mark.parametrize("target", HOSTS)
def test_groups(target: str):
    made, out = kernel(target, grouped=True), 7 * ones(4, 6)
    made(ones(4, 5), ones(0, 5, 6), out=out, offsets=np.array([0], np.int32))
    assert (out == 7).all()
    made(ones(4, 0), ones(2, 0, 6), out=out, offsets=np.array([0, 1, 3], np.int32))
    assert not out[:3].any()


@pytest.mark.parametrize("target", HOSTS)
def test_groups_along_k(target: str):
    """If m, n or the number of groups is 0, D is empty; if all k are 0, D is zeros, or beta·C."""
    made, offsets = kernel(target, grouped=True, group_axis="k"), np.array([0, 1, 5], np.int32)
    for m, n in ((0, 6), (4, 0), (0, 0)):
        assert made(ones(m, 5), ones(5, n), offsets=offsets).shape == (2, m, n)
    assert made(ones(4, 5), ones(5, 6), offsets=offsets[:1]).shape == (0, 4, 6)
    c, none = ones(2, 4, 6), np.zeros(3, np.int32)
    assert np.array_equal(made(ones(4, 0), ones(0, 6), offsets=none), np.zeros((2, 4, 6)))
    out = 7 * c
    made(ones(4, 0), ones(0, 6), c, out, np.nan, 2.0, offsets=none)
    assert np.array_equal(out, 2 * c)
    # All groups are empty, but the tensors are not.
    assert not made(ones(4, 5), ones(5, 6), offsets=np.full(4, 3, np.int32)).any()


@pytest.mark.parametrize("target", HOSTS)
def test_the_rest_of_the_call_must_fit(target: str):
    made = kernel(target)
    with pytest.raises(LaunchError, match="k would be 0 and 5"):
        made(ones(4, 0), ones(5, 6))
    with pytest.raises(LaunchError, match="out is 4x6, but 0x6 is needed"):
        made(ones(0, 5), ones(5, 6), out=ones(4, 6))
    with pytest.raises(LaunchError, match="needs c"):
        made(ones(4, 0), ones(0, 6), beta=1.0)
    fixed = codegen.compile(DataParallel()(Gemm("f32", k=16).graph((16, 16, 16))), target)
    with pytest.raises(LaunchError, match="k = 16, but the tensors have k = 0"):
        fixed(ones(4, 0), ones(0, 6))


@pytest.mark.parametrize("shape", [(0, 5, 6), (4, 0, 6), (4, 5, 0)])
@pytest.mark.parametrize("tune", [False, True])
def test_matmul_on_the_cpu(shape: tuple[int, int, int], tune: bool):
    m, k, n = shape
    c = ones(m, n)
    found = codegen.matmul(ones(m, k), ones(n, k).T, c, beta=3.0, tune=tune)
    assert np.array_equal(found, ones(m, k) @ ones(k, n) + 3 * c)


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeDriver:
    found = install(monkeypatch)
    found.arguments = 8
    monkeypatch.setenv("COORDGRAPH_CACHE", "off")
    return found


@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
@pytest.mark.parametrize(("m", "k", "n"), NO_D)
def test_a_gpu_is_not_asked_for_an_empty_d(fake: FakeDriver, target: str, m: int, k: int, n: int):
    made = codegen.compile(StreamK()(Gemm("bf16").graph((64, 64, 64))), target)
    out = matrix(m, n, D)
    for _ in range(2):
        assert made(matrix(m, k, A), matrix(k, n, B), out=out) is out
    assert (fake.launches, fake.loaded, fake.allocated) == ([], [], [])


@quick_cases(1)
@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
def test_a_gpu_multiplies_zeros_where_there_is_no_depth(
    fake: FakeDriver, target: str, monkeypatch: pytest.MonkeyPatch
):
    zeroed: list[tuple[int, int]] = []
    bindings = driver.bindings()
    done = bindings.CUresult.CUDA_SUCCESS

    def fill(pointer: int, value: int, words: int, stream: int) -> tuple[Any]:
        assert value == 0
        zeroed.append((pointer, 4 * words))
        return (done,)

    monkeypatch.setattr(bindings, "cuMemsetD32Async", fill)
    made = codegen.compile(DataParallel()(Gemm("bf16").graph((64, 64, 64))), target)
    empty: dict[str, Any] = {"a": matrix(128, 0, A), "b": matrix(0, 192, B)}
    made(**empty, c=matrix(128, 192, C), out=matrix(128, 192, D), alpha=float("nan"), beta=2.0)
    assert zeroed == [(ZEROS, 192 * DEPTH * 2)]
    (launched,) = fake.launches
    assert launched.grid == (6, 1, 1)
    assert launched.values[:4] == (ZEROS, ZEROS, C, D)
    assert {x.at for x in fake.encoded} == ({ZEROS, D} if target == "sm_90a" else set())
    # With k = 0, alpha·A·B must be 0 even if alpha is NaN, so alpha is passed as 0.
    numbers = [struct.unpack("<f", struct.pack("<Q", x)[:4])[0] for x in launched.values]
    assert (0.0, 2.0) in pairwise(numbers)
    # A repeated call, then a larger one: the buffer of zeros grows and is kept.
    made(**empty, c=matrix(128, 192, C), out=matrix(128, 192, D), beta=2.0)
    assert len(zeroed) == 1
    made(matrix(256, 0, A), matrix(0, 192, B), out=matrix(256, 192, D))
    assert zeroed[1:] == [(2 * ZEROS, 256 * DEPTH * 2)]


@quick_cases(1)
@pytest.mark.parametrize(("layout", "target"), cover(0, product(["nt", "tn"], ["sm_80", "sm_90a"])))
def test_a_gpu_multiplies_zeros_where_groups_have_no_depth(
    fake: FakeDriver, target: str, layout: str
):
    """For groups with k = 0, a kernel multiplies one 16-byte chunk of zeros in memory, in
    either layout.
    """
    a_turned, b_turned = (side == "t" for side in layout)
    gemm = Gemm("bf16", grouped=True, group_axis="k", transpose_a=a_turned, transpose_b=b_turned)
    made = codegen.compile(DataParallel()(gemm.graph((64, 64, 64))), target)
    shape = (3, 128, 192)
    call: dict[str, Any] = {
        "a": matrix(0, 128, A) if a_turned else matrix(128, 0, A),
        "b": matrix(192, 0, B) if b_turned else matrix(0, 192, B),
        "out": matrix(0, 0, D, shape=shape, strides=(128 * 192, 192, 1)),
        "offsets": matrix(0, 0, OFFSETS, shape=(4,), strides=(1,), dtype="i32"),
    }
    for _ in range(2):
        made(**call)
    first, again = fake.launches
    assert first.grid == again.grid == (3 * 2 * 3, 1, 1)
    assert first.values[:5] == (ZEROS, ZEROS, 0, D, OFFSETS)
    assert fake.allocated == [192 * DEPTH * 2]
    none = matrix(0, 0, D, shape=(0, 128, 192), strides=(128 * 192, 192, 1))
    no_groups = matrix(0, 0, OFFSETS, shape=(1,), strides=(1,), dtype="i32")
    made(**{**call, "out": none, "offsets": no_groups})
    assert len(fake.launches) == 2


def test_matmul_on_a_gpu(fake: FakeDriver, monkeypatch: pytest.MonkeyPatch):
    here = driver.Device(0, "NVIDIA H200", "sm_90a", 132, CONTEXT)
    monkeypatch.setattr(driver, "device", lambda ordinal=0: here)
    monkeypatch.setattr("codegen.call.measured.remembered", lambda request: None)
    matmul.forget()
    out = matrix(0, 64, D)
    assert codegen.matmul(matrix(0, 64, A), matrix(64, 64, B), out=out, tune=True) is out
    assert fake.launches == []
    codegen.matmul(matrix(64, 0, A), matrix(0, 64, B), out=matrix(64, 64, D))
    assert len(fake.launches) == 1
    matmul.forget()
