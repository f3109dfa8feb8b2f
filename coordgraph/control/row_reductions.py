"""Operations of lowered graphs for GPUs that reduce rows of an output tile in registers.

If a thread holds elements of a row, one of the thread's registers keeps the running reduction of
the row. These registers form a fragment, named by the output and `.rows`. `ApplyFragment` merges
the values of the epilogue into the fragment. `ReduceLanes` then merges the lanes that hold elements
of the same row, and `CombineRows` merges the results of several warps, through shared memory.
Finally one thread writes the result of the row.
"""

from __future__ import annotations

from dataclasses import dataclass

from coordgraph.control.operations import Operation

__all__ = ["CombineRows", "ReduceLanes", "StartRows", "StoreRows", "rows_of"]


def rows_of(output: str) -> str:
    """The name of the fragment that holds the running reductions for an output's rows."""
    return f"{output}.rows"


@dataclass(frozen=True)
class StartRows(Operation):
    """Set the running reduction of a row to the result for no elements, such as 0 for a sum.

    Args:
        fragment: the name of the fragment.
        registers: the dimensions that number the rows of which a thread holds elements.
        reduce: the name of the reduction: `sum`, `max` or `logsumexp`.
    """

    fragment: str
    registers: tuple[str, ...]
    reduce: str

    ROLES = ("registers",)


@dataclass(frozen=True)
class ReduceLanes(Operation):
    """Merge the running reductions of a row that several lanes hold, and compute the row's result.

    All lanes of a warp execute the operation (PTX `shfl.sync.bfly`). Afterwards, each of the lanes
    has the result.

    Args:
        fragment: the name of the fragment.
        registers: the dimensions that number the rows of which a thread holds elements.
        reduce: the name of the reduction.
        distances: powers of two; lane i is merged with lane `i xor d` for one distance d after
            another.
    """

    fragment: str
    registers: tuple[str, ...]
    reduce: str
    distances: tuple[int, ...]

    ROLES = ("registers",)


@dataclass(frozen=True)
class CombineRows(Operation):
    """Combine a row's result in a register with another warp's result for the row, in memory.

    Both warps have computed their results with `ReduceLanes`.

    Args:
        fragment: the name of the fragment.
        source: the dimension whose index locates the other warp's result in memory.
        registers: the dimensions that number the rows of which a thread holds elements.
        reduce: the name of the reduction.
    """

    fragment: str
    source: str
    registers: tuple[str, ...]
    reduce: str

    ROLES = ("source", "registers")


@dataclass(frozen=True)
class StoreRows(Operation):
    """Write a row's result, after `ReduceLanes`, to memory; padding is not written.

    Args:
        fragment: the name of the fragment.
        destination: the dimension whose index locates the element in memory.
        registers: the dimensions that number the rows of which a thread holds elements.
    """

    fragment: str
    destination: str
    registers: tuple[str, ...]

    ROLES = ("destination", "registers")
