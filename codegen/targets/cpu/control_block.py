"""The control block of a launch: 64-bit words that the threads of one CPU launch share.

Threads take workgroups from the counter `NEXT`. A thread that waits for a flag describes its wait
in a slot of its own, so that the other threads can distinguish a deadlock from a long wait. The
thread that finds the first error of a launch writes it to the words from `FAULT` on and sets
`STOPPED`; then every thread leaves its workgroup at its next wait or k tile.
"""

from __future__ import annotations

import ctypes
from enum import IntEnum

import numpy as np

from coordgraph.interpreter.arguments import Array

__all__ = [
    "ADDRESS",
    "EPOCH",
    "FAULT",
    "INDEX",
    "LIMITS",
    "LIVE",
    "NEXT",
    "OPERATION",
    "SLOTS",
    "SLOT_WORDS",
    "STOPPED",
    "THREADS",
    "UNTIL",
    "VALUE",
    "WAITING",
    "WORKGROUP",
    "ControlBlock",
    "Fault",
]

NEXT = 0
"""Index of the control block's word that counts the workgroups that threads have taken."""
STOPPED = 8
"""Index of the control block's word that is not 0 once the launch must end early."""
LIVE = 16
"""Index of the control block's word that counts the threads that have not finished."""
WAITING = 17
"""Index of the control block's word that counts the threads that wait for a flag."""
EPOCH = 18
"""Index of the control block's word that counts the waits for flags that have ended."""
THREADS = 19
"""Index of the control block's word that holds the number of threads of the launch."""
LIMITS = 20
"""Index of the control block's word that holds the address of an array of index bounds: for each
tensor, the first valid index and one past the last."""
FAULT = 24
"""Index of the control block's word that holds the code (`Fault`) of the first error of the launch.
The words after it describe the error."""
FAULT_WORDS = 4
"""How many words follow the error code: numbers of workgroup, operation and tensor, and the index.
"""
INDEX = FAULT + FAULT_WORDS
SLOTS = 32
"""Index, in the control block, of the first word of thread 0's slot: the words that say for which
flag the thread waits. The slots of the other threads follow."""
SLOT_WORDS = 8
"""How many words a thread's slot has: one cache line, so that no two threads write one line."""
ADDRESS, UNTIL, VALUE, WORKGROUP, OPERATION = range(5)
"""Indices of words in the slot where a thread describes its wait for a flag. ADDRESS: the flag's
address, or 0. UNTIL: whether any value but 0 ends the wait. VALUE: the value that ends the wait if
UNTIL is 0. WORKGROUP: the workgroup that the thread executes. OPERATION: the number of the
operation that waits."""


class Fault(IntEnum):
    """Codes of the errors that end a launch early; the control block's word `FAULT` holds one."""

    NONE = 0
    DEADLOCK = 1
    """Error code: every thread waits for a flag that no other thread will set."""
    BOUNDS = 2
    """Error code: an index is outside its tensor."""
    LOOP = 3
    """Error code: the step of a loop is not positive."""
    DIVISION = 4
    """Error code: a divisor is not positive."""
    TABLE = 5
    """Error code: a table is read outside its bounds."""
    NEGATIVE = 6
    """Error code: a dividend is negative, although the graph's sizes prove that it is not."""


class ControlBlock:
    """The control block of one launch on the CPU.

    Args:
        threads: number of threads of the launch.
        limits: int64 pairs (first valid index, one past the last): one for each tensor, then one
            for each derived table, which is computed from the tables that a call passes.
    """

    def __init__(self, threads: int, limits: Array) -> None:
        raw = np.zeros(SLOTS + SLOT_WORDS * (threads + 1), np.int64)
        start = -raw.ctypes.data % 64 // 8
        self.words = raw[start : start + SLOTS + SLOT_WORDS * threads]
        self.words[LIVE] = self.words[THREADS] = threads
        self.limits = limits
        self.words[LIMITS] = limits.ctypes.data

    @property
    def address(self) -> int:
        """Address of the first word of the control block."""
        return self.words.ctypes.data

    def slot(self, thread: int) -> int:
        """Address of the words in which the thread number `thread` describes its wait."""
        return self.address + 8 * (SLOTS + SLOT_WORDS * thread)

    def stop(self) -> None:
        """Make every thread of the launch stop at its next wait, k tile or workgroup."""
        ctypes.c_int64.from_address(self.address + 8 * STOPPED).value = 1

    @property
    def fault(self) -> Fault:
        """The kind of the first error of the launch; `Fault.NONE` if there is none."""
        return Fault(int(self.words[FAULT]))

    @property
    def details(self) -> tuple[int, int, int, int]:
        """(workgroup, operation number, tensor number, index) of the first error of the launch."""
        workgroup, operation, tensor, index = map(int, self.words[FAULT + 1 : INDEX + 1])
        return workgroup, operation, tensor, index

    @property
    def waits(self) -> dict[int, int]:
        """For each workgroup that waits for a flag: the number of the operation that waits."""
        slots = self.words[SLOTS:].reshape(-1, SLOT_WORDS)
        return {int(slot[WORKGROUP]): int(slot[OPERATION]) for slot in slots if slot[ADDRESS]}
