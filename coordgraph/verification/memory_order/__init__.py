"""The check `memory order` of lowered graphs: no data race and no deadlock in any interleaving.

A *reduced machine* executes small launches of a lowered graph: a few workgroups, tiles and k tiles,
with all threads, pipeline stages and mbarriers that the graph has (`steps`, `agents`, `machine`).
The effects of operations are declared in `coordgraph.control.declared_effects`. The machine
executes *one* interleaving, and computes for which pairs of events the order is the same in every
interleaving (`clocks`). Two accesses to the same element that are not ordered, one of them a write,
are a data race (`races`). Two more cases are data races: an access by TMA or wgmma after an access
by a thread without a proxy fence between them, and a read of a value that was not released and
acquired in a scope that includes both threads (PTX ISA, "Causality Order").

**Why one interleaving is enough.** The steps of a thread do not depend on other threads, since
branches and loops depend on launch arguments, tables and the thread's number only. So interleavings
differ only in the order of steps. Steps of different threads affect each other only through
synchronisation objects. Two steps are *independent* if each can be executed before the other, with
the same result. Partial-order reduction examines one representative of all interleavings that
differ only in the order of independent steps. The rules below guarantee that all interleavings
differ only in the order of independent steps; if a launch breaks a rule, the check fails:

1. *Arrivals at an mbarrier commute*: a phase completes when enough threads have arrived. But an
   arrival and the completion of a phase do not commute if the arrival may count for that phase or
   for the next one. If a completion happens before every arrival of later phases, each arrival
   counts for one phase only. For an mbarrier that counts bytes, any other arrival is an error. For
   other mbarriers, an arrival that is not ordered after the completion of an earlier phase is
   recorded, and the launch is executed again. In the new execution, an event counts as ordered
   before the completion only if it is ordered before the arrival that completed the phase and
   before the recorded arrival, since either one may complete the phase. Executions are repeated
   until no further arrival is recorded (see `Mbarrier`).
2. *A wait tests the parity of a phase*, so it tests one phase only if the previous phase has
   completed when the wait begins, and the next phase has not completed before the wait ends. Both
   conditions must follow from the order of events; else the check fails. Under this rule no step
   blocks a wait that can already end.
3. *Barriers of threads* (`bar.sync`, barriers of a cluster, of a warp) behave like mbarriers at
   which each thread waits as soon as it has arrived. A thread must arrive after the previous phase
   of the barrier.
4. *Flags*: additions commute. Every other change of a flag must be ordered with all other uses of
   it, so that a wait for a value cannot miss the value. Flags must be zero at the end.
5. *Groups* of asynchronous operations belong to one thread, groups of wgmma operations to one
   warpgroup.

So no step prevents another one, and any two steps that can be executed next commute: the machine is
confluent. All maximal interleavings then have the same steps. If one interleaving ends with every
thread at its end, no interleaving deadlocks; if threads remain that wait, each interleaving leaves
these threads waiting. The order that the clocks compute consists of program order, and of edges
from each arrival, byte count or flag change to the waits that it ends; these are the same in each
interleaving.

**What is assumed.** All workgroups of a launch are resident (the check `progress` of the scheduled
graph says whether the launcher must guarantee that). A read is complete before the next release or
barrier of its thread, so a write that overwrites the value must be ordered after the read, but no
release and acquire between the two are needed. No release and acquire are needed either if TMA
overwrites a value in shared memory that TMA has written, or that a thread has written before a
proxy fence. In device memory, only the workspaces are examined element by element; the check
`cover` shows that each element of D is stored once. Threads that execute the same steps on the same
objects are represented by two of them (`agents`).
"""
