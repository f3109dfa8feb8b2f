"""`repeating`: a call with tensors of the layouts of an earlier call only launches its kernel.

Most functions of this package check their tensors, make views of them, and launch one kernel on
these views, which have the addresses of the tensors. Which kernel it is depends only on the layouts
of the tensors and on the other arguments. So a call with equal layouts and arguments needs neither
the checks nor the views: it allocates the results and launches the kernel.

`repeating` decides in this order what a call does:

1. Something else in PyTorch may have to see the call, a tensor is on the host, or the call needs a
   gradient that only the function itself records: the function is called.
2. The last `MOST_MISSES` calls of the function repeated no launch, though each of their keys had
   occurred `ENOUGH_TRIES` times: the function is called. Keys take host time, so only some of the
   next calls make theirs.
3. The call's key has a `_Repeat`: the kernel is launched, and the gradient is recorded if one is
   needed. Besides the key, the launch depends only on addresses, which `_Repeat` takes from the
   tensors. If a recent call had equal layouts, `Recent` finds its `_Repeat`, and no key is made.
4. Else the function is called. If it launched one kernel on the tensors, and did nothing else with
   them, the key gets a `_Repeat`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from functools import partial, reduce, wraps
from operator import add, itemgetter, or_
from typing import Any, TypeVar

import torch
from torch import Tensor

import codegen.torch.plain as plain
from codegen.call.arrays import library
from codegen.call.prepared_calls import repeated_functions
from codegen.call.seen_launches import SeenLaunch, SeenLaunches, saw, seen_of, thread
from codegen.torch.layouts import Recent, layouts_key, sort_arguments
from coordgraph import CodegenError
from passes.lowering.architectures import ALIGNED_BYTES

__all__ = ["repeating", "uninitialized"]

Function = TypeVar("Function", bound=Callable[..., Any])
Recorded = Callable[..., tuple[Callable[..., Any], tuple[Any, ...]] | None]
MOST_MISSES = 31
"""After this number of misses one after another, one of this number of calls makes its key. It is a
prime number, so that in a loop over other numbers of calls each call makes its key at some time."""
ENOUGH_TRIES = 8
"""After this number of calls with a key, a call with it that is not only launched is a miss."""
LOW_BITS = ALIGNED_BYTES - 1
_of_tensors: Any = Tensor
_empty, _address = torch.empty, _of_tensors.data_ptr
is_plain_thread, is_compiling = plain.is_plain_thread, torch.compiler.is_compiling
is_grad_enabled, is_autocast_enabled = torch.is_grad_enabled, torch.is_autocast_enabled


class _Repeat:
    """How to launch the kernel of a call again; no tensor is kept.

    Args:
        seen: the launch of the call.
        places: for each address of the launch, an index in the list of 0 (no tensor), the addresses
            of `tensors` and those of `found`; and the distance in bytes from that address.
        tensors: the tensors among the arguments of the call.
        found: the results of the call.
        one: whether the call returned a tensor, not a tuple of tensors.
    """

    __slots__ = (
        "_kernel",
        "_launch",
        "_makers",
        "_offsets",
        "_one",
        "_places",
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
        self._makers = [
            partial(_empty, *(x.shape or ((),)), dtype=x.dtype, device=x.device) for x in found
        ]
        self._stream = library(tensors[0]).stream_of(tensors[0])

    def __call__(self, tensors: list[Tensor]) -> Any:
        """Launch the kernel and return the results, or None if it cannot be launched.

        None is returned if an address is no multiple of 16 bytes, and if the launch fails. The
        function then launches a kernel for such addresses, or reports the failure.
        """
        made: list[Tensor] = []
        addresses = [0, *map(_address, tensors)]
        for make in self._makers:
            made.append(x := make())
            addresses.append(_address(x))
        pointers = self._places(addresses)
        if self._offsets is not None:
            pointers = tuple(map(add, pointers, self._offsets))
        if reduce(or_, pointers) & LOW_BITS:
            return None
        try:
            self._launch(pointers, self._scalars, self._stream())
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


def repeating(
    function: Function, *, checked: bool = False, recorded: Recorded | None = None
) -> Function:
    """`function` with less host time for calls that repeat an earlier one.

    A repeated call only launches a kernel if all its tensors are plain tensors on a GPU, no mode,
    transform or trace may change it, it has no `out`, and `recorded` can record any gradient that
    it needs. All other calls are calls of `function`.

    Args:
        function: a function of tensors, and of arguments of the types `layouts.VALUES`. With `out`,
            it calls itself without, and that call may be repeated.
        checked: whether the caller of the function has made sure that the tensors are plain and
            that nothing may change the call, has cast the tensors for `torch.autocast`, and
            records the gradient.
        recorded: a function of the arguments of a call. It returns a function that `recorder` made,
            with the arguments of that function except the last; or None if `function` must record
            the gradients of this call itself. Without `recorded`, it records those of every call.
    """
    misses = _Misses()

    @wraps(function)
    def call(*arguments: Any, **options: Any) -> Any:
        # This condition comes first, because Dynamo cannot trace the other conditions.
        if is_compiling() or misses.skip() or _thread.inside or options.get("out") is not None:
            return function(*arguments, **options)
        known = _known(function, arguments, options) if checked or is_plain_thread() else None
        if known is None:
            return function(*arguments, **options)
        repeat, tensors, gradient = known
        record = None
        if gradient and not checked and is_grad_enabled():
            record = recorded and plain.records() and recorded(*arguments, **options)
            if not record:
                return function(*arguments, **options)
        found = repeat(tensors)
        if found is None:
            return _tried(function, repeat, misses, tensors, arguments, options)
        misses.count = 0
        if record is None:
            return found
        apply, given = record
        return apply(*given, lambda *_: found)

    return call  # pyright: ignore[reportReturnType]


def _known(
    function: Callable[..., Any], arguments: tuple[Any, ...], options: dict[str, Any]
) -> tuple[Any, list[Tensor], bool] | None:
    """The `_Repeat` or the `_Tries` of a call, its tensors, and whether one requires a gradient.

    The result is None for a call that cannot be repeated.
    """
    found = sort_arguments(function, arguments, options)
    if found is None:
        return None
    values, tensors = found
    if is_autocast_enabled("cuda"):
        values = (torch.get_autocast_dtype("cuda"), *values)
    recent = repeated_functions.get(values) or repeated_functions.put(values, Recent())
    known = recent.get(tensors)
    if known is not None:
        return known[0], tensors, known[1]
    key = layouts_key(values, tensors)
    if key is None:
        return None
    repeat = repeated_functions.get(key) or repeated_functions.put(key, _Tries(key))
    if type(repeat) is _Repeat:
        recent.add(tensors, repeat)
    return repeat, tensors, any(x.requires_grad for x in tensors)


class _Misses:
    """Counts calls of a function, one after another, that had a known key but no launch to repeat.

    Attributes:
        count: the number of such calls since a call was only launched or had a new key.
    """

    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0

    def skip(self) -> bool:
        """Whether the next call should make no key; such a call is counted, too."""
        skips = self.count > MOST_MISSES and self.count % MOST_MISSES != 0
        self.count += skips
        return skips


class _Thread(threading.local):
    """What each thread is doing.

    Attributes:
        inside: whether the thread executes a function of `repeating`. Functions that it calls then
            make no keys, because keys take host time.
    """

    inside = False


_thread = _Thread()


class _Tries:
    """Counts the calls with a key that has no `_Repeat`; most keys get one at the fourth call.

    Attributes:
        key: the key.
        count: the number of calls.
    """

    __slots__ = ("count", "key")

    def __init__(self, key: Hashable) -> None:
        self.key, self.count = key, 0

    def __call__(self, tensors: list[Tensor]) -> None:
        """Launch nothing."""
        self.count += 1


def _tried(
    function: Callable[..., Any],
    known: Any,
    misses: _Misses,
    tensors: list[Tensor],
    arguments: tuple[Any, ...],
    options: dict[str, Any],
) -> Any:
    """Call a function; for a key without a `_Repeat`, find out whether the call can have one.

    To find out takes time, so it is done at the first, second, fourth, eighth, … call with the key,
    and at every call if only some calls of the function make their keys.

    Args:
        function: the function.
        known: the entry of `repeated_functions` for the call.
        misses: the misses of the function, to which the call is added.
        tensors: the tensors among the arguments.
        arguments, options: the arguments of the call.
    """
    is_repeat = type(known) is _Repeat
    misses.count = misses.count + 1 if is_repeat or known.count > ENOUGH_TRIES else 0
    rarely = misses.count > MOST_MISSES
    outer, _thread.inside = _thread.inside, True
    try:
        # The bitwise test is False for powers of 2.
        if is_repeat or (known.count & (known.count - 1) and not rarely):
            return function(*arguments, **options)
        found, seen = seen_of(function, *arguments, **options)
    finally:
        _thread.inside = outer
    repeat = _repeat(seen, tensors, found)
    if repeat is not None:
        repeated_functions.put(known.key, repeat)
    return found


def uninitialized(like: Tensor, shape: tuple[int, ...], dtype: torch.dtype | None) -> Tensor:
    """A new tensor for an output of a kernel; its elements have no defined values.

    Args:
        like: a tensor on the device of the new tensor.
        shape: the extents of the new tensor.
        dtype: the type of the new tensor; None for that of `like`.
    """
    found = like.new_empty(shape, dtype=dtype)
    if thread.seen is not None:
        thread.seen.made.add(found.data_ptr())
    return found
