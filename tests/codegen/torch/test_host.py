"""Calls on the CPU leave their tensors as PyTorch made them, and `on_host` shares their memory."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from coordgraph import LaunchError

VIEWS: dict[str, Callable[[Any], Any]] = {
    "contiguous": lambda x: x,
    "transposed": lambda x: x.t(),
    "gaps": lambda x: x[1:, 2:5],
    "every second": lambda x: x[::2, ::3],
    "expanded": lambda x: x[0].expand(5, -1),
    "no axes": lambda x: x[1, 2],
    "empty": lambda x: x[:0],
}
TYPES = ("float32", "float64", "float16", "bfloat16", "float8_e4m3fn", "int8", "int32", "bool")


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("dtype", TYPES)
def test_the_array_has_the_elements_and_the_memory_of_the_tensor(torch: Any, dtype: str, view: str):
    from codegen.torch.host import on_host

    x = VIEWS[view](torch.arange(48).remainder(5).reshape(6, 8).to(getattr(torch, dtype)))
    found = on_host(x)
    assert found.dtype.name == dtype
    assert found.flags.writeable
    assert found.shape == tuple(x.shape)
    assert np.array_equal(found.astype(np.float64), x.double().numpy())
    if x.numel():
        assert found.ctypes.data == x.data_ptr()
        assert found.strides == tuple(step * x.element_size() for step in x.stride())


def test_the_array_keeps_the_memory_after_the_tensor_is_dropped(torch: Any):
    from codegen.torch.host import on_host

    found = on_host(torch.full((1 << 20,), 7.0))
    gc.collect()
    others = [torch.full((1 << 20,), 3.0) for _ in range(4)]
    assert (found == 7).all()
    assert len(others) == 4


def test_a_tensor_whose_memory_has_the_opposite_sign_is_refused(torch: Any):
    from codegen.torch.host import on_host

    with pytest.raises(LaunchError, match="resolve_neg"):
        on_host(torch.ones(2, 2, dtype=torch.complex64).conj().imag)


def calls(torch: Any) -> dict[str, Callable[..., Any]]:
    """Functions of three float32 matrices of 8 x 8 that call the library on the CPU, by name."""
    import codegen.torch as cgt

    targets = torch.arange(8)
    return {
        "matmul": lambda x, w, v: cgt.matmul(x, w),
        "linear": lambda x, w, v: cgt.linear(x, w, v[0]),
        "activated": lambda x, w, v: cgt.linear(x, w, v[0], activation="silu"),
        "swiglu": lambda x, w, v: cgt.swiglu(x, w, v[0]),
        "cross_entropy": lambda x, w, v: cgt.cross_entropy(x, w, targets, reduction="none"),
    }


@pytest.mark.parametrize("name", ["matmul", "linear", "activated", "swiglu", "cross_entropy"])
@pytest.mark.parametrize("gradient", [False, True])
def test_arguments_results_and_gradients_can_be_resized(torch: Any, name: str, gradient: bool):
    """FSDP resizes the storages of parameters, so a call must not forbid it."""
    given = [torch.randn(8, 8, requires_grad=gradient) for _ in range(3)]
    found = calls(torch)[name](*given)
    if gradient:
        found.sum().backward()
    for x in (*given, found, *(y.grad for y in given if y.grad is not None)):
        x.detach().untyped_storage().resize_(1 << 16)
        x.detach().resize_(100)


@pytest.mark.parametrize("dtype", TYPES)
def test_messages_say_how_to_make_a_numpy_array_of_a_tensor(torch: Any, dtype: str):
    """The expression works for every type, and for tensors that require a gradient."""
    import ml_dtypes

    from coordgraph.interpreter.arguments import as_numpy, host_array

    x = torch.ones(2, 3).to(getattr(torch, dtype))
    x = x.requires_grad_() if x.dtype.is_floating_point else x
    text = as_numpy(x, "x")
    found = eval(text, {"x": x, "torch": torch, "ml_dtypes": ml_dtypes})
    assert (found.shape, found.dtype.name) == ((2, 3), dtype)
    with pytest.raises(LaunchError) as error:
        host_array(x, "x")
    assert str(error.value).endswith(f"convert it with {text}")
