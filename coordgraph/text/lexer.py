"""Tokens of the text form, and a cursor over them.

A statement ends with its line; `#` opens a comment; strings are written as in JSON. Lines are split
into tokens one at a time, and a token knows nothing of where it stands: positions are worked out
again when an error needs them.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import NamedTuple

from coordgraph.errors import ParseError
from coordgraph.integers.text import MAX_DIGITS
from coordgraph.text.raw import RawExpression

__all__ = ["BARE", "Cursor", "Place", "Token", "quote", "word"]

BARE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(?:\.[A-Za-z0-9_]+)*")
"""What is written without quotes: ids, names, dotted parts."""
_TOKEN = re.compile(
    rf"""{BARE.pattern}
    |[0-9]+
    |"(?:[^"\\]|\\.)*"
    |\#.*
    |->|\.\.|==|<=|>=|!=|//|[^ \t\r]""",
    re.VERBOSE,
)
# JSON leaves these as they are, but terminals, files and some readers of lines do not.
_UNSAFE = re.compile("[\x7f-\x9f\u2028\u2029\ud800-\udfff]")
_OPENING, _CLOSING = frozenset("([{"), frozenset(")]}")


def quote(text: str) -> str:
    """A string in quotes, on one line."""
    escaped = json.dumps(text, ensure_ascii=False)
    return _UNSAFE.sub(lambda match: f"\\u{ord(match[0]):04x}", escaped)


def word(text: str) -> str:
    """A name as it is, anything else in quotes."""
    return text if BARE.fullmatch(text) else quote(text)


class Token(NamedTuple):
    """A token; `kind` is name, number, string, sign, newline or end."""

    kind: str
    text: str


NEWLINE, END = Token("newline", "\n"), Token("end", "")


class _Tokens(dict[str, Token]):
    """Text to token: the same text is the same token."""

    def __missing__(self, text: str) -> Token:
        first = text[0]
        if first == '"' and len(text) > 1:
            kind = "string"
        elif first in "0123456789":
            kind = "number"
        else:
            kind = "name" if BARE.fullmatch(text) else "sign"
        token = self[text] = Token(kind, text)
        return token


def _split(line: str) -> list[str]:
    """The texts of the tokens of a line."""
    found: list[str] = _TOKEN.findall(line)
    if found and found[-1][0] == "#":
        found.pop()
    return found


@dataclass(slots=True, eq=False)
class Place:
    """A place in a text: the token at `index` of a line, both counted from 0."""

    lines: list[str]
    line: int
    index: int

    def after(self, tokens: int) -> Place:
        """The place so many tokens further on the line."""
        return Place(self.lines, self.line, self.index + tokens)

    def error(self, message: str, column: int = 0) -> ParseError:
        """A ParseError with the line."""
        source = self.lines[self.line]
        starts = _starts(source)
        start = starts[self.index] if self.index < len(starts) else len(source)
        return ParseError(message, self.line + 1, start + column + 1, source.rstrip("\r"))


def _starts(line: str) -> list[int]:
    """Where the tokens of a line begin."""
    return [match.start() for match in _TOKEN.finditer(line) if match[0][0] != "#"]


class Cursor:
    """Reads tokens one by one; `token` is the next one."""

    def __init__(self, text: str) -> None:
        self._lines = text.split("\n")
        self._known = _Tokens()
        self._line = -1
        self._next_line()

    def _next_line(self) -> None:
        self._line += 1
        known = self._known
        self._tokens = [known[text] for text in _split(self._lines[self._line])]
        self._tokens.append(NEWLINE if self._line < len(self._lines) - 1 else END)
        self._index = 0
        self.token = self._tokens[0]

    @property
    def after(self) -> Token:
        """The token after the next one."""
        at_end = self.token is NEWLINE or self.token is END
        return self.token if at_end else self._tokens[self._index + 1]

    def advance(self, count: int = 1) -> Token:
        """Take the next token, or so many of the line."""
        token = self.token
        self._index += count
        if token is NEWLINE:
            self._next_line()
        elif token is END:
            self._index -= count
        else:
            self.token = self._tokens[self._index]
        return token

    def place(self) -> Place:
        """Where the next token stands."""
        return Place(self._lines, self._line, self._index)

    def error(self, message: str, at: Place | None = None) -> ParseError:
        """An error at a place, by default at the next token."""
        return (at or self.place()).error(message)

    def expected(self, what: str) -> ParseError:
        """An error at the next token, which is something else."""
        token = self.token
        found = {"newline": "the end of the line", "end": "the end"}.get(token.kind)
        if token.kind == "sign" and token.text == '"':
            return self.error("the string is not closed on its line")
        return self.error(f"expected {what}, found {found or repr(token.text)}")

    def at(self, *signs: str) -> bool:
        """True where the next token is one of these signs."""
        return self.token.kind == "sign" and self.token.text in signs

    def take(self, sign: str) -> bool:
        """Take a sign if it is next."""
        if self.token.text != sign or self.token.kind != "sign":
            return False
        self.advance()
        return True

    def expect(self, sign: str) -> None:
        """Take a sign that must be next."""
        if not self.take(sign):
            raise self.expected(repr(sign))

    def at_line_end(self) -> bool:
        """True where the statement ends."""
        return self.token.kind in ("newline", "end")

    def end_statement(self) -> None:
        """Take the end of the line."""
        if not self.at_line_end():
            raise self.expected("the end of the line")
        self.advance()

    def skip_lines(self) -> None:
        """Pass over empty lines."""
        while self.token.kind == "newline":
            self.advance()

    def name(self, what: str) -> str:
        """Take a word."""
        if self.token.kind != "name":
            raise self.expected(what)
        return self.advance().text

    def word(self, what: str) -> str:
        """Take a word or a string."""
        if self.token.kind == "string":
            return self.string(what)
        return self.name(what)

    def string(self, what: str = "a string in quotes") -> str:
        """Take a string."""
        if self.token.kind != "string":
            raise self.expected(what)
        try:
            return str(json.loads(self.token.text))
        except ValueError as error:
            raise self.error("not a string as JSON writes them") from error
        finally:
            self.advance()

    def integer(self) -> int:
        """Take a whole number, which may have a sign."""
        start, negative = self.place(), self.take("-")
        if self.token.kind != "number":
            raise self.expected("a whole number")
        digits = self.advance().text
        if len(digits) > MAX_DIGITS:
            raise self.error(f"a number may have {MAX_DIGITS} digits at most", start)
        return -int(digits) if negative else int(digits)

    def expression(self, *, condition: bool = False, stop: tuple[str, ...] = ()) -> RawExpression:
        """Take what belongs to an expression; whether it is one is seen later.

        It ends before a comma, closing bracket, brace, string or one of `stop` of its level, before
        `name=`, and with the line.
        """
        at, first, depth = self.place(), self._index, 0
        tokens, end = self._tokens, len(self._tokens) - 1
        while self._index < end:
            kind, text = tokens[self._index]
            if kind == "string":
                break
            if depth == 0 and (text in (",", "{", *stop)):
                break
            if depth == 0 and kind == "name" and tokens[self._index + 1].text == "=":
                break
            depth += (text in _OPENING) - (text in _CLOSING)
            if depth < 0:
                break
            self._index += 1
        self.token = tokens[self._index]
        if first == self._index:
            raise self.expected("a condition" if condition else "an expression")
        return RawExpression(self._text(first, self._index), at, condition)

    def _text(self, first: int, end: int) -> str:
        """What is written from the token `first` of the line to the one before `end`."""
        if end == first + 1:
            return self._tokens[first].text
        line = self._lines[self._line]
        starts = _starts(line)
        return line[starts[first] : starts[end - 1] + len(self._tokens[end - 1].text)]
