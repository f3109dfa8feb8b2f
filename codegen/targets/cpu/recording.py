"""`RecordingHostKernel`: a CPU kernel that records a timeline of its workgroups."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np

from codegen.targets.cpu.launch_plan import Plan
from codegen.targets.cpu.runtime import HostKernel
from codegen.targets.cpu.workspace import Workspace
from codegen.timeline import Timeline, decode
from coordgraph import KernelGraph
from coordgraph.control.timeline import RECORD_WORDS
from coordgraph.integers import evaluate
from coordgraph.interpreter.arguments import Array
from coordgraph.tensors import Role
from passes.timeline import MOST_RECORDS

__all__ = ["RecordingHostKernel"]


class _Latest(threading.local):
    """For each thread that calls kernels: the timeline records of its latest launch."""

    def __init__(self) -> None:
        self.records: Array | None = None


class RecordingHostKernel(HostKernel):
    """A `HostKernel` that was compiled with `timeline=True`; a call takes the same arguments."""

    def __init__(
        self,
        graph: KernelGraph,
        *,
        debug: bool = False,
        watched: bool = False,
        timeline: int = MOST_RECORDS,
    ) -> None:
        super().__init__(graph, debug=debug, watched=watched, timeline=timeline)
        (self._tensor,) = (t for t in self.lowered.tensors if t.role is Role.TIMELINE)
        self._latest = _Latest()

    def ended(self, plan: Plan, workspace: Workspace) -> None:
        """Copy the timeline records of a launch, before another launch overwrites them."""
        values = self.lowered.parameters.launch(plan.given, plan.known)
        shape = [int(evaluate(extent, values)) for extent in self._tensor.shape]
        words = workspace.tensors[self._tensor.name].view(np.int32)
        self._latest.records = words.reshape(shape).copy()

    def timeline(self, *args: Any, **options: Any) -> Timeline:
        """Run the kernel once and return its timeline, as described for `Kernel.timeline`."""
        self._latest.records = None
        self(*args, **options)
        found = self._latest.records
        if found is None:  # no workgroup was launched because D is empty
            found = np.zeros((0, 1, RECORD_WORDS), np.int32)
        return decode(found, target=self.target, name=self.title)
