"""Operations on whole tiles, and loops and branches: the nodes of a scheduled control graph.

An operation is an immutable record. Loops and branches hold the operations of their bodies, in
order. Expressions in an operation may contain the kernel's parameters and the dimensions that
surrounding operations bind: `For` and `SetCoordinate` bind a dimension, `Assign` names a value, the
hardware binds the numbers of the workgroup and the thread. The *bindings* of an operation name the
dimensions whose indices the operation uses. The indices are computed from the coordinate graph when
the operation is interpreted or compiled.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, TypeGuard

from sympy import Expr, Integer, Symbol, sympify
from sympy.logic.boolalg import Boolean

from coordgraph.epilogue import ALPHA_BETA, EpilogueFunction
from coordgraph.integers import index_symbol

__all__ = [
    "OPERATIONS",
    "AccumulatePartial",
    "AddPartial",
    "Assign",
    "AwaitPartial",
    "Body",
    "CollectPartial",
    "Epilogue",
    "For",
    "If",
    "InitAccumulator",
    "Inside",
    "Kernel",
    "LoadTile",
    "Locate",
    "MultiplyAccumulate",
    "Operation",
    "ReceivePartial",
    "Scope",
    "SendPartial",
    "SetCoordinate",
    "StoreTile",
    "accumulates",
]

OPERATIONS: dict[str, type[Operation]] = {}
"""Every class of operation by class name; subclassing `Operation` registers the subclass."""
ONE = Integer(1)


@dataclass(frozen=True)
class Operation:
    """Base class of the operations in a control graph."""

    BODIES: ClassVar[tuple[str, ...]] = ()
    """The names of the fields that hold nested operations, such as `body` and `orelse`."""
    ROLES: ClassVar[tuple[str, ...]] = ()
    """The names of the dataclass fields that hold the id of a dimension, or a tuple of such ids."""

    def __init_subclass__(cls) -> None:
        OPERATIONS[cls.__name__] = cls

    @property
    def kind(self) -> str:
        """The name of the operation's class, as the text form and diagrams show it."""
        return type(self).__name__

    @property
    def bindings(self) -> dict[str, tuple[str, ...]]:
        """The ids of the dimensions that the operation names, by role (the name of the field)."""
        bound: dict[str, tuple[str, ...]] = {}
        for role in self.ROLES:
            value = getattr(self, role)
            names = (value,) if isinstance(value, str) else tuple(value)
            if any(names):
                bound[role] = names
        return bound

    @property
    def details(self) -> dict[str, Any]:
        """The values of all fields of the operation except bodies, by field name."""
        return {f.name: getattr(self, f.name) for f in fields(self) if f.name not in self.BODIES}

    @property
    def children(self) -> tuple[Operation, ...]:
        """The operations directly in the operation's bodies, in order."""
        return tuple(op for name in self.BODIES for op in getattr(self, name))

    def walk(self) -> Iterator[Operation]:
        """This operation and all operations nested in it, in preorder."""
        yield self
        for child in self.children:
            yield from child.walk()

    def with_body(self, *body: Operation) -> Operation:
        """A copy of this operation whose `body` holds the given operations."""
        return replace(self, body=tuple(body))  # type: ignore[call-arg]


Body = tuple[Operation, ...]
"""Type: operations that are executed one after another."""


@dataclass(frozen=True)
class Kernel(Operation):
    """The whole kernel: the root of a control graph.

    Args:
        body: the operations that every workgroup executes.
        workgroup: the id of the dimension that numbers workgroups; '' if no schedule is applied.
    """

    body: Body = ()
    workgroup: str = ""

    BODIES = ("body",)
    ROLES = ("workgroup",)


@dataclass(frozen=True)
class Scope(Operation):
    """A named group of operations; passes search for the name, and diagrams show it."""

    name: str
    body: Body = ()

    BODIES = ("body",)


@dataclass(frozen=True)
class For(Operation):
    """The loop `for (dim = start; dim < stop; dim += step)`; start and stop are evaluated once.

    Args:
        dim: the dimension whose index is the loop index.
        start, stop: the first index, and the exclusive end.
        step: the increment, which may depend on the index, as in Stream-K's loop over tiles.
        body: the operations of an iteration.
        unroll: whether code generation unrolls the loop; start, stop and step are then numbers.
    """

    dim: str
    start: Expr
    stop: Expr
    step: Expr = ONE
    body: Body = ()
    unroll: bool = False

    BODIES = ("body",)
    ROLES = ("dim",)

    def __post_init__(self) -> None:
        for name in ("start", "stop", "step"):
            object.__setattr__(self, name, sympify(getattr(self, name)))

    @property
    def symbol(self) -> Symbol:
        """The symbol of the loop index in expressions."""
        return index_symbol(self.dim)


@dataclass(frozen=True)
class If(Operation):
    """Execute `body` if the condition holds, else `orelse`."""

    condition: Boolean
    body: Body = ()
    orelse: Body = ()

    BODIES = ("body", "orelse")


@dataclass(frozen=True)
class Inside(Operation):
    """Execute `body` if the indices along all `dims` are inside (not padding), else `orelse`.

    The guards of the coordinate graph give the condition.
    """

    dims: tuple[str, ...]
    body: Body = ()
    orelse: Body = ()

    BODIES = ("body", "orelse")
    ROLES = ("dims",)


@dataclass(frozen=True)
class SetCoordinate(Operation):
    """Execute the body with `value` as the index along the dimension `dim`."""

    dim: str
    value: Expr
    body: Body = ()

    BODIES = ("body",)
    ROLES = ("dim",)

    def __post_init__(self) -> None:
        object.__setattr__(self, "value", sympify(self.value))


@dataclass(frozen=True)
class Locate(Operation):
    """Compute the indices along `dims` once, from the coordinate graph, and bind them in the body.

    In the body, expressions contain the dimensions' symbols instead of the full index expressions.
    With an empty body, the operation only loads the table entries that the indices depend on, and
    later operations that need these entries reuse the loaded values. Inside an unrolled loop, it
    loads the entries of every iteration.

    Args:
        dims: the ids of the dimensions, in order; an index may depend on dimensions before it.
        reads: expressions that read tables and that the body uses; these are evaluated once, too.
        body: the operations in which the dimensions are bound.
    """

    dims: tuple[str, ...]
    reads: tuple[Expr, ...] = ()
    body: Body = ()

    BODIES = ("body",)
    ROLES = ("dims",)


@dataclass(frozen=True)
class Assign(Operation):
    """Compute a value once and name it, for the operations that follow in the same body.

    Args:
        name: the name of the symbol that stands for the value in expressions.
        value: the expression.
    """

    name: str
    value: Expr

    def __post_init__(self) -> None:
        object.__setattr__(self, "value", sympify(self.value))

    @property
    def symbol(self) -> Symbol:
        """The symbol that stands for the assigned value in later expressions."""
        return index_symbol(self.name)


@dataclass(frozen=True)
class InitAccumulator(Operation):
    """Set every element of an accumulator to zero."""

    accumulator: str = "acc"


@dataclass(frozen=True)
class LoadTile(Operation):
    """Load one tile of A or B for multiplication; elements outside the tensor are zero.

    Args:
        tensor: the name of the tensor.
        tile: the dimensions whose indices are the tile's number.
    """

    tensor: str
    tile: tuple[str, ...]

    ROLES = ("tile",)


@dataclass(frozen=True)
class MultiplyAccumulate(Operation):
    """Multiply the loaded tiles of A and B, and add the product to the accumulator."""

    a: str = "A"
    b: str = "B"
    accumulator: str = "acc"


@dataclass(frozen=True)
class SendPartial(Operation):
    """Write the accumulator, a partial sum, to a workspace slot, then set the slot's flag.

    The flag's new value is 1 + the index along `turn`, or the number of readers if `turn` is ''.

    Args:
        slot: the dimension that numbers workspace slots, each of which holds one partial sum.
        accumulator: the name of the accumulator that is written.
        turn: if several workgroups write the slot one after another, the dimension that numbers
            them; else ''.
        readers: the number of workgroups that wait for the slot with `AwaitPartial`.
    """

    slot: str
    accumulator: str = "acc"
    turn: str = ""
    readers: Expr = ONE

    ROLES = ("slot", "turn")

    def __post_init__(self) -> None:
        object.__setattr__(self, "readers", sympify(self.readers))


@dataclass(frozen=True)
class ReceivePartial(Operation):
    """Wait for a workspace slot's flag, add its partial sum to the accumulator, clear the flag.

    Args:
        slot: the dimension that numbers workspace slots, each of which holds one partial sum.
        accumulator: the name of the accumulator to which the partial sum is added.
        turn: if several workgroups write the slot one after another, the dimension that numbers
            them: the operation waits until the flag is 1 + the index along `turn`. Else ''.
    """

    slot: str
    accumulator: str = "acc"
    turn: str = ""

    ROLES = ("slot", "turn")


@dataclass(frozen=True)
class AwaitPartial(Operation):
    """Wait until the flag of a workspace slot is not 0, then decrement the flag.

    `SendPartial` sets the flag to the number of readers, and each reader decrements it once. After
    this operation the workgroup may read the slot any number of times, with `AddPartial`.
    """

    slot: str

    ROLES = ("slot",)


@dataclass(frozen=True)
class AddPartial(Operation):
    """Add a workspace slot's partial sum to the accumulator, after `AwaitPartial` of the slot."""

    slot: str
    accumulator: str = "acc"

    ROLES = ("slot",)


@dataclass(frozen=True)
class AccumulatePartial(Operation):
    """Add the accumulator atomically to a workspace slot, then increment the slot's flag.

    Several workgroups may add to one slot at the same time, in any order; the flag counts them.

    Args:
        slot: the dimension that numbers workspace slots, each of which holds one partial sum.
        accumulator: the name of the accumulator that is added to the slot.
        turn: the dimension that numbers the workgroups which add to the slot.
    """

    slot: str
    accumulator: str = "acc"
    turn: str = ""

    ROLES = ("slot", "turn")


@dataclass(frozen=True)
class CollectPartial(Operation):
    """Wait until all workgroups have added to a workspace slot; add it to the accumulator.

    The slot and its flag are zero afterwards. The workgroups add with `AccumulatePartial`.

    Args:
        slot: the dimension that numbers workspace slots, each of which holds one partial sum.
        accumulator: the name of the accumulator to which the slot is added.
        turn: the dimension that numbers the workgroups which add to the slot. The
            index along this dimension is the number of the first of these workgroups.
        senders: how many workgroups, with consecutive indices along `turn`, add to the slot.
    """

    slot: str
    accumulator: str = "acc"
    turn: str = ""
    senders: Expr = ONE

    ROLES = ("slot", "turn")

    def __post_init__(self) -> None:
        object.__setattr__(self, "senders", sympify(self.senders))


@dataclass(frozen=True)
class Epilogue(Operation):
    """Apply an epilogue function to each element of the accumulator, in place.

    Args:
        output: the name of the tensor whose tile the accumulator holds.
        tile: the dimensions whose indices are the tile's number.
        operands: the names of the tensors that the function reads, in the order of its operands. An
            optional tensor is taken as 0, and not read, if its launch parameter `read_NAME` is 0.
        operand_tiles: the dimensions whose indices are the numbers of the operands' tiles.
        function: the epilogue function; by default `alpha·acc + beta·C`.
        accumulator: the name of the accumulator.
        stores: the names of the tensors that the operation itself writes, in the order of the
            function's outputs besides D. Elements outside a tensor are not written. The value of D
            stays in the accumulator, which `StoreTile` writes.
        store_tiles: the dimensions whose indices are the numbers of the tiles of `stores`.
    """

    output: str
    tile: tuple[str, ...]
    operands: tuple[str, ...] = ()
    operand_tiles: tuple[str, ...] = ()
    function: EpilogueFunction = ALPHA_BETA
    accumulator: str = "acc"
    stores: tuple[str, ...] = ()
    store_tiles: tuple[str, ...] = ()

    ROLES = ("tile", "operand_tiles", "store_tiles")


@dataclass(frozen=True)
class StoreTile(Operation):
    """Write the accumulator to one tile of a tensor, except elements outside the tensor.

    Args:
        tensor: the name of the tensor.
        tile: the dimensions whose indices are the tile's number.
        accumulator: the name of the accumulator.
    """

    tensor: str
    tile: tuple[str, ...]
    accumulator: str = "acc"

    ROLES = ("tile",)


def accumulates(op: Operation) -> TypeGuard[For]:
    """Whether an operation is the loop over k tiles, whose body has a `MultiplyAccumulate`."""
    return isinstance(op, For) and any(isinstance(x, MultiplyAccumulate) for x in op.body)
