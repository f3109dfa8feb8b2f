"""Operations: the nodes of a control graph.

An operation is a frozen record; those with bodies hold them in order. Values in operations are
expressions over the kernel's parameters and the dimensions bound around them: `For` and
`SetCoordinate` bind a dimension, `Assign` names a value, the machine binds workgroup and workitem.
An operation's *bindings* name the coordinates it reads or writes; the numbers themselves come from
the coordinate graph when the operation is interpreted or compiled.
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
ONE = Integer(1)


@dataclass(frozen=True)
class Operation:
    """One thing done."""

    BODIES: ClassVar[tuple[str, ...]] = ()
    """The fields that hold bodies: `body`, `orelse`."""
    ROLES: ClassVar[tuple[str, ...]] = ()
    """The fields that bind coordinates: role to one dimension id or a tuple of them."""

    def __init_subclass__(cls) -> None:
        OPERATIONS[cls.__name__] = cls

    @property
    def kind(self) -> str:
        """The class name, as the text form and the pictures show it."""
        return type(self).__name__

    @property
    def bindings(self) -> dict[str, tuple[str, ...]]:
        """Role to the coordinates bound in it."""
        bound: dict[str, tuple[str, ...]] = {}
        for role in self.ROLES:
            value = getattr(self, role)
            names = (value,) if isinstance(value, str) else tuple(value)
            if any(names):
                bound[role] = names
        return bound

    @property
    def details(self) -> dict[str, Any]:
        """Every field but the bodies."""
        return {f.name: getattr(self, f.name) for f in fields(self) if f.name not in self.BODIES}

    @property
    def children(self) -> tuple[Operation, ...]:
        """The operations of all bodies, in order."""
        return tuple(op for name in self.BODIES for op in getattr(self, name))

    def walk(self) -> Iterator[Operation]:
        """This operation and all below it, in order."""
        yield self
        for child in self.children:
            yield from child.walk()

    def with_body(self, *body: Operation) -> Operation:
        """The same operation around another body."""
        return replace(self, body=tuple(body))  # type: ignore[call-arg]


Body = tuple[Operation, ...]


@dataclass(frozen=True)
class Kernel(Operation):
    """The whole kernel; runs once for every index of `workgroup` (no dimension: not scheduled)."""

    body: Body = ()
    workgroup: str = ""

    BODIES = ("body",)
    ROLES = ("workgroup",)


@dataclass(frozen=True)
class Scope(Operation):
    """A named part, for the reader and for passes that look for it."""

    name: str
    body: Body = ()

    BODIES = ("body",)


@dataclass(frozen=True)
class For(Operation):
    """`for (dim = start; dim < stop; dim += step)`; `stop` and `start` are evaluated at entry.

    The step may depend on the index, as in Stream-K's tile loop. `unroll` asks code generation to
    write the iterations out; then start, stop and step are numbers.
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
        """The loop index."""
        return index_symbol(self.dim)


@dataclass(frozen=True)
class If(Operation):
    """One of two bodies."""

    condition: Boolean
    body: Body = ()
    orelse: Body = ()

    BODIES = ("body", "orelse")


@dataclass(frozen=True)
class Inside(Operation):
    """One of two bodies: where no index along `dims` is padding (guards hold), or where one is."""

    dims: tuple[str, ...]
    body: Body = ()
    orelse: Body = ()

    BODIES = ("body", "orelse")
    ROLES = ("dims",)


@dataclass(frozen=True)
class SetCoordinate(Operation):
    """Inside the body the index along `dim` is `value`."""

    dim: str
    value: Expr
    body: Body = ()

    BODIES = ("body",)
    ROLES = ("dim",)

    def __post_init__(self) -> None:
        object.__setattr__(self, "value", sympify(self.value))


@dataclass(frozen=True)
class Locate(Operation):
    """Inside the body the indices along `dims` are what the coordinate graph gives here.

    They are worked out once and keep the dimensions' symbols, however far the way to them. `reads`
    are what the body reads of tables: values to work out once, too.
    """

    dims: tuple[str, ...]
    reads: tuple[Expr, ...] = ()
    body: Body = ()

    BODIES = ("body",)
    ROLES = ("dims",)


@dataclass(frozen=True)
class Assign(Operation):
    """Name a value for the operations that follow in this body and below them."""

    name: str
    value: Expr

    def __post_init__(self) -> None:
        object.__setattr__(self, "value", sympify(self.value))

    @property
    def symbol(self) -> Symbol:
        """The name as it stands in expressions."""
        return index_symbol(self.name)


@dataclass(frozen=True)
class InitAccumulator(Operation):
    """The accumulator becomes zero."""

    accumulator: str = "acc"


@dataclass(frozen=True)
class LoadTile(Operation):
    """Bring one tile of a tensor to the multiplier; elements outside the tensor count as zero."""

    tensor: str
    tile: tuple[str, ...]

    ROLES = ("tile",)


@dataclass(frozen=True)
class MultiplyAccumulate(Operation):
    """`acc += A tile @ B tile`."""

    a: str = "A"
    b: str = "B"
    accumulator: str = "acc"


@dataclass(frozen=True)
class SendPartial(Operation):
    """Leave the accumulator in the workspace slot `slot`, then raise its flag.

    Where a slot is sent more than once, `turn` counts its senders: the flag becomes 1 + turn. Where
    several workgroups await it, the flag becomes the number of its `readers`.
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
    """Wait for the flag of `slot`, add its partial to the accumulator, then lower the flag.

    With a `turn`: wait for what the sender of that number left, which makes the flag 1 + turn.
    """

    slot: str
    accumulator: str = "acc"
    turn: str = ""

    ROLES = ("slot", "turn")


@dataclass(frozen=True)
class AwaitPartial(Operation):
    """Wait until the flag of `slot` is up and lower it by one: one of its readers is served.

    From here on this workgroup may read the slot, as often as it likes.
    """

    slot: str

    ROLES = ("slot",)


@dataclass(frozen=True)
class AddPartial(Operation):
    """Add the partial in `slot`, which was awaited before, to the accumulator."""

    slot: str
    accumulator: str = "acc"

    ROLES = ("slot",)


@dataclass(frozen=True)
class AccumulatePartial(Operation):
    """Add the accumulator to the workspace slot `slot`, then raise its flag by one.

    Several do so at the same time: each element is added atomically, in no order. `turn` tells them
    apart; the flag only counts them.
    """

    slot: str
    accumulator: str = "acc"
    turn: str = ""

    ROLES = ("slot", "turn")


@dataclass(frozen=True)
class CollectPartial(Operation):
    """Wait until all senders of `slot` have added to it, add it to the accumulator, clear it.

    They are so many `senders` side by side along `turn`, from the index at hand on. Slot and flag
    are zero again after it.
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
        output: the tensor whose tile the accumulator holds.
        tile: the dimensions with the numbers of that tile.
        operands: the tensors of the function's operands in memory, in its order. One that is
            optional is not read where its parameter `read_…` is 0, and counts as 0.
        operand_tiles: the dimensions with the numbers of the operands' tiles.
        function: the epilogue; by default `alpha·acc + beta·C`.
    """

    output: str
    tile: tuple[str, ...]
    operands: tuple[str, ...] = ()
    operand_tiles: tuple[str, ...] = ()
    function: EpilogueFunction = ALPHA_BETA
    accumulator: str = "acc"

    ROLES = ("tile", "operand_tiles")


@dataclass(frozen=True)
class StoreTile(Operation):
    """Write the accumulator as one tile of a tensor; elements outside the tensor are dropped."""

    tensor: str
    tile: tuple[str, ...]
    accumulator: str = "acc"

    ROLES = ("tile",)


def accumulates(op: Operation) -> TypeGuard[For]:
    """True for the loop over k tiles: the one that holds the `MultiplyAccumulate`."""
    return isinstance(op, For) and any(isinstance(x, MultiplyAccumulate) for x in op.body)
