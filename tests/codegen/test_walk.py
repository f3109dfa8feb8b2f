"""A `matmul` call enters few functions before it launches its kernel."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from types import CodeType, FrameType
from typing import Any

import numpy as np
import pytest

from codegen.call import build, matmul
from codegen.call.request import PlanRequest
from codegen.targets.cpu import HostKernel
from tests.support.sampling import chosen, quick_cases

pytestmark = pytest.mark.usefixtures("forgotten")

MOST = 25
"""Largest number of functions that a first call of `matmul` enters before it calls the kernel."""
MOST_ARRANGED = 28
"""Largest number of functions that a first call enters if it rearranges arrays for the kernel."""
MOST_AGAIN = 7
"""Largest number of functions that a repeated call enters if it does not rearrange arrays."""

EXCLUDED: dict[CodeType, str] = {
    build.compile_plan.__code__: "compiling",
    PlanRequest.plans.__code__: "the model",
}


class Walk:
    """Records, in order, the functions of `codegen` that a call enters before its kernel runs."""

    def __init__(self) -> None:
        self.functions: list[str] = []
        self.launched = False
        self._excluded = 0

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        """Record a function that is entered; Python calls this method (see `sys.setprofile`)."""
        code = frame.f_code
        if self.launched or event not in ("call", "return"):
            return
        if code is HostKernel.__call__.__code__:
            self.launched = True
        elif code in EXCLUDED:
            self._excluded += 1 if event == "call" else -1
        elif event == "call" and not self._excluded and (name := _function(frame)):
            self.functions.append(name)

    @property
    def distinct(self) -> list[str]:
        return list(dict.fromkeys(self.functions))


def _function(frame: FrameType) -> str:
    """The name of a function of `codegen`; '' for comprehensions, properties and generated methods.

    Properties and dataclass constructors are not counted, because the source that calls them reads
    like access to attributes and creation of records.
    """
    module, code = frame.f_globals.get("__name__", ""), frame.f_code
    if not module.startswith("codegen.") or "<" in (code.co_name[0], code.co_filename[0]):
        return ""
    owner = frame.f_locals.get("self")
    if isinstance(getattr(type(owner), code.co_name, None), property | cached_property):
        return ""
    return f"{module}.{code.co_qualname}"


@contextmanager
def walking() -> Iterator[Walk]:
    walk = Walk()
    before = sys.getprofile()
    sys.setprofile(walk)
    try:
        yield walk
    finally:
        sys.setprofile(before)


def ones(*shape: int) -> np.ndarray:
    return np.ones(shape, np.float32)


OFFSETS = np.array([0, 2, 4], np.int32)
AS_GIVEN: dict[str, Callable[[], Any]] = {
    "one product": lambda: matmul.matmul(ones(4, 5), ones(5, 6)),
    "a batch": lambda: matmul.matmul(ones(3, 4, 5), ones(3, 5, 6)),
    "groups": lambda: matmul.grouped_matmul(ones(4, 5), ones(2, 5, 6), OFFSETS),
}
ARRANGED: dict[str, Callable[[], Any]] = {
    "a transpose": lambda: matmul.matmul(ones(4, 5), ones(6, 5).T),
    "one A for all": lambda: matmul.matmul(ones(4, 5), ones(3, 5, 6)),
    "one B for all": lambda: matmul.matmul(ones(3, 4, 5), ones(5, 6)),
}


@quick_cases(1)
@pytest.mark.parametrize("name", chosen((*AS_GIVEN, "a transpose"), [*AS_GIVEN, *ARRANGED]))
def test_a_call_of_a_new_kind(name: str):
    with walking() as walk:
        (AS_GIVEN | ARRANGED)[name]()
    assert walk.launched
    steps = walk.distinct
    for step in ("describe.describe", "choose.plans", "build.kernel_of", "launch.first_launch"):
        assert f"codegen.call.{step}" in steps
    assert len(steps) <= (MOST if name in AS_GIVEN else MOST_ARRANGED), "\n".join(steps)


@quick_cases(4)
@pytest.mark.parametrize("name", [*AS_GIVEN, *ARRANGED])
def test_a_call_like_one_before(name: str):
    call = (AS_GIVEN | ARRANGED)[name]
    call()
    with walking() as walk:
        call()
    assert walk.launched
    assert not any("describe.describe" in step or "build" in step for step in walk.functions)
    assert len(walk.distinct) <= MOST_AGAIN + 3 * (name in ARRANGED), "\n".join(walk.distinct)


def test_the_walk_sees_functions():
    """`walking` records the functions that a call enters; other tests limit their number."""
    with walking() as walk:
        build.forget()
        HostKernel.__name__  # noqa: B018
    assert walk.functions == ["codegen.call.build.forget"]
    assert not walk.launched
