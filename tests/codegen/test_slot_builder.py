"""`SlotBuilder` reuses values of stack slots in a basic block instead of loading them again."""

from __future__ import annotations

import re
from collections.abc import Callable
from ctypes import CFUNCTYPE, c_int32

import llvmlite.binding as llvm
import pytest
from llvmlite import ir

from codegen.emit.llvm import host_machine, optimize
from codegen.emit.slot_builder import SlotBuilder

I32 = ir.IntType(32)
Body = Callable[[ir.IRBuilder, list[ir.AllocaInstr], ir.Value], ir.Value]


def module_of(kind: type[ir.IRBuilder], body: Body) -> ir.Module:
    """A module with a function of one integer; `body` gets two stack slots, which hold 0."""
    module = ir.Module("slots")
    function = ir.Function(module, ir.FunctionType(I32, [I32]), "f")
    b = kind(function.append_basic_block("entry"))
    slots = [b.alloca(I32, name=f"slot.{i}") for i in range(2)]
    for slot in slots:
        b.store(ir.Constant(I32, 0), slot)
    b.ret(body(b, slots, function.args[0]))
    return module


def result(module: ir.Module, given: int) -> int:
    """What the module's function returns for the argument `given`, compiled for this machine."""
    machine = host_machine()
    with llvm.create_mcjit_compiler(
        optimize(module, machine, vectorize=False, unroll=False), machine
    ) as engine:
        return CFUNCTYPE(c_int32, c_int32)(engine.get_function_address("f"))(given)


def accesses(module: ir.Module) -> tuple[int, int]:
    """The number of loads and of stores in the text of a module."""
    text = str(module)
    return len(re.findall(r"= load ", text)), len(re.findall(r"^\s*store ", text, re.M))


def straight(b: ir.IRBuilder, slots: list[ir.AllocaInstr], given: ir.Value) -> ir.Value:
    for _ in range(5):
        first, second = (b.load(slot, typ=I32) for slot in slots)
        b.store(b.add(first, given), slots[0])
        b.store(b.add(second, first), slots[1])
    return b.load(slots[1], typ=I32)


def branched(b: ir.IRBuilder, slots: list[ir.AllocaInstr], given: ir.Value) -> ir.Value:
    b.store(given, slots[0])
    small = b.icmp_signed("<", given, ir.Constant(I32, 10))
    with b.if_else(small) as (yes, no):
        with yes:
            b.store(b.add(b.load(slots[0], typ=I32), ir.Constant(I32, 100)), slots[0])
        with no:
            b.store(b.load(slots[0], typ=I32), slots[1])
    return b.sub(b.load(slots[0], typ=I32), b.load(slots[1], typ=I32))


def looped(b: ir.IRBuilder, slots: list[ir.AllocaInstr], given: ir.Value) -> ir.Value:
    head, done = b.append_basic_block("head"), b.append_basic_block("done")
    b.branch(head)
    b.position_at_end(head)
    count = b.add(b.load(slots[0], typ=I32), ir.Constant(I32, 1))
    b.store(count, slots[0])
    b.store(b.add(b.load(slots[1], typ=I32), count), slots[1])
    b.cbranch(b.icmp_signed("<", count, given), head, done)
    b.position_at_end(done)
    return b.load(slots[1], typ=I32)


@pytest.mark.parametrize("body", [straight, branched, looped])
@pytest.mark.parametrize("given", [3, 17])
def test_results_are_those_of_an_ordinary_builder(body: Body, given: int):
    plain, kept = (module_of(kind, body) for kind in (ir.IRBuilder, SlotBuilder))
    assert result(kept, given) == result(plain, given)
    assert sum(accesses(kept)) <= sum(accesses(plain))


def test_a_block_without_branches_loads_nothing_that_it_stored():
    assert accesses(module_of(ir.IRBuilder, straight)) == (11, 12)
    assert accesses(module_of(SlotBuilder, straight)) == (0, 4)


def test_a_slot_with_several_stores_keeps_two():
    """Of several stores to a stack slot in a block, `SlotBuilder` leaves two in the code.

    With a single store, LLVM's mem2reg would number registers in another order.
    """
    stores = re.findall(r"store .*?(\"slot.\d\")", str(module_of(SlotBuilder, straight)))
    assert sorted(stores) == ['"slot.0"', '"slot.0"', '"slot.1"', '"slot.1"']


def test_a_block_must_end_before_the_builder_leaves_it():
    function = ir.Function(ir.Module(), ir.FunctionType(I32, [I32]), "f")
    b = SlotBuilder(function.append_basic_block("entry"))
    slot = b.alloca(I32)
    b.store(function.args[0], slot)
    b.position_at_end(b.append_basic_block("other"))
    with pytest.raises(AssertionError, match="no terminator"):
        b.load(slot, typ=I32)


def test_other_addresses_are_always_accessed():
    module = ir.Module()
    function = ir.Function(module, ir.FunctionType(I32, [I32.as_pointer()]), "f")
    b = SlotBuilder(function.append_basic_block("entry"))
    for _ in range(3):
        b.store(b.load(function.args[0], typ=I32), function.args[0])
    b.ret(b.load(function.args[0], typ=I32))
    assert accesses(module) == (4, 3)
