"""NVTX ranges around calls of kernels, which Nsight Systems shows on the timeline of the host.

The package `nvtx` makes the ranges. Kernels with ranges have a separate class, so that calls of
other kernels need not test whether ranges are wanted.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import lru_cache
from importlib import import_module
from typing import Any, TypeVar, cast

from codegen.kernel import Kernel
from coordgraph import CodegenError

__all__ = ["VARIABLE", "ranged", "wanted"]

VARIABLE = "COORDGRAPH_NVTX"
"""The environment variable that is read if `nvtx=None`: 1 switches NVTX ranges on, 0 or '' off."""
DOMAIN = "coordgraph"
"""The NVTX domain of all ranges of this library."""
ANSWERS = {"": False, "0": False, "1": True}
KernelT = TypeVar("KernelT", bound=Kernel)


def wanted(nvtx: bool | None) -> bool:
    """Whether calls of kernels are marked as NVTX ranges.

    The answer is `nvtx`, or if that is None, whether the environment variable COORDGRAPH_NVTX is 1.

    Raises:
        CodegenError: `nvtx` is not True, False or None, or COORDGRAPH_NVTX is not 0, 1 or empty.
    """
    if nvtx is None:
        text = os.environ.get(VARIABLE, "")
        if text not in ANSWERS:
            raise CodegenError(
                f"{VARIABLE} = {text!r} is neither 0 nor 1; set it to 1 to emit NVTX ranges, or to "
                "0"
            )
        return ANSWERS[text]
    if not isinstance(nvtx, bool):
        raise CodegenError(f"nvtx = {nvtx!r} is neither True nor False nor None; give one of them")
    return nvtx


@lru_cache
def ranged(kind: type[KernelT]) -> type[KernelT]:
    """A subclass of the kernel class `kind` whose calls are NVTX ranges with the kernel's title.

    Raises:
        CodegenError: the package nvtx is not installed.
    """
    try:
        annotate = cast(Any, import_module("nvtx")).annotate
    except ImportError:
        raise CodegenError(
            "NVTX ranges need the Python package nvtx, which is not installed; install it with "
            f"pip install 'coordgraph[nvtx]', or leave out nvtx=True and {VARIABLE}"
        ) from None

    def call(self: Kernel, *args: Any, **options: Any) -> Any:
        with annotate(self.title, domain=DOMAIN):
            return kind.__call__(cast(KernelT, self), *args, **options)

    def reduce(self: Kernel) -> Any:
        # A pickle cannot name the subclass, but it can name `kind`.
        make, (_, *made_from) = Kernel.__reduce__(self)
        return _with_ranges, (make, kind, *made_from)

    members: dict[str, Any] = {"__call__": call, "__reduce__": reduce, "__doc__": kind.__doc__}
    members["repeated"] = Kernel.repeated
    made = type(kind.__name__, (kind,), members)
    return cast("type[KernelT]", made)


def _with_ranges(make: Callable[..., Kernel], kind: type[Kernel], *made_from: Any) -> Kernel:
    """What `make` makes of the subclass of `kind` whose calls are NVTX ranges."""
    return make(ranged(kind), *made_from)
