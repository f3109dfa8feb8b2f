"""Cache keys of calls tell apart the PyTorch tensors that need other kernels or launches."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import Any

import pytest

from codegen.call import matmul


@dataclass(frozen=True)
class Tensor:
    """Stand-in for a PyTorch tensor: the attributes from which a call's cache key is made."""

    shape: tuple[int, ...]
    address: int = 0
    dtype: str = "bf16"
    device: str = "cuda:0"
    requires_grad: bool = False

    def stride(self) -> tuple[int, ...]:
        return self.shape[1], 1

    def data_ptr(self) -> int:
        return self.address


@pytest.fixture
def keys(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The cache keys of calls, which are collected instead of launching a kernel."""
    found: list[Any] = []
    monkeypatch.setattr(matmul, "first_launch", lambda _, key, *rest, **given: found.append(key))
    return found


@pytest.mark.parametrize("grouped", [False, True])
def test_one_address_that_is_not_aligned_makes_another_key(grouped: bool, keys: list[Any]):
    """An address that is not a multiple of 16 bytes changes the cache key: TMA cannot read it."""
    for one, two in product((0, 16, 2, 8), repeat=2):
        a, b = Tensor((4, 8), one), Tensor((8, 8), two)
        if grouped:
            matmul.grouped_matmul(a, b, Tensor((3,)))
        else:
            matmul.matmul(a, b)
    low = [max(one % 16, two % 16) for one, two in product((0, 16, 2, 8), repeat=2)]
    assert all((keys[i] == keys[0]) == (not low[i]) for i in range(len(keys)))
    assert len({*keys}) == 4  # the low bits of both addresses, combined by or, are 0, 2, 8 or 10
