"""Exit codes of commands, and errors as messages or as plain data for JSON."""

from __future__ import annotations

from enum import IntEnum
from typing import Any

from codegen.toolchain import ToolNotFound, WrongTool
from coordgraph import CodegenError, CoordGraphError, ParseError, PassError

__all__ = ["ExitCode", "Unavailable", "describe", "exit_code", "message", "notes"]


class ExitCode(IntEnum):
    """Exit codes of commands; scripts may rely on them."""

    OK = 0
    CHECK_FAILED = 1
    USAGE = 2
    REFUSED = 3
    UNAVAILABLE = 4
    NOT_EXAMINED = 5
    BUG = 70
    """An internal error, with the value of EX_SOFTWARE in sysexits.h."""


class Unavailable(CodegenError):
    """Raised if a target is known, but cannot be used on this machine."""


def exit_code(error: BaseException) -> ExitCode:
    """The exit code of a command that ends with the given error."""
    if isinstance(error, Unavailable | ToolNotFound | WrongTool | MemoryError):
        return ExitCode.UNAVAILABLE
    if isinstance(error, CoordGraphError):
        return ExitCode.REFUSED
    if isinstance(error, OSError | UnicodeError):
        return ExitCode.USAGE
    return ExitCode.BUG


def describe(error: BaseException) -> dict[str, Any]:
    """An error as plain data: kind, message, exit code, and the line and column if known."""
    # numpy raises a private subclass of MemoryError, whose name users need not see.
    kind = MemoryError if isinstance(error, MemoryError) else type(error)
    found: dict[str, Any] = {"kind": kind.__name__, "message": message(error)}
    found["exit_code"] = int(exit_code(error))
    if said := notes(error):
        found["notes"] = said
    if isinstance(error, ParseError):
        found |= {"line": error.line, "column": error.column}
    if isinstance(error, PassError) and error.reproducer is not None:
        found["reproducer"] = error.reproducer
    return found


def notes(error: BaseException) -> tuple[str, ...]:
    """The notes added to an exception, such as the name of the file that was read."""
    return tuple(getattr(error, "__notes__", ()))


def message(error: BaseException) -> str:
    """The text to print for an error, with advice if it is a bug or a lack of memory."""
    if exit_code(error) is ExitCode.BUG:
        return (
            f"{type(error).__name__}: {error} (a bug in coordgraph; --debug prints the traceback)"
        )
    if isinstance(error, MemoryError):
        what = f" ({error})" if str(error) else ""
        return f"this machine has too little memory{what}; choose a smaller problem"
    if isinstance(error, OSError) and error.strerror:
        where = f"{error.filename}: " if error.filename is not None else ""
        return f"{where}{error.strerror}"
    return str(error)
