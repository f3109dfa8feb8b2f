"""A cache of provers: `Ranges` with the same facts about symbols share a prover and its results."""

from collections import deque
from collections.abc import Callable, Hashable
from weakref import WeakValueDictionary

from coordgraph.integers.proofs import Prover

MOST_KEPT = 512
"""Number of provers in the LRU cache; they are kept even if no `Ranges` uses them any more."""

_provers = WeakValueDictionary[Hashable, Prover]()
_kept = deque[Prover](maxlen=MOST_KEPT)


def shared_prover(key: Hashable, make: Callable[[], Prover]) -> Prover:
    """The prover of all `Ranges` with the same known facts, made by `make` if there is none.

    Graphs of one problem, such as those before and after a pass, have the same ranges of
    parameters, and so have loops over the same indices. A prover whose bounds depend on each other
    is not shared, because its results depend on the order of queries, and equal pipelines would
    give different graphs.

    Args:
        key: the known facts about symbols (bounds, definitions and conditions), and the prover of
            the enclosing scope.
        make: returns a new prover for these facts.
    """
    prover = _provers.get(key)
    if prover is None or prover.circular:
        prover = _provers[key] = make()
    _kept.append(prover)
    return prover
