"""A stand-in for the parts of Triton that the benchmark kernels use, implemented with NumPy.

Programs run one after another. Tests that use this module check the indices in kernels, not
whether Triton compiles the kernels.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from copy import copy
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np

__all__ = ["modules"]


class OutOfResources(Exception):
    """Raised if a configuration needs more registers or shared memory than the device has."""


class Pointer:
    """A pointer into an array, as a kernel sees it; `writes` counts the writes to each element."""

    def __init__(self, array: np.ndarray) -> None:
        # order="K" lists the elements in memory order, also if the array is transposed.
        self.flat, self.writes = array.ravel(order="K"), Counter[int]()
        self.dtype, self.index = SimpleNamespace(element_ty=array.dtype), 0

    def __add__(self, index: Any) -> Pointer:
        moved = copy(self)
        moved.index = self.index + index
        return moved


class Descriptor:
    """A tensor descriptor: loads boxes of a matrix; elements outside the matrix are zero."""

    def __init__(self, array: np.ndarray, box: list[int]) -> None:
        assert array.ndim == len(box) == 2
        assert max(box) <= 256
        self.array, self.box = array, box

    @classmethod
    def from_tensor(cls, array: np.ndarray, box: list[int]) -> Descriptor:
        return cls(array, box)

    def load(self, at: list[int]) -> np.ndarray:
        assert min(at) >= 0
        found = np.zeros(self.box, self.array.dtype)
        inside = self.array[at[0] : at[0] + self.box[0], at[1] : at[1] + self.box[1]]
        found[: inside.shape[0], : inside.shape[1]] = inside
        return found


class Kernel:
    """Stands for a `triton.jit` kernel: `kernel[grid](…)` calls the function once per program."""

    def __init__(self, function: Callable[..., None], language: Any) -> None:
        self.function, self.language = function, language

    def __getitem__(self, grid: tuple[int]) -> Callable[..., None]:
        def launch(*given: Any, num_warps: int, num_stages: int, **constants: Any) -> None:
            pointers = [Pointer(x) if isinstance(x, np.ndarray) else x for x in given]
            for program in range(grid[0]):
                self.language.program_id = lambda axis, program=program: program
                self.language.num_programs = lambda axis: grid[0]
                self.function(*pointers, **constants)
            for pointer in pointers:
                if isinstance(pointer, Pointer):
                    assert max(pointer.writes.values(), default=1) == 1, "written twice"

        return launch


def _load(at: Pointer, mask: np.ndarray | None = None, other: float = 0.0) -> Any:
    if mask is None:
        return int(at.flat[at.index])
    index: Any = at.index
    inside = np.broadcast_to(mask, index.shape)
    found = np.full(index.shape, other, at.flat.dtype)
    found[inside] = at.flat[index[inside]]
    return found


def _store(at: Pointer, value: np.ndarray, mask: np.ndarray) -> None:
    index: Any = at.index
    assert index.shape == value.shape == mask.shape
    assert value.dtype == at.flat.dtype
    at.flat[index[mask]] = value[mask]
    at.writes.update(index[mask].tolist())


def _dot(a: np.ndarray, b: np.ndarray, total: np.ndarray) -> np.ndarray:
    return total + a.astype(np.float32) @ b.astype(np.float32)


def modules() -> dict[str, ModuleType]:
    """The modules that replace Triton in `sys.modules`, by name."""
    names = ("triton", "triton.language", "triton.tools", "triton.tools.tensor_descriptor")
    found = {name: ModuleType(name) for name in names}
    base, language, tools, descriptor = found.values()
    contents: dict[str, Any] = {
        "cdiv": lambda a, b: -(-a // b),
        "zeros": lambda extents, dtype: np.zeros(extents, dtype),
        "cast": lambda value, dtype: np.asarray(value).astype(dtype),
        "arange": np.arange,
        "range": lambda first, end, step, flatten: range(first, end, step),
        "where": np.where,
        "multiple_of": lambda value, of: value,
        "max_contiguous": lambda value, count: value,
        "float32": np.float32,
        "int64": np.int64,
        "constexpr": object,
        "load": _load,
        "store": _store,
        "dot": _dot,
    }
    for name, value in contents.items():
        setattr(language, name, value)
    at_top: dict[str, Any] = {
        "cdiv": contents["cdiv"],
        "jit": lambda **options: lambda function: Kernel(function, language),
        "language": language,
        "tools": tools,
        "runtime": SimpleNamespace(errors=SimpleNamespace(OutOfResources=OutOfResources)),
        "__version__": "0",
    }
    for name, value in at_top.items():
        setattr(base, name, value)
    tools.tensor_descriptor = descriptor  # pyright: ignore[reportAttributeAccessIssue]
    descriptor.TensorDescriptor = Descriptor  # pyright: ignore[reportAttributeAccessIssue]
    return found
