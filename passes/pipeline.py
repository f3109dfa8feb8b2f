"""`Pipeline`: passes applied one after another, with the graph verified after each of them.

A pipeline can be parsed from text such as `reorder{swap=true},stream-k{workgroups=132}`.
Instruments, such as `Timing` and `Dump`, are called after each pass.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from types import NoneType
from typing import Any, Protocol

from coordgraph import CoordGraphError, KernelGraph, ParseError, PassError, validation
from passes.base import Pass, Verify
from passes.options import allowed_values, option_types
from passes.registry import PASSES, find_pass, offered, with_advice

__all__ = ["Dump", "Instrument", "Pipeline", "Timing"]


class Instrument(Protocol):
    """An object that a pipeline calls after each pass, for example to time it."""

    def after(self, step: Pass, before: KernelGraph, result: KernelGraph, seconds: float) -> None:
        """Called after every pass that succeeded.

        Args:
            step: the pass.
            before, result: the graphs before and after the pass.
            seconds: the time that the pass and the verification of its result took.
        """
        ...


@dataclass
class Timing:
    """An instrument of a pipeline that adds up the seconds of each pass.

    Args:
        seconds: total seconds that each pass took, by the text of the pass.
    """

    seconds: dict[str, float] = field(default_factory=dict[str, float])

    def after(self, step: Pass, before: KernelGraph, result: KernelGraph, seconds: float) -> None:
        """Add `seconds` to the total of earlier runs of the pass `step`."""
        self.seconds[str(step)] = self.seconds.get(str(step), 0.0) + seconds


@dataclass
class Dump:
    """An instrument of a pipeline that keeps the graph after each pass.

    Args:
        stages: list of (text of the pass, graph that it returned), for each pass that has run.
    """

    stages: list[tuple[str, KernelGraph]] = field(default_factory=list[tuple[str, KernelGraph]])

    def after(self, step: Pass, before: KernelGraph, result: KernelGraph, seconds: float) -> None:
        """Append the text of `step`, and the graph that it returned, to `stages`."""
        self.stages.append((str(step), result))


class Pipeline:
    """Applies passes in order: `Pipeline([StreamK(workgroups=132)])(graph)`.

    If a pass refuses a graph or fails, the error names the pass. The error's `reproducer` is a text
    with the graph before that pass and a command that runs the rest of the pipeline on it.
    """

    def __init__(self, passes: Iterable[Pass], instruments: Iterable[Instrument] = ()) -> None:
        if isinstance(passes, str | Pass):
            right = f"Pipeline.parse({passes!r})" if isinstance(passes, str) else f"[{passes}]"
            raise PassError(f"Pipeline takes a list of passes, not {passes!r}; use {right}")
        self.passes = tuple(passes)
        if wrong := [each for each in self.passes if not isinstance(each, Pass)]:
            raise PassError(
                f"Pipeline takes passes, not {wrong[0]!r}; use instances of classes that derive "
                "from passes.Pass"
            )
        self.instruments = tuple(instruments)

    def __call__(self, graph: KernelGraph, verify: Verify = "work") -> KernelGraph:
        """Apply every pass in order and return the last graph.

        Args:
            graph: the graph that the first pass rewrites.
            verify: how thoroughly to check the result of each pass; see `passes.base.Verify`.

        Raises:
            PassError: a pass refuses its graph, or fails; later passes do not run.
        """
        for position, step in enumerate(self.passes):
            before, start = graph, time.perf_counter()
            try:
                graph = step(graph, verify)
                if graph is not before:
                    graph.verify()
            except CoordGraphError as error:
                raise self._failure(error, before, position) from error
            for instrument in self.instruments:
                instrument.after(step, before, graph, time.perf_counter() - start)
        return graph

    def _failure(self, error: CoordGraphError, graph: KernelGraph, position: int) -> PassError:
        """The error for a failed pass, with a text that reproduces the failure.

        Args:
            error: the error of the pass.
            graph: the graph before the failed pass.
            position: the index of the failed pass in the pipeline, from 0.
        """
        rest = Pipeline(self.passes[position:])
        failure = PassError(str(error))
        failure.reproducer = f"{graph.text()}\n# coordgraph opt --pipeline '{rest}'\n"
        return failure

    def __str__(self) -> str:
        return ",".join(map(str, self.passes))

    def __repr__(self) -> str:
        return f"Pipeline.parse({str(self)!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Pipeline) and self.passes == other.passes

    def __hash__(self) -> int:
        return hash(self.passes)

    @classmethod
    def parse(cls, text: str, instruments: Iterable[Instrument] = ()) -> Pipeline:
        """Parse the text of a pipeline, such as `reorder{swap=true},stream-k{workgroups=132}`.

        Raises:
            ParseError: the text is malformed, or names an unknown pass or option; the error gives
                the line and the column.
            PassError: `text` is not a string.
        """
        return cls(_Reader(validation.text(text, "a pipeline", PassError)).passes(), instruments)


def _known_passes() -> str:
    """Text that lists all passes; those that need a scheduled graph are listed separately."""
    first = [name for name, kind in PASSES.items() if set(kind.requires) <= {"problem"}]
    found = f"there are {', '.join(first)}"
    later = ", ".join(name for name in PASSES if name not in first)
    return f"{found}, and for graphs that are scheduled {later}" if later else found


_TOKEN = re.compile(r"\s*(?:(?P<word>[A-Za-z0-9_.+-]+)|(?P<mark>[{}=,]))")
"""Pattern of a token in the text of a pipeline: a word, or one of the characters `{}=,`."""
_FLOAT = re.compile(r"[+-]?(?:inf|(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)")
"""Pattern of a floating-point number in the text of a pipeline."""


class _Reader:
    """Recursive-descent parser for the text of a pipeline: `name{option=value,…},…`.

    `at` is the offset in the text at which the next token is read; `start` is the offset of the
    last token that was read, whose position error messages give.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.start = 0

    def passes(self) -> list[Pass]:
        """Parse the whole text: passes separated by commas."""
        found = [self._pass()]
        while self._peek() == ",":
            self._next()
            found.append(self._pass())
        if self._peek() is not None:
            self._next()
            raise self._error("expected ',' between passes, or the end of the pipeline's text")
        return found

    def _pass(self) -> Pass:
        """Parse one pass: its name, then its options in braces, if it has any."""
        name = self._word("the name of a pass")
        start = self.start
        kind = find_pass(name)
        if kind is None:
            close = get_close_matches(name, {*PASSES, *offered()}, n=1)
            hint = f"did you mean '{close[0]}'?" if close else _known_passes()
            raise self._error(f"unknown pass '{name}'; {with_advice(hint)}")
        options: dict[str, Any] = {}
        if self._peek() == "{":
            self._next()
            while self._peek() != "}":
                option, value = self._option(kind)
                if option in options:
                    raise self._error(f"option '{option}' is given twice; remove one of the two")
                options[option] = value
                if self._peek() == ",":
                    self._next()
                elif self._peek() != "}":
                    self._next()
                    raise self._error("expected ',' or '}' after an option")
            self._next()
        try:
            return kind(**options)
        except PassError as error:
            self.start = start
            raise self._error(str(error)) from error

    def _option(self, kind: type[Pass]) -> tuple[str, Any]:
        """Parse `option=value` of a pass of class `kind`; return the option's name and value."""
        option = self._word("the name of an option")
        types = option_types(kind)
        if option not in types:
            known = ", ".join(types) or "none"
            raise self._error(f"'{kind.name}' has no option '{option}'; its options are: {known}")
        if len({*types[option]} - {NoneType}) != 1:
            (declared,) = (f.type for f in fields(kind) if f.name == option)
            raise self._error(
                f"option '{option}' of '{kind.name}' has the type {declared}, which pipeline text "
                "cannot hold; set it in Python, or make it a bool, int, float or str, or None"
            )
        if self._peek() != "=":
            self._next()
            raise self._error(f"expected '=' after '{option}'")
        self._next()
        value = self._value(self._word("a value"), types[option], option)
        allowed = allowed_values(kind)[option]
        if allowed and value is not None and value not in allowed:
            known = ", ".join(map(str, allowed))
            raise self._error(f"{option}={value} is unknown; use one of {known}")
        return option, value

    def _value(self, word: str, types: tuple[type, ...], option: str) -> Any:
        """Convert a word of the text to a value of one of the types that an option allows."""
        if NoneType in types and word == "none":
            return None
        if bool in types:
            if word in ("true", "false"):
                return word == "true"
            raise self._error(f"option '{option}' must be true or false, not '{word}'")
        if int in types:
            if re.fullmatch(r"-?[0-9]{1,18}", word):
                return int(word)
            raise self._error(f"option '{option}' must be a whole number, not '{word}'")
        if float in types:
            if _FLOAT.fullmatch(word):
                return float(word)
            raise self._error(f"option '{option}' must be a number, not '{word}'")
        return word

    def _peek(self) -> str | None:
        """The next token, which stays unconsumed; None at the end, `?` for an invalid character."""
        match = _TOKEN.match(self.text, self.at)
        if match:
            return match.group("word") or match.group("mark")
        return None if not self.text[self.at :].strip() else "?"

    def _next(self) -> str:
        """Consume the next token and return it; raise ParseError if there is none."""
        match = _TOKEN.match(self.text, self.at)
        if not match:
            rest = self.text[self.at :]
            self.start = self.at + len(rest) - len(rest.lstrip())
            raise self._error(
                "unexpected character; remove it"
                if rest.strip()
                else "unexpected end of the text; complete the pipeline"
            )
        self.start = match.end() - len(match.group("word") or match.group("mark"))
        self.at = match.end()
        return match.group("word") or match.group("mark")

    def _word(self, what: str) -> str:
        """Consume a word and return it; raise ParseError ("expected `what`") if there is none."""
        if self._peek() in (None, "{", "}", "=", ",", "?"):
            self.start = self.at
            if self._peek() is not None:
                self._next()
            raise self._error(f"expected {what}")
        return self._next()

    def _error(self, message: str) -> ParseError:
        """A ParseError for the token at offset `start`, with line, column and source line."""
        line = self.text.count("\n", 0, self.start) + 1
        column = self.start - (self.text.rfind("\n", 0, self.start) + 1) + 1
        source = self.text.split("\n")[line - 1].rstrip("\r")
        return ParseError(message, line, column, source)
