"""The check `memory order` of lowered graphs: no data race and no deadlock in any interleaving.

A *reduced machine* executes small launches of a lowered graph: a few workgroups, tiles and k
tiles, with all threads, stages and mbarriers that the graph has (`steps`, `agents`, `machine`).
The effects of operations are declared in `coordgraph.control.declared_effects`. The machine
executes *one* interleaving and computes which events every interleaving orders (`clocks`). Two
accesses to the same element that are not ordered, one of them a write, are a data race (`races`).
So are an access by TMA or wgmma behind one by threads without a proxy fence between the two, and
a read of what was not released and acquired in a scope that includes both threads (PTX ISA,
"Causality Order").

**Why one interleaving speaks for all.** The steps of a thread do not depend on what others do,
since branches and loops depend on launch arguments, tables and the thread's number only. So
interleavings differ in the order of steps, and steps of different threads affect each other
through synchronisation objects only. Two steps are *independent* if each can be executed before
the other, with the same result. Partial-order reduction examines one of all interleavings that
differ in the order of independent steps. The rules below show that all interleavings do, or raise
an error:

1. *Arrivals at an mbarrier commute*: a phase completes when enough have come. What may not
   commute is an arrival with the completion of a phase, if it can count for an earlier phase. If
   a completion happens before every arrival of later phases, there is only one way to count. For
   an mbarrier that counts bytes, anything else is an error. For other mbarriers, an arrival that
   is not ordered behind the completion of an earlier phase is noted, and the launch is executed
   again: then only that counts as before the completion which also is before the noted arrival,
   since either may have been counted. This is repeated until no other arrival is found (see
   `Mbarrier`).
2. *A wait tests the parity of a phase*, so it is a test for one phase only if the phase before
   has completed when it begins, and the phase behind has not completed before it ends. Both must
   follow from the order of events; else the check fails. Under this rule a wait that can pass
   stays able to pass: nothing disables it.
3. *Barriers of threads* (`bar.sync`, barriers of a cluster, of a warp) are mbarriers whose
   threads wait at once. A thread must come behind the meeting before.
4. *Flags*: additions commute. Every other change of a flag must be ordered with all other uses of
   it, so that a wait for a value cannot miss the value. Flags must be zero at the end.
5. *Groups* of asynchronous operations belong to a thread (or, of wgmma, to a warpgroup).

So no step disables another one, and steps that are enabled together commute: the machine is
confluent. All maximal interleavings then have the same steps. If one of them ends with every
thread at its end, none deadlocks; if threads remain that wait, each interleaving leaves them
waiting. The order that the clocks compute consists of program order and of edges from what an
object counted to the waits for it, and these are the same in each interleaving.

**What is assumed.** All workgroups of a launch are resident (the check `progress` of the
scheduled graph says whether the launcher must guarantee that). A read before a release or a
barrier of its thread has its value: a later write needs to come later, not to be released to. So
does a write to shared memory that TMA made, or that a proxy fence follows. Of device memory, the
workspaces are examined element by element; that each element of D is stored once is the check
`cover`. Threads that execute the same steps on the same objects are represented by two of them
(`agents`).
"""
