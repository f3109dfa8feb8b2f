"""Tokens of the text form, and a cursor over them.

A statement ends with its line; `#` opens a comment; strings are written as in JSON.
"""

from __future__ import annotations

import json
import re
from typing import NamedTuple

from coordgraph.errors import ParseError
from coordgraph.integers.text import MAX_DIGITS
from coordgraph.text.raw import Place, RawExpression

__all__ = ["BARE", "Cursor", "Token", "quote", "word"]

BARE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(?:\.[A-Za-z0-9_]+)*")
"""What is written without quotes: ids, names, dotted parts."""
_TOKEN = re.compile(
    rf"""(?P<blank>[ \t\r]+|\#[^\n]*)
    |(?P<newline>\n)
    |(?P<name>{BARE.pattern})
    |(?P<number>[0-9]+)
    |(?P<string>"(?:[^"\\\n]|\\.)*")
    |(?P<sign>->|\.\.|==|<=|>=|!=|//|.)""",
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
    line: int
    start: int


class Cursor:
    """Reads tokens one by one, and says where they stand."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._lines = text.split("\n")
        self._starts = [0]
        self._tokens: list[Token] = []
        self._position = 0
        line = 1
        for match in _TOKEN.finditer(text):
            kind = str(match.lastgroup)
            if kind != "blank":
                self._tokens.append(Token(kind, match[0], line, match.start()))
            if kind == "newline":
                line += 1
                self._starts.append(match.end())
        self._tokens.append(Token("end", "", line, len(text)))

    @property
    def token(self) -> Token:
        """The next token."""
        return self._tokens[self._position]

    @property
    def after(self) -> Token:
        """The token after the next one."""
        return self._tokens[min(self._position + 1, len(self._tokens) - 1)]

    def advance(self) -> Token:
        """Take the next token."""
        token = self.token
        self._position = min(self._position + 1, len(self._tokens) - 1)
        return token

    def place(self, token: Token | None = None) -> Place:
        """Where a token stands; by default the next one."""
        token = token or self.token
        column = token.start - self._starts[token.line - 1] + 1
        return Place(token.line, column, self._lines[token.line - 1].rstrip("\r"))

    def error(self, message: str, token: Token | None = None) -> ParseError:
        """An error at a token."""
        return self.place(token).error(message)

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
        if not self.at(sign):
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
        start, negative = self.token, self.take("-")
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
        first, end, depth = self.token, self.token.start, 0
        while not self.at_line_end() and self.token.kind != "string":
            text, kind = self.token.text, self.token.kind
            if depth == 0 and (text in (",", "{", *stop)):
                break
            if depth == 0 and kind == "name" and self.after.text == "=":
                break
            depth += (text in _OPENING) - (text in _CLOSING)
            if depth < 0:
                break
            end = self.token.start + len(text)
            self.advance()
        if end == first.start:
            raise self.expected("a condition" if condition else "an expression")
        return RawExpression(self.text[first.start : end], self.place(first), condition)
