"""Errors of graphs that were read from text, edited, or made by passes of other packages.

The checks name the faults that such graphs usually have, but not all that are possible: a graph can
break any assumption of the code that draws, runs or compiles it. Whatever that code raises becomes
an error of this library. For graphs of this library's own passes, the exception is a bug of the
library and stays as it is.
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
    """A context manager that turns exceptions which a faulty graph causes into an UnnamedFault.

    Args:
        doing: what is done with the graph, for the message, such as `compiling`.
        graph: the graph; None for one that is being read.
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
            f"{doing} failed: {told}. The graph has a fault that no check names; compare it with "
            "one that a schedule of this library makes"
        ) from error


MOST_TOLD = 200
"""The most characters of an exception's message that are repeated."""
