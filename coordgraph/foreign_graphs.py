"""Errors for faulty graphs that were read from text, edited, or made by other packages' passes.

Checks find the usual faults of such graphs, but a graph can break any assumption of the code that
draws, runs or compiles it. An exception that such a graph causes is replaced by an error of this
library. A graph that only passes of this library made has no such fault: an exception is then a bug
of the library, and is not replaced.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

from coordgraph.errors import CoordGraphError, UnnamedFault
from coordgraph.kernel import KernelGraph
from coordgraph.library_graphs import is_made_by_library

__all__ = ["faults_named"]


@contextmanager
def faults_named(doing: str, graph: KernelGraph | None = None) -> Generator[None]:
    """Context manager: replaces an exception that a malformed graph causes by an UnnamedFault.

    Args:
        doing: what is done with the graph, for the message, such as `compiling`.
        graph: the graph; None while it is being read from text or JSON.
    """
    try:
        yield
    except CoordGraphError:
        raise
    except Exception as error:
        if graph is not None and is_made_by_library(graph):
            raise
        told = f"{type(error).__name__}: {error}"[:MOST_TOLD]
        raise UnnamedFault(
            f"{doing} failed: {told}. The graph is malformed in a way that no check reports; "
            "compare it with a graph that a schedule of this library makes"
        ) from error


MOST_TOLD = 200
"""Largest number of characters of an exception's message that an `UnnamedFault` quotes."""
