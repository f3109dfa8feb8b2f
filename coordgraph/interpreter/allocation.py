"""`allocate`: the arrays of a launch's tensors, or an error if the machine lacks the memory."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import numpy as np

from coordgraph.errors import LaunchError
from coordgraph.integers import evaluate
from coordgraph.interpreter.arguments import Array, numpy_dtype, unwritten
from coordgraph.interpreter.layout import laid_out, strides_of
from coordgraph.kernel import KernelGraph
from coordgraph.tensors import Role

__all__ = ["allocate"]

COUNTED = (Role.OUTPUT, Role.PARTIALS)
"""Roles of tensors for which the interpreter counts how often each element is written."""


def allocate(
    graph: KernelGraph, arrays: Mapping[str, Array], values: Mapping[str, Any]
) -> tuple[dict[str, Array], dict[str, Array]]:
    """Two dictionaries by tensor name: flat arrays of all tensors, and counters of writes.

    A counter is an array with the number of writes to each element of an output or of partial sums.
    Unwritten elements of outputs and partial sums are NaN (the least integer for integer types);
    flags and atomic sums start as zero.

    Args:
        graph: the kernel graph.
        arrays: the inputs by tensor name.
        values: the values of all parameters and the entries of all tables.

    Raises:
        LaunchError: the arrays need more bytes than the machine has, or cannot be allocated.
    """
    counts = {t.name: int(evaluate(t.elements, dict(values))) for t in graph.tensors}
    made = [t for t in graph.tensors if t.role.zeroed or t.role in COUNTED]
    widths = {t.name: numpy_dtype(t.dtype).itemsize for t in made}
    size = sum(counts[t.name] * (widths[t.name] + 4 * (t.role in COUNTED)) for t in made)
    problem = (
        f"the outputs and the workspace of the launch need {size} bytes, more than this machine "
        "has; use a smaller problem, smaller tiles or fewer workgroups"
    )
    if size > _physical_memory():
        raise LaunchError(problem)
    found = {
        t.name: laid_out(arrays[t.name], strides_of(t, values), unwritten(t.dtype))
        for t in graph.tensors
        if t.name in arrays
    }
    written: dict[str, Array] = {}
    try:
        for t in made:
            count, kind = counts[t.name], numpy_dtype(t.dtype)
            if t.role.zeroed:
                found[t.name] = np.zeros(count, kind)
            else:
                found[t.name] = np.full(count, unwritten(t.dtype), kind)
                written[t.name] = np.zeros(count, np.int32)
    except (MemoryError, ValueError) as error:
        raise LaunchError(f"{problem} ({error})") from error
    return found, written


def _physical_memory() -> float:
    """Size of the machine's physical memory in bytes; infinity if the size is unknown."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return float("inf")
