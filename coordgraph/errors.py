"""The errors of the project: each says what was wrong, where, and what to do."""

from __future__ import annotations

__all__ = [
    "AmbiguousPath",
    "CodegenError",
    "CoordGraphError",
    "Deadlock",
    "EvaluationError",
    "LaunchError",
    "NoEntry",
    "NoPath",
    "NotInvertible",
    "ParseError",
    "PassError",
    "VerifyError",
]


class CoordGraphError(Exception):
    """Base of every error that a user can cause; anything else is a bug of ours."""


class VerifyError(CoordGraphError):
    """A graph breaks a rule of its own (a size rule, an unknown id, a missing level)."""

    def __init__(self, *problems: str) -> None:
        self.problems = problems
        super().__init__("\n".join(problems))


class EvaluationError(CoordGraphError):
    """A coordinate has no value: see the subclasses for the reason."""


class NotInvertible(EvaluationError):
    """The edge has no formula in the direction asked for."""


class AmbiguousPath(EvaluationError):
    """Two routes through the graph define one coordinate."""


class NoPath(EvaluationError):
    """No route leads from the known coordinates to the wanted one."""


class NoEntry(EvaluationError, IndexError):
    """A table is read or searched beyond its entries."""


class Deadlock(EvaluationError):
    """Every workgroup that has not ended waits; `waiting` maps each to the slot it waits for."""

    def __init__(self, message: str, waiting: dict[int, int]) -> None:
        self.waiting = waiting
        super().__init__(message)


class PassError(CoordGraphError):
    """A pass refuses a graph, or left one that does not verify."""

    reproducer: str | None = None


class ParseError(CoordGraphError):
    """Malformed text; `line` and `column` count from 1."""

    def __init__(self, message: str, line: int, column: int, source: str | None = None) -> None:
        self.message, self.line, self.column, self.source = message, line, column, source
        where = f"line {line}, column {column}: {message}"
        if source is not None and source.strip():  # there is nothing to point at in a blank line
            where += f"\n  {source}\n  {' ' * (column - 1)}^"
        super().__init__(where)


class CodegenError(CoordGraphError):
    """A graph cannot be compiled for the target asked for."""


class LaunchError(CoordGraphError):
    """The arguments of a call do not fit the kernel; nothing was launched or written."""
