"""The lexer of the text form: splits lines into tokens; a `Cursor` reads the tokens in order.

A statement ends at the end of its line, `#` starts a comment, and strings have JSON's syntax. Lines
are split into tokens on demand. Tokens store no positions, which speeds up reading: a token's
column is computed only for an error message.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import NamedTuple

from coordgraph.errors import WIDEST, ParseError
from coordgraph.integers.text import MAX_DIGITS
from coordgraph.text.raw import RawExpression

__all__ = ["BARE", "Cursor", "Place", "Token", "quote", "word"]

BARE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(?:\.[A-Za-z0-9_]+)*")
"""Matches ids and names that need no quotes: identifiers, joined by dots."""
_TOKEN = re.compile(
    rf"""{BARE.pattern}
    |[0-9]+
    |"(?:[^"\\]|\\.)*"
    |\#.*
    |->|\.\.|==|<=|>=|!=|//|[^ \t\r]""",
    re.VERBOSE,
)
# Control characters, line separators and surrogates. json.dumps does not escape these characters,
# but terminals and programs that split text into lines interpret them.
_UNSAFE = re.compile("[\x7f-\x9f\u2028\u2029\ud800-\udfff]")
_OPENING, _CLOSING = frozenset("([{"), frozenset(")]}")


def quote(text: str) -> str:
    """`text` as a quoted JSON string on one line; control characters are escaped."""
    escaped = json.dumps(text, ensure_ascii=False)
    return _UNSAFE.sub(lambda match: f"\\u{ord(match[0]):04x}", escaped)


def word(text: str) -> str:
    """`text` unchanged if it is a valid unquoted name, else as a quoted string."""
    return text if BARE.fullmatch(text) else quote(text)


class Token(NamedTuple):
    """A token of the text form; `kind` is name, number, string, sign, newline or end."""

    kind: str
    text: str


NEWLINE, END = Token("newline", "\n"), Token("end", "")


class _Tokens(dict[str, Token]):
    """A cache from text to token, so that equal texts share one token object."""

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
    """The texts of the tokens of a line; a comment at the line's end is dropped."""
    found: list[str] = _TOKEN.findall(line)
    if found and found[-1][0] == "#":
        found.pop()
    return found


@dataclass(slots=True, eq=False)
class Place:
    """A position in a text: token number `index` of line number `line`, both counted from 0."""

    lines: list[str]
    line: int
    index: int

    def after(self, tokens: int) -> Place:
        """The position that is `tokens` tokens further to the right on the same line."""
        return Place(self.lines, self.line, self.index + tokens)

    def error(self, message: str, column: int = 0) -> ParseError:
        """A `ParseError` at this position, plus `column` characters to the right."""
        source = self.lines[self.line]
        starts = _starts(source)
        start = starts[self.index] if self.index < len(starts) else len(source)
        return ParseError(message, self.line + 1, start + column + 1, source.rstrip("\r"))


def _starts(line: str) -> list[int]:
    """The columns at which the tokens of a line start, counted from 0."""
    return [match.start() for match in _TOKEN.finditer(line) if match[0][0] != "#"]


class Cursor:
    """Reads the tokens of a text in order; the attribute `token` is the next token to be read."""

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
        """The token that follows `token`; `token` itself if it is the end of a line or text."""
        at_end = self.token is NEWLINE or self.token is END
        return self.token if at_end else self._tokens[self._index + 1]

    def advance(self, count: int = 1) -> Token:
        """Consume `count` tokens of the current line; returns the first of these tokens."""
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
        """The position of the next token."""
        return Place(self._lines, self._line, self._index)

    def error(self, message: str, at: Place | None = None) -> ParseError:
        """A `ParseError` at the position `at`, by default the position of the next token."""
        return (at or self.place()).error(message)

    def expected(self, what: str) -> ParseError:
        """A `ParseError` saying that the grammar needs `what` in place of the next token."""
        token = self.token
        found = {"newline": "the end of the line", "end": "the end"}.get(token.kind)
        if token.kind == "sign" and token.text == '"':
            return self.error('the string is not closed on its line; add a closing "')
        text = token.text if len(token.text) <= WIDEST else token.text[:WIDEST] + "…"
        return self.error(f"expected {what}, found {found or repr(text)}")

    def at(self, *signs: str) -> bool:
        """True if the next token is one of the signs in `signs`, such as `{`."""
        return self.token.kind == "sign" and self.token.text in signs

    def take(self, sign: str) -> bool:
        """Consume the next token and return True if it is `sign`; otherwise return False."""
        if self.token.text != sign or self.token.kind != "sign":
            return False
        self.advance()
        return True

    def expect(self, sign: str) -> None:
        """Consume the next token.

        Raises:
            ParseError: the next token is not `sign`.
        """
        if not self.take(sign):
            raise self.expected(repr(sign))

    def at_line_end(self) -> bool:
        """True if the next token is the end of a line or of the text, which ends a statement."""
        return self.token.kind in ("newline", "end")

    def end_statement(self) -> None:
        """Consume the end of a line.

        Raises:
            ParseError: the line has a further token.
        """
        if not self.at_line_end():
            raise self.expected("the end of the line")
        self.advance()

    def skip_lines(self) -> None:
        """Skip empty lines."""
        while self.token.kind == "newline":
            self.advance()

    def name(self, what: str) -> str:
        """Consume and return an unquoted name.

        Raises:
            ParseError: the next token is not an unquoted name; the message asks for `what`.
        """
        if self.token.kind != "name":
            raise self.expected(what)
        return self.advance().text

    def word(self, what: str) -> str:
        """Consume and return a name or the value of a quoted string.

        Raises:
            ParseError: the next token is neither; the message asks for `what`.
        """
        if self.token.kind == "string":
            return self.string(what)
        return self.name(what)

    def string(self, what: str = "a string in quotes") -> str:
        """Consume a quoted string and return the string's value.

        Raises:
            ParseError: the next token is not a quoted string; the message asks for `what`.
        """
        if self.token.kind != "string":
            raise self.expected(what)
        try:
            return str(json.loads(self.token.text))
        except ValueError as error:
            raise self.error(
                r"the string is not valid JSON; write \\ for a backslash and \" for a quote"
            ) from error
        finally:
            self.advance()

    def integer(self) -> int:
        """Consume and return a whole number with an optional minus sign."""
        start, negative = self.place(), self.take("-")
        if self.token.kind != "number":
            raise self.expected("a whole number")
        digits = self.advance().text
        if len(digits) > MAX_DIGITS:
            raise self.error(
                f"the number has {len(digits)} digits; it may have {MAX_DIGITS} digits at most",
                start,
            )
        return -int(digits) if negative else int(digits)

    def expression(self, *, condition: bool = False, stop: tuple[str, ...] = ()) -> RawExpression:
        """Consume the tokens of an expression; returns its text, which is parsed later.

        The expression ends at the end of the line, and outside parentheses before a comma, a
        closing bracket, `{`, a string, `name=`, or one of the tokens `stop`.

        Args:
            condition: True if a condition is expected, not an integer expression.
            stop: further tokens that end the expression.
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
        """The source text of the current line from token `first` to the token before `end`."""
        if end == first + 1:
            return self._tokens[first].text
        line = self._lines[self._line]
        starts = _starts(line)
        return line[starts[first] : starts[end - 1] + len(self._tokens[end - 1].text)]
