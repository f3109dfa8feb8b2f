"""Unresolved records of a kernel graph that is being read: names are not looked up yet.

The readers of the text form and of plain data produce these records; `coordgraph.text.build`
resolves names and makes the graph. Names are resolved last because an expression may name a
parameter, a dimension or an assigned value that is defined later in the text.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any, Protocol

from coordgraph.epilogue import EpilogueFunction, parse_function
from coordgraph.errors import CoordGraphError, VerifyError
from coordgraph.provenance.record import Origin

__all__ = [
    "MAX_NESTING",
    "VERSION",
    "Path",
    "RawAssumption",
    "RawExpression",
    "RawGraph",
    "RawOperation",
    "RawOrigin",
    "RawParameter",
    "RawRecord",
    "RawTable",
    "RawTensor",
    "Where",
    "function_at",
    "suggest",
]

VERSION = 1
"""The version of the text form and of plain data; it changes if older readers would fail."""
MAX_NESTING = 100
"""The largest number of levels to which operations may nest; more could exhaust Python's stack."""


class Where(Protocol):
    """Protocol of positions in the input (a text or plain data), for error messages."""

    def error(self, message: str, column: int = 0) -> CoordGraphError:
        """An error whose message names this position, plus `column` characters to the right."""
        ...

    def after(self, tokens: int) -> Where:
        """The position `tokens` tokens further on the line; in plain data, this position itself."""
        ...


@dataclass(frozen=True, slots=True)
class Path:
    """A position in plain data, as a path such as `dimensions[3].size`."""

    name: str

    def __truediv__(self, part: str | int) -> Path:
        if isinstance(part, int):
            return Path(f"{self.name}[{part}]")
        return Path(f"{self.name}.{part}" if self.name else part)

    def after(self, tokens: int) -> Path:
        """This path, whatever `tokens` is.

        An error in a text names the token that is `tokens` tokens after a position. Plain data has
        no tokens, so an error in it names the path of the whole value.
        """
        return self

    def error(self, message: str, column: int = 0) -> VerifyError:
        """A `VerifyError` whose message starts with this path; plain data has no columns."""
        return VerifyError(f"{self.name or 'graph'}: {message}")


@dataclass(slots=True)
class RawExpression:
    """The text of an expression, or of a condition if `condition` is True, before parsing."""

    text: str
    at: Where
    condition: bool = False


@dataclass(slots=True)
class RawRecord:
    """A dimension, an edge or the problem before names are resolved: its class and field values."""

    cls: type[Any]
    at: Where
    values: dict[str, Any] = field(default_factory=dict[str, Any])
    places: dict[str, Where] = field(default_factory=dict[str, Where])
    """For each field that lists dimension ids, by field name: the position of the first id in the
    input text or plain data, for error messages."""


@dataclass(slots=True)
class RawOperation(RawRecord):
    """An operation before names are resolved, with the operations of its bodies by field name."""

    bodies: dict[str, list[RawOperation]] = field(default_factory=dict[str, list["RawOperation"]])


@dataclass(slots=True)
class RawParameter:
    """A parameter before names are resolved: `param name in minimum..maximum = value "note"`."""

    name: str
    at: Where
    minimum: int
    maximum: int
    value: RawExpression | None
    note: str


@dataclass(slots=True)
class RawTable:
    """A table of integers before names are resolved, as its line in the text form gives it.

    The line is `table name [length] <= maximum rule step "note"`. No entry exceeds `maximum`;
    `rule` and `step` say how entries are computed.
    """

    name: str
    at: Where
    length: RawExpression
    maximum: RawExpression
    step: RawExpression | None
    rule: str
    note: str


@dataclass(slots=True)
class RawAssumption:
    """An assumption before names are resolved: `assume expr <= maximum`."""

    expr: RawExpression
    maximum: int


@dataclass(slots=True)
class RawTensor:
    """A tensor before names are resolved: name, element type, shape, role and strides."""

    name: str
    at: Where
    dtype: str
    shape: list[RawExpression]
    role: str
    role_at: Where
    strides: list[RawExpression] | None = None


@dataclass(slots=True)
class RawGraph:
    """All unresolved records of a graph, in input order; `end` is the position after them."""

    end: Where
    gemm: RawRecord | None = None
    level: str = "problem"
    level_at: Where | None = None
    symbols: list[tuple[str, bool, Where]] = field(default_factory=list[tuple[str, bool, Where]])
    """Symbols that `symbol` lines declare: (name, True if positive or False if non-negative,
    position)."""
    parameters: list[RawParameter] = field(default_factory=list[RawParameter])
    tables: list[RawTable] = field(default_factory=list[RawTable])
    assumptions: list[RawAssumption] = field(default_factory=list[RawAssumption])
    tensors: list[RawTensor] = field(default_factory=list[RawTensor])
    dimensions: list[RawRecord] = field(default_factory=list[RawRecord])
    edges: list[RawRecord] = field(default_factory=list[RawRecord])
    root: RawOperation | None = None
    log: list[str] = field(default_factory=list[str])
    origins: list[RawOrigin] = field(default_factory=list["RawOrigin"])


@dataclass(slots=True)
class RawOrigin:
    """An `origin` statement: which pass made a record, and from which other records.

    Args:
        part: the kind of the record, such as `dimension`.
        key: the id or the number of the record.
        at: the position of the statement in the input.
        origin: the passes that made and changed the record, and the records it was made from.
    """

    part: str
    key: str | int
    at: Where
    origin: Origin


def suggest(word: str, known: Iterable[str]) -> str:
    """The end of an error message about an unknown word: similar known words.

    If at most 12 words are known, the text lists all of them.
    """
    names = list(known)
    if close := get_close_matches(word, names, n=3):
        return f"; did you mean {' or '.join(map(repr, close))}?"
    return f"; there are {', '.join(names)}" if 0 < len(names) <= 12 else ""


def function_at(text: str, at: Where) -> EpilogueFunction:
    """Parse the text of an epilogue function; messages of errors name the text's position `at`."""
    try:
        return parse_function(text)
    except VerifyError as error:
        raise at.error(str(error)) from error
