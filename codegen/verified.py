"""Checks a kernel graph by `graph.check()` before its kernel is built for the first time.

A graph that was checked is remembered in the on-disk cache, so a build from the cache pays only for
a look-up. A graph that only this library's passes made is checked when code is generated for it.
Passes do not trace the workgroups of such a graph again.
"""

from __future__ import annotations

import os
from functools import lru_cache

from codegen.cache import cache_directory, cacheable, key_of, load, store
from coordgraph import KernelGraph
from coordgraph.library_graphs import is_made_by_library
from passes.work_check import KNOWN

__all__ = ["VARIABLE", "check_once", "checks_library_graphs", "ensure_verified"]

VARIABLE = "COORDGRAPH_VERIFY"
"""The environment variable whose value 0 switches off the checks of graphs that only passes of this
library made."""
KEPT = 64
"""Number of checked graphs that this process remembers, the latest ones used. For other graphs it
looks in the on-disk cache, and checks those that the cache does not have."""


def ensure_verified(graph: KernelGraph, *, always: bool = False) -> None:
    """Check a scheduled graph by `graph.check()`, unless an equal graph was checked before.

    A graph that only passes of this library made is checked only if `always` is True.

    Args:
        graph: the graph.
        always: whether to check graphs of every origin.

    Raises:
        VerifyError: a check is refuted; the messages are the counterexamples.
    """
    if always or not is_made_by_library(graph):
        check_once(graph)


def checks_library_graphs(verify: bool | None) -> bool:
    """Whether graphs that only this library's passes made are checked before code is generated.

    Args:
        verify: the argument `verify` of `codegen.compile`: True to check, False not to check; None
            reads the environment variable COORDGRAPH_VERIFY.
    """
    return os.environ.get(VARIABLE, "") != "0" if verify is None else verify


@lru_cache(KEPT)
def check_once(graph: KernelGraph) -> None:
    """Check a graph unless the on-disk cache says that it passed; record a success in the cache.

    Raises:
        VerifyError: a check is refuted.
    """
    key = _key(graph)
    if key is not None and load(key) is not None:
        return
    graph.check().raise_if_refuted()
    if key is not None:
        store(key, {"verified": b""})


@KNOWN.implement
def is_verified(graph: KernelGraph) -> bool:
    """Whether the cache on disk says that an equal graph was checked before a build."""
    key = _key(graph)
    return key is not None and load(key) is not None


def _key(graph: KernelGraph) -> str | None:
    """The key of a graph in the cache of checked graphs.

    None if the graph cannot be cached, or if the cache is off: a key takes as long as some checks.
    """
    if cache_directory() is None or not cacheable(graph):
        return None
    return key_of("verified", graph.text())
