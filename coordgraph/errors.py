"""The exceptions that the project raises; each message says what is wrong and what to do."""

from __future__ import annotations

__all__ = [
    "AmbiguousPath",
    "CodegenError",
    "CoordGraphError",
    "Deadlock",
    "DivisionByZero",
    "EvaluationError",
    "LaunchError",
    "NoEntry",
    "NoPath",
    "NotInvertible",
    "OutOfBounds",
    "ParseError",
    "PassError",
    "UnnamedFault",
    "VerifyError",
]


WIDEST = 100
"""The largest number of characters of a line of text that the message of a `ParseError` shows."""


class CoordGraphError(Exception):
    """Base class of every error that a user's input can cause.

    Any other exception that a user's input causes is a bug of coordgraph.
    """


class VerifyError(CoordGraphError):
    """A graph breaks a rule, such as the size rule of an edge, or an argument is not valid.

    Args:
        problems: one message for each thing that is wrong; kept in the attribute `problems`.
    """

    def __init__(self, *problems: str) -> None:
        self.problems = problems
        super().__init__("\n".join(problems))


class UnnamedFault(VerifyError):
    """A malformed graph caused an exception that no check predicts.

    The graph was read from text or JSON, edited, or made by a pass of another package. `__cause__`
    is the exception.
    """


class EvaluationError(CoordGraphError):
    """An index cannot be computed, or a launch cannot be interpreted.

    Each subclass stands for one reason: `NoPath`, for example, for a missing path.
    """


class NotInvertible(EvaluationError):
    """A coordinate transform has no formula in the requested direction (forward or reverse)."""


class AmbiguousPath(EvaluationError):
    """Two edges of a coordinate graph define the same index, so its value is ambiguous."""


class NoPath(EvaluationError):
    """No path of the coordinate graph leads from the known dimensions to the wanted dimension."""


class NoEntry(EvaluationError, IndexError):
    """An index expression reads or searches a table of integers outside its bounds."""


class DivisionByZero(EvaluationError, ZeroDivisionError):
    """An index expression divides by 0."""


class OutOfBounds(EvaluationError):
    """In the interpreter, an operation accesses an element outside its tensor or workspace."""


class Deadlock(EvaluationError):
    """In the interpreter, every workgroup that has not ended waits for a partial sum.

    Args:
        message: the text of the error message.
        waiting: for each waiting workgroup, the workspace slot of the partial sum that it needs.
    """

    def __init__(self, message: str, waiting: dict[int, int]) -> None:
        self.waiting = waiting
        super().__init__(message)


class PassError(CoordGraphError):
    """A pass cannot be applied to a graph, or has made a graph that a check refutes."""

    reproducer: str | None = None
    """Text with the graph before the failing pass and the command that repeats the failure.

    None if the pass was not run by a `Pipeline`.
    """


class ParseError(CoordGraphError):
    """Text that is parsed (a graph, an expression, a pipeline) has a syntax error.

    Args:
        message: what is wrong.
        line, column: the position of the error in the text, counted from 1.
        source: the line of text with the error, shown under the message if it is given; a long
            line is clipped around the column.
    """

    def __init__(self, message: str, line: int, column: int, source: str | None = None) -> None:
        self.message, self.line, self.column, self.source = message, line, column, source
        where = f"line {line}, column {column}: {message}"
        if source is not None and source.strip():  # a blank line is not shown
            shown, caret = _clipped(source, column - 1)
            where += f"\n  {shown}\n  {' ' * caret}^"
        super().__init__(where)


def _clipped(source: str, at: int) -> tuple[str, int]:
    """Clip a long line to `WIDEST` characters around the position `at`.

    Args:
        source: the line.
        at: the position of a character in the line, counted from 0.

    Returns:
        The clipped line, and the position of the same character in the clipped line.
    """
    if len(source) <= WIDEST:
        return source, at
    first = max(0, min(at - WIDEST // 2, len(source) - WIDEST))
    before, after = ("… " if first else ""), (" …" if first + WIDEST < len(source) else "")
    return before + source[first : first + WIDEST] + after, at - first + len(before)


class CodegenError(CoordGraphError):
    """A kernel graph cannot be compiled for the requested target."""


class LaunchError(CoordGraphError):
    """The arguments of a call do not suit the kernel; nothing was launched and nothing written."""
