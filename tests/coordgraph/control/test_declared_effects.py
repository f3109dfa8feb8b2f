"""Every operation of lowered graphs declares its memory effects."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from sympy import Integer

from coordgraph import VerifyError
from coordgraph.control import asynchronous, lowered, row_reductions
from coordgraph.control.asynchronous import ArriveBarrier, CopyBox, ExpectBytes, MultiplyShared
from coordgraph.control.declared_effects import NONE, effects
from coordgraph.control.effects import (
    Access,
    Arrive,
    Asynchronous,
    ChangeFlag,
    Converge,
    Kind,
    Matrix,
)
from coordgraph.control.lowered import SignalFlag
from coordgraph.control.operations import OPERATIONS, Operation

MODULES = (lowered, asynchronous, row_reductions)
LOWERED = [OPERATIONS[n] for module in MODULES for n in module.__all__ if n in OPERATIONS]


@pytest.mark.parametrize("kind", LOWERED, ids=lambda kind: kind.__name__)
def test_every_operation_declares_its_effects(kind: type[Operation]):
    declared = effects.dispatch(kind) is not effects.dispatch(Operation)
    assert declared != (issubclass(kind, NONE) or bool(kind.BODIES))


def test_an_operation_without_effects_is_refused():
    @dataclass(frozen=True)
    class Undeclared(Operation):
        """An operation of another package, which declares no effects."""

    try:
        with pytest.raises(VerifyError, match=r"Undeclared declares no memory effects"):
            effects(Undeclared())
        effects.register(Undeclared, lambda op: ())
        assert effects(Undeclared()) == ()
    finally:
        del OPERATIONS["Undeclared"]


def test_orders_and_scopes_follow_the_fields():
    (signal,) = effects(SignalFlag("flags"))
    assert signal == ChangeFlag("flags", "", Integer(1), release=True, scope="gpu")
    (signal,) = effects(SignalFlag("flags", order="relaxed", scope="cta"))
    assert signal == ChangeFlag("flags", "", Integer(1), release=False, scope="cta")
    (arrive,) = effects(ArriveBarrier("b", Integer(1), publish=True))
    assert arrive == Arrive("b", None, Integer(1), "cluster")
    assert effects(ExpectBytes("b", Integer(16))) == (Converge(), Arrive("b", Integer(16)))


def test_fields_that_are_expressions_take_python_integers():
    number: Any = 3
    assert isinstance(ArriveBarrier("b", number).rank, Integer)
    assert isinstance(ExpectBytes("b", number).bytes, Integer)


def test_tma_writes_the_whole_box():
    copy = CopyBox("A", ("A.1", "A.0"), "A.shared", "full", (64, 8), ("cluster.n",))
    _, load = effects(copy)
    assert isinstance(load, Asynchronous)
    assert load.barrier == "full"
    assert load.accesses[1] == Access(Kind.WRITE, "A.shared", 512, receivers=("cluster.n",))


def test_wgmma_reads_the_rows_of_its_descriptors():
    multiply = MultiplyShared(
        "A", "B", "acc", (), "wgmma.m64n128k16.bf16", 64,
        (16, 1024), (8192, 1024), (128, 128), transpose_b=True,
    )  # fmt: skip
    (load,) = effects(multiply)
    assert isinstance(load, Asynchronous)
    a, b, _ = load.accesses
    assert isinstance(a, Access)
    assert isinstance(b, Access)
    # A has 64 rows, in 8 groups of eight rows.
    assert a.matrix == Matrix((1, 0), (8, 1024), 128)
    # B has 128 columns in two boxes, with two groups of eight rows in each box.
    assert b.matrix == Matrix((2, 8192), (2, 1024), 128)
