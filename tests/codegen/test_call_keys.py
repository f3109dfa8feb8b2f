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
    strides: tuple[int, ...] = ()

    def stride(self) -> tuple[int, ...]:
        return self.strides or (self.shape[1], 1)

    def is_contiguous(self) -> bool:
        return self.stride() == (self.shape[1], 1)

    def data_ptr(self) -> int:
        return self.address


@pytest.fixture
def keys(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """A list that gets the cache key of each call; no kernel is launched."""
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
    # The four keys have different low bits of both addresses (combined by or): 0, 2, 8 or 10.
    assert len({*keys}) == 4


@pytest.mark.parametrize("grouped", [False, True])
def test_batch_invariant_products_have_keys_of_their_own(grouped: bool, keys: list[Any]):
    a, b = Tensor((4, 8)), Tensor((8, 8))
    for invariant in (False, True, True):
        if grouped:
            matmul.grouped_matmul(a, b, Tensor((3,)), invariant=invariant)
        else:
            matmul.matmul(a, b, invariant=invariant)
    assert keys[0] != keys[1] == keys[2]


def test_layouts_of_c_and_d_make_other_keys(keys: list[Any]):
    """Calls differ in the cache key if C or D differ in gaps between rows or in column-major order.

    These layouts decide how arrays are rearranged for the kernel.
    """
    layouts = [None, *(Tensor((4, 6), strides=strides) for strides in ((6, 1), (8, 1), (1, 4)))]
    a, b = Tensor((4, 8)), Tensor((8, 6))
    for c, out in product(layouts, layouts):
        matmul.matmul(a, b, c, out, beta=1.0)
    # Without C, a call has keys of its own: it may be repeated without a check of C.
    assert len({*keys}) == 4 * 4
    keys.clear()
    matmul.matmul(a, b)
    assert {type(part) for part in keys[0]} <= {tuple, str, bool, int, type(None)}
