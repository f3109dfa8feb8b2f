"""Provers that ranges with the same statements share, with their caches of bounds."""

from collections import deque
from collections.abc import Callable, Hashable
from weakref import WeakValueDictionary

from coordgraph.integers.proofs import Prover

MOST_KEPT = 512
"""The number of provers that are kept for later ranges although no ranges use them any more."""

_provers = WeakValueDictionary[Hashable, Prover]()
_kept = deque[Prover](maxlen=MOST_KEPT)


def shared_prover(key: Hashable, make: Callable[[], Prover]) -> Prover:
    """The prover of all ranges with the same statements.

    Graphs of one problem, such as those before and after a pass, have the same ranges of
    parameters, and so do loops over the same indices. A circular prover is not shared, because its
    results depend on what was asked before: a graph would depend on the graphs built before it.

    Args:
        key: the statements, and the prover of the enclosing scope.
        make: returns a new prover for these statements.
    """
    prover = _provers.get(key)
    if prover is None or prover.circular:
        prover = _provers[key] = make()
    _kept.append(prover)
    return prover
