"""LLVM functions around the code of a workgroup: the loop over workgroups, waits, and errors.

All these functions use the launch's control block (`control_block`). Each thread calls `run`;
`wait` is the slow path of a wait for a flag; `stuck` distinguishes a deadlock from a long wait;
`fail` records an error.
"""

from __future__ import annotations

import re
from typing import Any

from llvmlite import ir

from codegen.targets.cpu.control_block import (
    ADDRESS,
    EPOCH,
    FAULT,
    LIVE,
    NEXT,
    OPERATION,
    SLOT_WORDS,
    SLOTS,
    STOPPED,
    THREADS,
    UNTIL,
    VALUE,
    WAITING,
    WORKGROUP,
    Fault,
)

__all__ = ["LaunchCode", "call_intrinsic"]

I1, I32, I64 = (ir.IntType(n) for n in (1, 32, 64))
POINTER, VOID = ir.PointerType(), ir.VoidType()
SPINS = 1024
"""How many times a waiting thread reads its flag before it checks for a deadlock."""
# Instructions in a spin loop that leave the core's resources to its other hardware thread.
_PAUSE = {
    "x86_64": ("llvm.x86.sse2.pause", ()),
    "aarch64": ("llvm.aarch64.hint", (ir.Constant(I32, 1),)),
}
_YIELDS = re.compile("linux|darwin|macos|bsd")
"""Matches LLVM's target triples of systems whose C library has POSIX's `sched_yield`."""


def call_intrinsic(b: Any, name: str, result: Any, args: list[Any]) -> Any:
    """Emit a call of an LLVM intrinsic or C library function; declare the function if needed."""
    function = b.module.globals.get(name)
    if function is None:
        function = ir.Function(b.module, ir.FunctionType(result, [a.type for a in args]), name)
    return b.call(function, args)


def _word(value: int) -> ir.Constant:
    return ir.Constant(I64, value)


def _at(b: Any, base: Any, word: Any) -> Any:
    """The address of the 64-bit word number `word` after `base`."""
    return b.gep(base, [_word(word) if isinstance(word, int) else word], source_etype=I64)


def _read(b: Any, base: Any, word: Any) -> Any:
    return b.load_atomic(_at(b, base, word), "seq_cst", 8, typ=I64)


def _write(b: Any, base: Any, word: int, value: Any) -> None:
    # An atomic exchange, because llvmlite's atomic store rejects opaque pointers.
    b.atomic_rmw("xchg", _at(b, base, word), value, "seq_cst")


class LaunchCode:
    """Adds the functions that run a launch to an LLVM module.

    Args:
        module: the LLVM module of the kernel.
        triple: LLVM's target triple of the host.
    """

    def __init__(self, module: ir.Module, triple: str) -> None:
        self.module, self.triple = module, triple
        self.fail = self._fail()
        self._stuck = self._find_deadlock()
        self.wait = self._wait()

    def _function(self, name: str, result: Any, types: list[Any], names: str) -> ir.Function:
        function = ir.Function(self.module, ir.FunctionType(result, types), name)
        function.attributes.add("nounwind")
        function.attributes.add("noinline")
        for argument, text in zip(function.args, names.split(), strict=True):
            argument.name = text
        return function

    def _fail(self) -> ir.Function:
        """Emit `fail(control, kind, workgroup, …, index)`: stop the launch, record its first error.

        Errors after the first error of a launch are not recorded.
        """
        names = "control kind workgroup operation tensor index"
        function = self._function("fail", VOID, [POINTER, *[I64] * 5], names)
        control, kind, *details = function.args
        b = ir.IRBuilder(function.append_basic_block("entry"))
        none = _word(Fault.NONE)
        swap = b.cmpxchg(_at(b, control, FAULT), none, kind, "seq_cst", "seq_cst")
        with b.if_then(b.extract_value(swap, 1)):
            for number, value in enumerate(details, FAULT + 1):
                b.store(value, _at(b, control, number))
        _write(b, control, STOPPED, _word(1))
        b.ret_void()
        return function

    def _find_deadlock(self) -> ir.Function:
        """Emit `stuck(control)`: whether every thread waits for a flag, and no flag ends its wait.

        The function reads the number of ended waits before and after it reads which flag each
        thread waits for (the threads' slots of the control block).
        If both numbers are equal and all threads waited, no thread ran between the two reads, and
        no flag changed.
        """
        function = self._function("stuck", I1, [POINTER], "control")
        (control,) = function.args
        blocks = ("entry", "head", "slot", "look", "next", "end", "no")
        entry, head, slot, look, following, end, no = map(function.append_basic_block, blocks)
        b = ir.IRBuilder(entry)
        epoch, live = _read(b, control, EPOCH), _read(b, control, LIVE)
        waiting = _read(b, control, WAITING)
        threads = b.load(_at(b, control, THREADS), typ=I64)
        b.cbranch(b.icmp_signed("<", waiting, live), no, head)
        b.position_at_end(head)
        thread, found = b.phi(I64), b.phi(I64)
        b.cbranch(b.icmp_signed("<", thread, threads), slot, end)
        b.position_at_end(slot)
        words = _at(b, control, b.add(b.mul(thread, _word(SLOT_WORDS)), _word(SLOTS)))
        address = _read(b, words, ADDRESS)
        b.cbranch(b.icmp_unsigned("==", address, _word(0)), following, look)
        b.position_at_end(look)
        flag = b.load_atomic(b.inttoptr(address, POINTER), "seq_cst", 4, typ=I32)
        until, value = (b.load(_at(b, words, n), typ=I64) for n in (UNTIL, VALUE))
        met = self._met(b, flag, b.trunc(until, I1), b.trunc(value, I32))
        counted = b.add(found, _word(1))
        b.cbranch(met, no, following)
        b.position_at_end(following)
        total = b.phi(I64)
        total.add_incoming(found, slot)
        total.add_incoming(counted, look)
        advanced = b.add(thread, _word(1))
        b.branch(head)
        for phi, first, later in ((thread, 0, advanced), (found, 0, total)):
            phi.add_incoming(_word(first), entry)
            phi.add_incoming(later, following)
        b.position_at_end(end)
        all_wait = b.icmp_signed(">=", found, live)
        same = b.icmp_unsigned("==", _read(b, control, EPOCH), epoch)
        b.ret(b.and_(all_wait, same))
        b.position_at_end(no)
        b.ret(ir.Constant(I1, 0))
        return function

    @staticmethod
    def _met(b: Any, flag: Any, any_value: Any, value: Any) -> Any:
        """Emit a test whether `flag` ends a wait: it is not 0 (`any_value`), or equals `value`."""
        not_zero = b.icmp_unsigned("!=", flag, ir.Constant(I32, 0))
        return b.select(any_value, not_zero, b.icmp_unsigned("==", flag, value))

    def _wait(self) -> ir.Function:
        """Emit the function `wait(control, slot, flag, any_value, value, operation, crowded)`.

        `wait` polls `flag` until the flag equals `value`, or until the flag is not 0 if `any_value`
        is true, and then returns true. It returns false if an error or a deadlock stopped the
        launch. If `crowded`, the thread yields its processor between polls.
        """
        names = "control slot flag any_value value operation crowded"
        types = [POINTER, POINTER, POINTER, I1, I32, I64, I1]
        function = self._function("wait", I1, types, names)
        control, slot, flag, any_value, value, operation, crowded = function.args
        blocks = ("entry", "again", "closed", "pause", "look", "deadlock", "up", "stopped")
        entry, again, closed, pause, look, deadlock, up, stopped = map(
            function.append_basic_block, blocks
        )
        b = ir.IRBuilder(entry)
        b.store(b.zext(any_value, I64), _at(b, slot, UNTIL))
        b.store(b.zext(value, I64), _at(b, slot, VALUE))
        b.store(operation, _at(b, slot, OPERATION))
        _write(b, slot, ADDRESS, b.ptrtoint(flag, I64))
        b.atomic_rmw("add", _at(b, control, WAITING), _word(1), "seq_cst")
        b.branch(again)
        b.position_at_end(again)
        spins = b.phi(I64)
        spins.add_incoming(_word(1), entry)
        now = b.load_atomic(flag, "acquire", 4, typ=I32)
        b.cbranch(self._met(b, now, any_value, value), up, closed)
        b.position_at_end(closed)
        b.cbranch(b.icmp_unsigned("!=", _read(b, control, STOPPED), _word(0)), stopped, pause)
        b.position_at_end(pause)
        machine = self.triple.partition("-")[0]
        if machine in _PAUSE:
            name, args = _PAUSE[machine]
            call_intrinsic(b, name, VOID, list(args))
        if _YIELDS.search(self.triple):
            with b.if_then(crowded):
                call_intrinsic(b, "sched_yield", I32, [])
        more = b.add(spins, _word(1))
        b.cbranch(b.icmp_unsigned("==", b.urem(spins, _word(SPINS)), _word(0)), look, again)
        spins.add_incoming(more, b.block)
        b.position_at_end(look)
        spins.add_incoming(more, look)
        b.cbranch(b.call(self._stuck, [control]), deadlock, again)
        b.position_at_end(deadlock)
        workgroup = b.load(_at(b, slot, WORKGROUP), typ=I64)
        kind, none = _word(Fault.DEADLOCK), _word(-1)
        b.call(self.fail, [control, kind, workgroup, operation, none, none])
        b.branch(stopped)
        b.position_at_end(up)
        b.atomic_rmw("add", _at(b, control, EPOCH), _word(1), "seq_cst")
        _write(b, slot, ADDRESS, _word(0))
        b.atomic_rmw("sub", _at(b, control, WAITING), _word(1), "seq_cst")
        b.ret(ir.Constant(I1, 1))
        b.position_at_end(stopped)
        b.ret(ir.Constant(I1, 0))
        return function

    def run(self, kernel: ir.Function, name: str) -> None:
        """Emit `run(order, control, slot, count, …)`: execute workgroups until none is left.

        The i-th workgroup to start is `order[i]`, or i if `order` is null.
        `kernel(control, slot, …, workgroup)` executes one workgroup.
        """
        given = [a.type for a in kernel.args[2:-1]]
        kind = ir.FunctionType(VOID, [POINTER, POINTER, POINTER, I64, *given])
        function = ir.Function(self.module, kind, name)
        order, control, slot, count, *rest = function.args
        blocks = ("entry", "open", "next", "known", "ordered", "work", "done")
        entry, is_open, following, known, ordered, work, done = map(
            function.append_basic_block, blocks
        )
        b = ir.IRBuilder(entry)
        b.branch(is_open)
        b.position_at_end(is_open)
        b.cbranch(b.icmp_unsigned("!=", _read(b, control, STOPPED), _word(0)), done, following)
        b.position_at_end(following)
        place = b.atomic_rmw("add", _at(b, control, NEXT), _word(1), "monotonic")
        b.cbranch(b.icmp_signed("<", place, count), known, done)
        b.position_at_end(known)
        b.cbranch(b.icmp_unsigned("==", order, ir.Constant(POINTER, None)), work, ordered)
        b.position_at_end(ordered)
        listed = b.load(b.gep(order, [place], source_etype=I64), typ=I64)
        b.branch(work)
        b.position_at_end(work)
        workgroup = b.phi(I64)
        workgroup.add_incoming(place, known)
        workgroup.add_incoming(listed, ordered)
        b.store(workgroup, _at(b, slot, WORKGROUP))
        b.call(kernel, [control, slot, *rest, workgroup])
        b.branch(is_open)
        b.position_at_end(done)
        b.atomic_rmw("sub", _at(b, control, LIVE), _word(1), "seq_cst")
        b.ret_void()
