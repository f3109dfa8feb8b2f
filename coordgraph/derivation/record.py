"""Derivations as records: the edges that compute one index, with formulas, numbers and guards.

`coordgraph.derivation.derive` makes the records, `coordgraph.derivation.report` prints them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sympy import Expr
from sympy.logic.boolalg import Boolean

from coordgraph.coordinates.edges import Edge
from coordgraph.coordinates.traverse import Direction
from coordgraph.derivation.numbers import with_numbers
from coordgraph.hooks import Hook
from coordgraph.integers import to_text

__all__ = [
    "LINES",
    "Address",
    "Derivation",
    "EdgeStep",
    "GuardStep",
    "IndexStep",
    "ParameterStep",
    "Stride",
]

Values = Mapping[str, Any]
"""Numbers by name: indices of dimensions, parameters, and the entries of tables."""


@dataclass(frozen=True)
class ParameterStep:
    """A launch parameter that the formulas read.

    Args:
        name: the name of the parameter.
        formula: the value as an expression in earlier parameters; None if the caller of the kernel
            gives the parameter.
        value: the parameter's value; None if the caller gives no numbers.
        note: what the parameter means.
    """

    name: str
    formula: Expr | None
    value: int | None
    note: str = ""

    def as_data(self) -> dict[str, Any]:
        """The fields of the parameter as a dictionary for JSON, with the formula as text."""
        formula = None if self.formula is None else to_text(self.formula)
        return {"name": self.name, "formula": formula, "value": self.value, "note": self.note}


@dataclass(frozen=True)
class IndexStep:
    """One index that an edge computes.

    Args:
        dimension: the id of the dimension.
        formula: the edge's own formula, in the indices that the edge reads.
        expression: the same index as a simplified function of the given coordinates.
        value: the index as a number; None if the caller gives no numbers.
        numbers: the formula with numbers in place of names; '' if `value` is None.
        last: the largest index of the dimension; None if it is unknown.
        outside: whether `value` is not in 0..`last` although no guard of the edge makes it padding.
            The point that the caller gives is then impossible: no workgroup computes its indices.
    """

    dimension: str
    formula: Expr
    expression: Expr
    value: int | None = None
    numbers: str = ""
    last: int | None = None
    outside: bool = False

    def as_data(self) -> dict[str, Any]:
        """The fields of the step as a dictionary for JSON, with expressions as text."""
        return {
            "dimension": self.dimension,
            "formula": to_text(self.formula),
            "expression": to_text(self.expression),
            "numbers": self.numbers or None,
            "value": self.value,
            "last": self.last,
            "outside": self.outside,
        }


@dataclass(frozen=True)
class GuardStep:
    """A condition under which the index that an edge computes is not padding.

    Args:
        condition: the condition, in the indices that the edge reads and computes.
        applies: the condition under which the wanted index depends on this edge; `true` unless a
            selector chooses between edges.
        value: whether the condition holds; None if the caller gives no numbers.
        applied: whether `applies` holds; None if the caller gives no numbers.
        numbers: the condition with numbers in place of names; '' if `value` is None.
        always: whether the condition holds for all values of the given coordinates.
    """

    condition: Boolean
    applies: Boolean
    value: bool | None = None
    applied: bool | None = None
    numbers: str = ""
    always: bool = False

    @property
    def refuses(self) -> bool:
        """Whether this guard applies and does not hold, so that the wanted index is padding."""
        return self.value is False and self.applied is not False

    def as_data(self) -> dict[str, Any]:
        """The fields of the guard as a dictionary for JSON, with conditions as text."""
        return {
            "condition": to_text(self.condition),
            "numbers": self.numbers or None,
            "value": self.value,
            "applies": to_text(self.applies),
            "applied": self.applied,
            "always": self.always,
        }


@dataclass(frozen=True)
class EdgeStep:
    """One edge of a derivation.

    Args:
        edge: the coordinate transform.
        direction: the direction in which the edge is evaluated.
        reads: the dimensions whose indices the edge reads, in order.
        computes: the indices that the edge computes and that the derivation uses.
        guards: the conditions under which the computed indices are not padding.
        origin: the passes that added or changed the edge, separated by commas; '' for none.
    """

    edge: Edge
    direction: Direction
    reads: tuple[str, ...]
    computes: tuple[IndexStep, ...]
    guards: tuple[GuardStep, ...] = ()
    origin: str = ""

    def as_data(self) -> dict[str, Any]:
        """The step as a dictionary for JSON: its fields, and the class and operands of the edge."""
        return {
            "edge": str(self.edge),
            "kind": self.edge.kind,
            "direction": self.direction.value,
            "upstream": list(self.edge.upstream),
            "downstream": list(self.edge.downstream),
            "reads": list(self.reads),
            "computes": [index.as_data() for index in self.computes],
            "guards": [guard.as_data() for guard in self.guards],
            "origin": self.origin or None,
        }


@dataclass(frozen=True)
class Stride:
    """How far the address moves if one coordinate grows by 1 and all others stay the same.

    Args:
        coordinate: the id of the coordinate.
        elements: the distance in elements, as a symbolic expression.
        value: the distance as a number, at the point that the caller gives; None if the caller
            gives no numbers.
        note: why there is no distance; '' if there is one.
    """

    coordinate: str
    elements: Expr | None
    value: int | None = None
    note: str = ""


@dataclass(frozen=True)
class Address:
    """The linear address of an element of a tensor or of an allocation in shared memory.

    Args:
        memory: the name of the tensor or of the allocation in shared memory.
        dtype: the name of the element type, or `mbarrier`.
        element_bytes: the size of one element in bytes.
        size: the number of elements in the memory; None if the dimension has no size.
        elements: the offset from the first element, in elements, as a symbolic expression.
        strides: for each given coordinate, the change of the address when it grows by 1.
        value: the value of `elements`; None if the caller gives no numbers.
        length: the value of `size`; None if the caller gives no numbers.
    """

    memory: str
    dtype: str
    element_bytes: int
    size: Expr | None
    elements: Expr
    strides: tuple[Stride, ...]
    value: int | None = None
    length: int | None = None

    @property
    def bytes(self) -> int | None:
        """The offset in bytes from the first element; None if the caller gives no numbers."""
        return None if self.value is None else self.value * self.element_bytes

    @property
    def inside(self) -> bool | None:
        """Whether the offset is inside the memory; None if the caller gives no numbers."""
        if self.value is None or self.length is None:
            return None
        return 0 <= self.value < self.length

    def as_data(self) -> dict[str, Any]:
        """The address as plain data for JSON: in elements; keys that end in `bytes` have bytes."""
        width = self.element_bytes
        return {
            "memory": self.memory,
            "dtype": self.dtype,
            "element_bytes": width,
            "size": None if self.size is None else to_text(self.size),
            "length": self.length,
            "offset": {
                "expression": to_text(self.elements),
                "elements": self.value,
                "bytes": self.bytes,
                "inside": self.inside,
            },
            "strides": [
                {
                    "coordinate": s.coordinate,
                    "expression": None if s.elements is None else to_text(s.elements),
                    "elements": s.value,
                    "bytes": None if s.value is None else s.value * width,
                    "note": s.note or None,
                }
                for s in self.strides
            ],
        }


@dataclass(frozen=True)
class Derivation:
    """Why an index is what it is: every edge on its path, in the order of evaluation.

    Args:
        wanted: the id of the dimension whose index is derived.
        kind: the class of that dimension, and what it belongs to: `SubDimension(A; 0)`.
        direction: whether the path leads to the tensors (reverse) or from them (forward).
        given: the known indices that the path reads, by dimension.
        parameters: the launch parameters that the formulas read; the definition of a parameter
            reads only parameters before it.
        steps: the edges, in the order of evaluation.
        expression: the wanted index as a simplified function of the given coordinates.
        guard: the condition under which the index is not padding.
        values: every number that the derivation uses, by name; empty if the caller gives no
            numbers.
        address: the linear address, if the dimension is a whole tensor or allocation.
        origin: the passes that added or changed the dimension, separated by commas; '' for none.
    """

    wanted: str
    kind: str
    direction: Direction
    given: Mapping[str, Expr]
    parameters: tuple[ParameterStep, ...]
    steps: tuple[EdgeStep, ...]
    expression: Expr
    guard: Boolean
    values: Values
    address: Address | None = None
    origin: str = ""

    @property
    def value(self) -> int | None:
        """The wanted index as a number; None if the caller gives no numbers."""
        return self.values.get(self.wanted)

    @property
    def padding(self) -> bool | None:
        """Whether the kernel skips the index as padding; None if the caller gives no numbers."""
        if self.value is None:
            return None
        return any(guard.refuses for step in self.steps for guard in step.guards)

    @property
    def outside(self) -> IndexStep | None:
        """The first computed index that is outside its dimension without being padding, or None."""
        indices = (index for step in self.steps for index in step.computes)
        return next((index for index in indices if index.outside), None)

    def text(self) -> str:
        """The derivation as a list of steps for readers."""
        return "".join(f"{''.join(text for text, _ in line)}\n" for line in LINES(self))

    def as_data(self) -> dict[str, Any]:
        """The derivation as a dictionary for `json.dumps`, with all expressions as text."""
        return {
            "coordinate": self.wanted,
            "kind": self.kind,
            "direction": self.direction.value,
            "given": {name: to_text(value) for name, value in self.given.items()},
            "parameters": [parameter.as_data() for parameter in self.parameters],
            "steps": [step.as_data() for step in self.steps],
            "expression": to_text(self.expression),
            "value": self.value,
            "guard": to_text(self.guard),
            "guard_numbers": with_numbers(self.guard, self.values) if self.values else None,
            "padding": self.padding,
            "outside": None if self.outside is None else self.outside.dimension,
            "address": None if self.address is None else self.address.as_data(),
            "origin": self.origin or None,
        }

    def __str__(self) -> str:
        return self.text().rstrip("\n")

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        return {"text/plain": self.text()}


Line = list[tuple[str, str]]
"""A line of the report: pieces of text, each with the name of its style, or ''."""
LINES = Hook[[Derivation], list[Line]]("Derivation.text", "coordgraph.derivation.report")
"""`Derivation.text` calls this hook for its lines; `coordgraph.derivation.report` implements it."""
