"""A graph as it was written, before any name is resolved.

Text and plain data are both read into these records, and `build` makes the graph of them: an
expression can name a parameter, a dimension or an assigned value that is written further down.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any, Protocol

from coordgraph.epilogue import EpilogueFunction, parse_function
from coordgraph.errors import CoordGraphError, VerifyError

__all__ = [
    "MAX_NESTING",
    "VERSION",
    "Path",
    "RawAssumption",
    "RawExpression",
    "RawGraph",
    "RawOperation",
    "RawParameter",
    "RawRecord",
    "RawTable",
    "RawTensor",
    "Where",
    "function_at",
    "suggest",
]

VERSION = 1
"""Of both written forms; raised when what is written now could not be read before."""
MAX_NESTING = 100
"""Operations inside operations; far below what exhausts Python's stack."""


class Where(Protocol):
    """A place in what is read, to complain about."""

    def error(self, message: str, column: int = 0) -> CoordGraphError:
        """The error to raise; `column` counts from the place."""
        ...

    def after(self, tokens: int) -> Where:
        """The place so many tokens further, where places are as fine as that."""
        ...


@dataclass(frozen=True, slots=True)
class Path:
    """A place in plain data: `dimensions[3].size`."""

    name: str

    def __truediv__(self, part: str | int) -> Path:
        if isinstance(part, int):
            return Path(f"{self.name}[{part}]")
        return Path(f"{self.name}.{part}" if self.name else part)

    def after(self, tokens: int) -> Path:
        """The same path: data has no tokens."""
        return self

    def error(self, message: str, column: int = 0) -> VerifyError:
        """A VerifyError that begins with the path."""
        return VerifyError(f"{self.name or 'graph'}: {message}")


@dataclass(slots=True)
class RawExpression:
    """The text of an expression, or of a condition."""

    text: str
    at: Where
    condition: bool = False


@dataclass(slots=True)
class RawRecord:
    """A dimension, an edge or the problem: its class, and the values that were written."""

    cls: type[Any]
    at: Where
    values: dict[str, Any] = field(default_factory=dict[str, Any])
    places: dict[str, Where] = field(default_factory=dict[str, Where])
    """Where values stand that name dimensions; of a side of an edge, its first operand."""


@dataclass(slots=True)
class RawOperation(RawRecord):
    """An operation with its bodies."""

    bodies: dict[str, list[RawOperation]] = field(default_factory=dict[str, list["RawOperation"]])


@dataclass(slots=True)
class RawParameter:
    """A parameter."""

    name: str
    at: Where
    minimum: int
    maximum: int
    value: RawExpression | None
    note: str


@dataclass(slots=True)
class RawTable:
    """A table."""

    name: str
    at: Where
    length: RawExpression
    maximum: RawExpression
    step: RawExpression | None
    rule: str
    note: str


@dataclass(slots=True)
class RawAssumption:
    """`expr <= maximum`."""

    expr: RawExpression
    maximum: int


@dataclass(slots=True)
class RawTensor:
    """A tensor argument."""

    name: str
    at: Where
    dtype: str
    shape: list[RawExpression]
    role: str
    role_at: Where
    strides: list[RawExpression] | None = None


@dataclass(slots=True)
class RawGraph:
    """Everything that was written, in order."""

    end: Where
    gemm: RawRecord | None = None
    level: str = "problem"
    level_at: Where | None = None
    symbols: list[tuple[str, bool, Where]] = field(default_factory=list[tuple[str, bool, Where]])
    """Names that nothing else in the graph gives, and whether they are positive."""
    parameters: list[RawParameter] = field(default_factory=list[RawParameter])
    tables: list[RawTable] = field(default_factory=list[RawTable])
    assumptions: list[RawAssumption] = field(default_factory=list[RawAssumption])
    tensors: list[RawTensor] = field(default_factory=list[RawTensor])
    dimensions: list[RawRecord] = field(default_factory=list[RawRecord])
    edges: list[RawRecord] = field(default_factory=list[RawRecord])
    root: RawOperation | None = None
    log: list[str] = field(default_factory=list[str])


def suggest(word: str, known: Iterable[str]) -> str:
    """`; did you mean 'x'?`, or what there is, or nothing where that is long."""
    names = list(known)
    if close := get_close_matches(word, names, n=3):
        return f"; did you mean {' or '.join(map(repr, close))}?"
    return f"; there are {', '.join(names)}" if 0 < len(names) <= 12 else ""


def function_at(text: str, at: Where) -> EpilogueFunction:
    """An epilogue's function that was written at a place; errors say the place."""
    try:
        return parse_function(text)
    except VerifyError as error:
        raise at.error(str(error)) from error
