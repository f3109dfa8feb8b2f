"""`seen_of`: what a call of a function launches, so that later calls may launch the same.

A function of tensors that makes one launch makes the same launch for other tensors of the same
layouts. A caller that has seen the launch can make it without the function's checks and views.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

__all__ = ["SeenLaunch", "SeenLaunches", "saw", "saw_checked", "seen_of", "thread"]


@dataclass(frozen=True, slots=True)
class SeenLaunch:
    """A launch of a kernel by a repeated call.

    Args:
        launch: launches the kernel, given `addresses`, `scalars` and the driver's handle of a
            stream. It accepts other addresses of tensors that have the same layouts, if all are
            multiples of 16 bytes, and if no output overlaps another tensor.
        kernel: the kernel, whose code is loaded as long as something refers to the kernel.
        addresses: the addresses of the tensors, in the order that `launch` needs; 0 for none.
        scalars: the numbers that the kernel takes.
    """

    launch: Callable[[tuple[int, ...], Sequence[float], int], None]
    kernel: object
    addresses: tuple[int, ...]
    scalars: Sequence[float]


@dataclass(slots=True)
class SeenLaunches:
    """What one thread has launched during a call of a function.

    Attributes:
        launches: the launches in order; None for one that only a call with all checks can make.
        made: the addresses of new, uninitialized arrays, which only these launches write.
    """

    launches: list[SeenLaunch | None] = field(default_factory=list[SeenLaunch | None])
    made: set[int] = field(default_factory=set[int])


class _Thread(threading.local):
    """For each thread: what its innermost call of `seen_of` launched; None outside of calls."""

    seen: SeenLaunches | None = None


thread = _Thread()


def saw(launch: SeenLaunch, made: Iterable[Any]) -> None:
    """Note a launch, if this thread is in a call of `seen_of`.

    Args:
        launch: the launch.
        made: the new arrays, uninitialized before the launch, to which the kernel writes.
    """
    if thread.seen is not None:
        thread.seen.launches.append(launch)
        thread.seen.made.update(x.data_ptr() for x in made)


def saw_checked() -> None:
    """Note a launch that only a call with all checks can make, if `saw` would note a launch."""
    if thread.seen is not None:
        thread.seen.launches.append(None)


def seen_of(function: Callable[..., Any], *given: Any, **options: Any) -> tuple[Any, SeenLaunches]:
    """What a call of a function returns, and what it launches; such calls may be nested.

    Args:
        function: the function, which is called with the other arguments.
        given, options: the arguments of the function.
    """
    outer, found = thread.seen, SeenLaunches()
    thread.seen = found
    try:
        return function(*given, **options), found
    finally:
        thread.seen = outer
        if outer is not None:
            outer.launches += found.launches
            outer.made |= found.made
