"""Emits the function `run` of a CPU kernel: the loop in which a thread takes workgroups."""

from __future__ import annotations

from llvmlite import ir

__all__ = ["RUN_NAME", "add_run"]

RUN_NAME = "run"
"""The name of the function that each thread calls."""
I64 = ir.IntType(64)
POINTER, VOID = ir.PointerType(), ir.VoidType()


def add_run(module: ir.Module, kernel: ir.Function) -> None:
    """Add the function `run(order, counter, count, …)` to a module.

    It increments `counter`, which all threads share, atomically, and calls `kernel` for the
    workgroup `order[i]` (for the workgroup i, if `order` is null), until i reaches `count`. The
    further arguments are those of `kernel`, without the workgroup's number.
    """
    given = [a.type for a in kernel.args[:-1]]
    kind = ir.FunctionType(VOID, [POINTER, POINTER, I64, *given])
    function = ir.Function(module, kind, RUN_NAME)
    order, counter, count, *rest = function.args
    b = ir.IRBuilder(function.append_basic_block("entry"))
    following, known = (function.append_basic_block(n) for n in ("next", "known"))
    ordered, work, done = (function.append_basic_block(n) for n in ("ordered", "work", "done"))
    b.branch(following)
    b.position_at_end(following)
    place = b.atomic_rmw("add", counter, ir.Constant(I64, 1), "monotonic")
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
    b.call(kernel, [*rest, workgroup])
    b.branch(following)
    b.position_at_end(done)
    b.ret_void()
