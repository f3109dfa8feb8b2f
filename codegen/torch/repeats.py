"""`repeating`: a call with tensors of the layouts of an earlier call only launches its kernel.

Most functions of this package check their tensors, make views of them, and launch one kernel on
these views, which have the addresses of the tensors. Which kernel it is depends only on the layouts
of the tensors and on the other arguments. So a call with equal layouts and arguments needs neither
the checks nor the views: it allocates the results and launches the kernel.

`repeating` decides in this order what a call does:

1. Something else in PyTorch may have to see the call, a tensor is on the host, or a gradient is
   recorded: the function is called.
2. None of the last `MOST_MISSES` calls of the function was only launched, though their keys had
   `ENOUGH_TRIES`: the function is called; keys take host time, so only some calls make theirs.
3. The call's key has a `_Repeat`: the kernel is launched. The key has everything on which the
   launch depends but addresses, which `_Repeat` takes from the tensors.
4. Else the function is called. If it launched one kernel on the tensors, and did nothing else with
   them, the key gets a `_Repeat`.
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
MOST_MISSES = 31
"""After this number of misses one after another, one of this number of calls makes its key. It is a
prime number, so that in a loop over other numbers of calls each call makes its key at some time."""
ENOUGH_TRIES = 8
"""After this number of calls with a key, a call with it that is not only launched is a miss."""
LOW_BITS = ALIGNED_BYTES - 1
_TENSORS, _empty, is_plain_thread = plain.TYPES, torch.empty, plain.is_plain_thread
_keys: Any = getattr(torch._C, "_dispatch_keys", None)


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
    for it, no mode, transform or trace may change it, and it has no `out`. All other calls are
    calls of `function`.

    Args:
        function: a function of tensors, and of arguments of the types `VALUES`. With `out`, it
            calls itself without, and that call may be repeated.
        checked: whether the caller of the function has made sure that the tensors are plain and
            that nothing may change the call, has cast the tensors for `torch.autocast`, and
            records the gradient.
    """
    misses = _Misses()

    @wraps(function)
    def call(*arguments: Any, **options: Any) -> Any:
        # This condition comes first, because Dynamo cannot trace the other conditions.
        if torch.compiler.is_compiling() or not plain.KNOWN or misses.skip():
            return function(*arguments, **options)
        if _thread.inside if checked else options.get("out") is not None or not is_plain_thread():
            return function(*arguments, **options)
        key: list[Hashable] = [function, *options]
        if not checked and torch.is_autocast_enabled("cuda"):
            key.append(torch.get_autocast_dtype("cuda"))
        recorded = not checked and torch.is_grad_enabled()
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
            misses.count = 0
            return found
        return _tried(function, made, known, misses, tensors, arguments, options)

    return call  # pyright: ignore[reportReturnType]


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
        key: the key of the call.
        known: the entry of `repeated_functions` with this key.
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
