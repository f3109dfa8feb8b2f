"""Agents: simulated threads, each of which represents threads that execute the same steps.

Threads of a workgroup that execute the same operations on the same barriers and flags form a class.
Threads of a class differ only in the elements that they access. Two agents represent a class of
several threads, because accesses by one thread are in program order, but accesses by two threads of
the class can be unordered. By symmetry, what orders two agents of a class orders any two of its
threads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from coordgraph.control.effects import Commit, Converge
from coordgraph.verification.memory_order.clocks import Clock
from coordgraph.verification.memory_order.steps import Step
from coordgraph.verification.memory_order.thread_values import WARP, Array

__all__ = ["WARPGROUP", "Agent", "ThreadClass", "classify"]

WARPGROUP = 128
"""Number of threads of a warpgroup."""


@dataclass(eq=False)
class ThreadClass:
    """Threads of one workgroup that execute the same steps.

    Args:
        workgroup: the number of the workgroup (CTA) in the simulated launch.
        threads: the numbers of the threads, ascending.
        steps: the steps that these threads execute, in order.
    """

    workgroup: int
    threads: Array
    steps: list[Step]

    def agents(self) -> list[Agent]:
        """The simulated threads of the class: one, or two if the class has several threads."""
        first, rest = int(self.threads[0]), len(self.threads) - 1
        found = [Agent(self, first, 1)]
        if rest:
            found.append(Agent(self, int(self.threads[1]), rest))
        return found


@dataclass(eq=False)
class Agent:
    """A simulated thread that represents `weight` threads of its class.

    Args:
        of: the class of threads that the agent represents.
        thread: the number of the simulated thread in its workgroup.
        weight: number of threads as which the agent arrives at barriers.
        clock: the events that happened before the agent's next effect.
        open: for each kind of async-group: (read events, all events) of the asynchronous operations
            that are not yet committed to a group. Each of the two is a set of events with one bit
            per event.
        groups: for each kind of async-group: (read events, all events) of each committed group, in
            the order in which the groups were committed.
    """

    of: ThreadClass
    thread: int
    weight: int
    clock: Clock = field(default_factory=Clock)
    open: dict[str, tuple[int, int]] = field(default_factory=dict[str, tuple[int, int]])
    groups: dict[str, list[tuple[int, int]]] = field(
        default_factory=dict[str, list[tuple[int, int]]]
    )

    @property
    def workgroup(self) -> int:
        """The number of the simulated thread's workgroup (CTA)."""
        return self.of.workgroup


def classify(workgroup: int, steps: Sequence[Step], threads: int) -> list[ThreadClass]:
    """Divide the threads of a workgroup into classes that execute the same steps.

    Threads without a step belong to no class.
    """
    labels = np.zeros(threads, np.int64)
    every = np.arange(threads)
    # A key is an array with one value for each thread; threads with different values are put into
    # different classes. Most steps repeat the keys (and the mask of executing threads) of earlier
    # steps; a repeated key divides no class further, so it is skipped.
    done: set[tuple[bytes, bytes, str]] = set()
    for step in steps:
        mask = step.mask.tobytes()
        keys = [step.mask, step.elected]
        for effect in step.effects:
            if isinstance(effect, Converge):
                keys.append(every // WARP)
            elif isinstance(effect, Commit) and effect.together:
                keys.append(every // WARPGROUP)
        keys += [value for value in step.values.values() if isinstance(value, np.ndarray)]
        for key in keys:
            known = mask, key.tobytes(), key.dtype.str
            if known in done:
                continue
            done.add(known)
            full = np.where(step.mask, np.broadcast_to(key, threads) + 1, 0)
            labels = _refined(labels, full)
    found: list[ThreadClass] = []
    for label in np.unique(labels):
        members = np.flatnonzero(labels == label)
        own = [step for step in steps if step.mask[members[0]]]
        if own:
            found.append(ThreadClass(workgroup, members, own))
    return found


def _refined(labels: Array, key: Array) -> Array:
    if (key == key[0]).all():
        return labels
    pairs = labels * (int(key.max()) + 1) + key
    return np.unique(pairs, return_inverse=True)[1].reshape(-1)
