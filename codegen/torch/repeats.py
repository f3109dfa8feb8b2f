"""`repeating`: a call of a function with tensors of the layouts of an earlier call only launches.

Most functions of this package check their tensors, make views of them, and launch one kernel on
these views, which have the addresses of the tensors. Which kernel it is depends only on the layouts
of the tensors and on the other arguments. So a call with equal layouts and arguments needs neither
the checks nor the views: it allocates the results and launches the kernel.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from functools import wraps
from operator import add, itemgetter
from typing import Any, TypeVar

import torch
from torch import Tensor

from codegen.call.arrays import library
from codegen.call.prepared_calls import repeated_functions
from codegen.call.seen_launches import SeenLaunch, SeenLaunches, saw, seen_of, thread
from codegen.torch import plain
from coordgraph import CodegenError
from passes.lowering.architectures import ALIGNED_BYTES

__all__ = ["repeating", "uninitialized"]

Function = TypeVar("Function", bound=Callable[..., Any])
VALUES = frozenset((type(None), bool, int, float, str, torch.dtype))
"""The types of arguments, besides tensors, that a call to be repeated may have."""
LOW_BITS = ALIGNED_BYTES - 1
_TENSORS, _empty = plain.TYPES, torch.empty
_keys: Any = getattr(torch._C, "_dispatch_keys", None)


class _Repeat:
    """How to launch the kernel of a call again; no tensor is kept.

    Args:
        seen: the launch of the call.
        places: for each address of the launch, the index of a tensor among 0, `tensors` and
            `found`, and the distance in bytes from the first element of this tensor.
        tensors: the tensors among the arguments of the call.
        found: the results of the call.
        one: whether the call returned a tensor, not a tuple of tensors.
    """

    __slots__ = (
        "_kernel",
        "_launch",
        "_offsets",
        "_one",
        "_places",
        "_results",
        "_scalars",
        "_stream",
    )

    def __init__(
        self,
        seen: SeenLaunch,
        places: list[tuple[int, int]],
        tensors: list[Tensor],
        found: list[Tensor],
        one: bool,
    ) -> None:
        self._launch, self._scalars, self._one = seen.launch, seen.scalars, one
        self._kernel = seen.kernel  # so that its code stays loaded
        self._places = itemgetter(*(place for place, _ in places))
        offsets = [offset for _, offset in places]
        self._offsets = offsets if any(offsets) else None
        self._results = tuple((tuple(x.shape), x.dtype, x.device) for x in found)
        self._stream = library(tensors[0]).current_stream

    def __call__(self, tensors: list[Tensor]) -> Any:
        """Launch the kernel and return the results, or None if it cannot be launched.

        None is returned if an address is no multiple of 16 bytes, and if the launch fails. The
        function then launches a kernel for such addresses, or reports the failure.
        """
        made = [_empty(*shape, dtype=dtype, device=at) for shape, dtype, at in self._results]
        addresses = [0, *[x.data_ptr() for x in tensors], *[x.data_ptr() for x in made]]
        pointers = self._places(addresses)
        if self._offsets is not None:
            pointers = tuple(map(add, pointers, self._offsets))
        for pointer in pointers:
            if pointer & LOW_BITS:
                return None
        try:
            self._launch(pointers, self._scalars, self._stream(tensors[0]))
        except CodegenError:
            return None
        if thread.seen is not None:
            saw(SeenLaunch(self._launch, self._kernel, pointers, self._scalars), made)
        return made[0] if self._one else tuple(made)


def _repeat(seen: SeenLaunches, tensors: list[Tensor], found: Any) -> _Repeat | None:
    """How to repeat a call, or None if it did more than to launch one kernel on its tensors.

    All addresses of the launch must lie in the call's tensors and results, and at least one in each
    of these: so no tensor was copied for the kernel or read for something else. Each result must be
    a new contiguous array that only the kernel has written.
    """
    one = isinstance(found, Tensor)
    results: list[Any] = [found] if one else list(found or ())
    if len(seen.launches) != 1 or not results:
        return None
    (launch,) = seen.launches
    if launch is None or not all(type(x) is Tensor and x.is_contiguous() for x in results):
        return None
    if not seen.made.issuperset(x.data_ptr() for x in results):
        return None
    ranges = [_range(x) for x in (*tensors, *results)]
    places: list[tuple[int, int]] = []
    for address in launch.addresses:
        at = [index for index, place in enumerate(ranges, 1) if address in place]
        if address and len(at) != 1:
            return None
        places.append((at[0], address - ranges[at[0] - 1].start) if address else (0, 0))
    used = {index for index, _ in places if index}
    return _Repeat(launch, places, tensors, results, one) if len(used) == len(ranges) else None


def _range(x: Tensor) -> range:
    """The addresses from the first byte of a tensor to its last."""
    steps = zip(x.shape, x.stride(), strict=True)
    count = sum((extent - 1) * stride for extent, stride in steps) + 1 if x.numel() else 0
    return range(x.data_ptr(), x.data_ptr() + count * x.element_size())


def repeating(function: Function, *, checked: bool = False) -> Function:
    """`function` with less host time for calls that repeat an earlier one.

    A call is only launched if all its tensors are plain tensors on a GPU, no gradient is recorded
    for it, and no mode, transform, trace or `torch.autocast` may change it. All other calls are
    calls of `function`.

    Args:
        function: a function of tensors, and of arguments of the types `VALUES`.
        checked: whether the caller of the function has checked all this except the layouts, and
            records the gradient.
    """

    @wraps(function)
    def call(*arguments: Any, **options: Any) -> Any:
        # This condition comes first, because Dynamo cannot trace the other conditions.
        if torch.compiler.is_compiling() or not plain.KNOWN:
            return function(*arguments, **options)
        if checked and _thread.inside:
            return function(*arguments, **options)
        if not checked and (not plain.is_plain_thread() or torch.is_autocast_enabled("cuda")):
            return function(*arguments, **options)
        recorded = not checked and torch.is_grad_enabled()
        key: list[Hashable] = [function, *options]
        tensors: list[Tensor] = []
        for x in (*arguments, *options.values()) if options else arguments:
            kind = type(x)
            if kind in _TENSORS:
                if _keys(x).raw_repr() not in plain.KEYS_ON_GPU or (recorded and x.requires_grad):
                    return function(*arguments, **options)
                key += x.shape, x.stride(), x.dtype, x.device
                tensors.append(x)
            elif x is None:
                key.append(None)
            elif kind in VALUES:
                key += kind, x
            else:
                return function(*arguments, **options)
        made = tuple(key)
        known = repeated_functions.get(made)
        if known is None:
            known = repeated_functions.put(made, _Tries())
        found = known(tensors)
        if found is not None:
            return found
        return _tried(function, made, known, tensors, arguments, options)

    return call  # pyright: ignore[reportReturnType]


class _Thread(threading.local):
    """For each thread: whether it is in a call of a function that cannot be repeated.

    Functions that this function calls are then not repeated, because their keys take host time.
    """

    inside = False


_thread = _Thread()


class _Tries:
    """Counts the calls with a key that have no `_Repeat`; most functions get one at a third call.

    Attributes:
        count: the number of calls.
    """

    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, tensors: list[Tensor]) -> None:
        """Launch nothing."""
        self.count += 1


def _tried(
    function: Callable[..., Any],
    key: Hashable,
    known: Any,
    tensors: list[Tensor],
    arguments: tuple[Any, ...],
    options: dict[str, Any],
) -> Any:
    """Call a function. For a key without a `_Repeat`, look for one: in fewer and fewer calls.

    Args:
        function: the function.
        key: the key of the call.
        known: the entry of `repeated_functions` with this key.
        tensors: the tensors among the arguments.
        arguments, options: the arguments of the call.
    """
    outer, _thread.inside = _thread.inside, True
    try:
        if type(known) is _Repeat or known.count & (known.count - 1):  # not a power of 2
            return function(*arguments, **options)
        found, seen = seen_of(function, *arguments, **options)
    finally:
        _thread.inside = outer
    repeat = _repeat(seen, tensors, found)
    if repeat is not None:
        repeated_functions.put(key, repeat)
    return found


def uninitialized(like: Tensor, shape: tuple[int, ...], dtype: torch.dtype | None) -> Tensor:
    """A new tensor for an output of a kernel, which is on the device of `like`.

    Args:
        like: a tensor.
        shape: the extents of the new tensor.
        dtype: the type of the new tensor; None for that of `like`.
    """
    found = like.new_empty(shape, dtype=dtype)
    if thread.seen is not None:
        thread.seen.made.add(found.data_ptr())
    return found
