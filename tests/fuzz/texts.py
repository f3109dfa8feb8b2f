"""Mutations of a graph's text form: numbers, names, operators, arguments and whole lines."""

from __future__ import annotations

import re
from random import Random

__all__ = ["NUMBERS", "mutated_expression", "mutated_text"]

NUMBERS = (
    *("0", "1", "2", "3", "-1", "7", "64", "100", "2147483647", "2147483648", "4294967296"),
    *("9223372036854775807", "9223372036854775808", "-9223372036854775808", "1" + 40 * "0"),
)
"""Numbers that mutations insert, such as the limits of integer types."""
OPERATORS = ("+", "-", "*", "//", "%", "<", "<=", ">", ">=", "==", "!=", " and ", " or ", ",")
CALLS = ("min", "max", "select", "load", "search", "xor")
JUNK = ("", "(", ")", "{", "}", "->", "=", ":", "é", "\0", "none", "true", "1e9", '"', "not ")
TOKEN = re.compile(r"\d+|[A-Za-z_][\w.]*|//|[<>=!]=|->|[-+*%<>(),{}=:\[\]]")
IN_BRACKETS = re.compile(r"\(([^()]*,[^()]*)\)|\[([^\[\]]*,[^\[\]]*)\]")


def mutated_text(text: str, draw: Random) -> str:
    """A graph's text with one to four mutations."""
    lines = text.split("\n")
    for _ in range(draw.choice((1, 1, 1, 1, 2, 2, 3, 4))):
        lines = draw.choice(_OF_LINES if draw.random() < 0.35 else _OF_TOKENS)(lines, draw)
        lines = lines or [""]
    return "\n".join(lines)


def mutated_expression(text: str, draw: Random) -> str:
    """The text of an expression or a short record with one token changed."""
    return draw.choice(_OF_TOKENS)([text], draw)[0]


def _line(lines: list[str], draw: Random) -> int:
    filled = [i for i, line in enumerate(lines) if line.strip()]
    return draw.choice(filled) if filled else 0


def _delete(lines: list[str], draw: Random) -> list[str]:
    at = _line(lines, draw)
    return lines[:at] + lines[at + draw.choice((1, 1, 1, 2, 5)) :]


def _duplicate(lines: list[str], draw: Random) -> list[str]:
    at, to = _line(lines, draw), _line(lines, draw)
    to = at if draw.random() < 0.5 else to
    return [*lines[:to], lines[at], *lines[to:]]


def _swap(lines: list[str], draw: Random) -> list[str]:
    a, b = _line(lines, draw), _line(lines, draw)
    b = min(a + 1, len(lines) - 1) if draw.random() < 0.5 else b
    lines = list(lines)
    lines[a], lines[b] = lines[b], lines[a]
    return lines


def _move_block(lines: list[str], draw: Random) -> list[str]:
    """Move the lines of one operation and its body to another position in the text."""
    opened = [i for i, line in enumerate(lines) if line.endswith("{")]
    if not opened:
        return lines
    at = draw.choice(opened)
    depth, end = 0, at
    for end in range(at, len(lines)):
        depth += lines[end].count("{") - lines[end].count("}")
        if depth <= 0:
            break
    block, rest = lines[at : end + 1], lines[:at] + lines[end + 1 :]
    to = draw.randrange(len(rest) + 1)
    return [*rest[:to], *block, *rest[to:]]


def _replace_token(lines: list[str], draw: Random, wanted: str, values: list[str]) -> list[str]:
    """Replace a token that matches `wanted` in a random line by one of `values`."""
    at = _line(lines, draw)
    found = [t for t in TOKEN.finditer(lines[at]) if re.fullmatch(wanted, t[0])]
    if not found or not values:
        return lines
    token = draw.choice(found)
    new = lines[at][: token.start()] + draw.choice(values) + lines[at][token.end() :]
    return [*lines[:at], new, *lines[at + 1 :]]


def _number(lines: list[str], draw: Random) -> list[str]:
    at = _line(lines, draw)
    found = list(re.finditer(r"\d+", lines[at]))
    if not found:
        return lines
    token = draw.choice(found)
    near = [str(int(token[0]) + step) for step in (-1, 1)] + [str(2 * int(token[0]))]
    value = draw.choice(near if draw.random() < 0.6 else NUMBERS)
    new = lines[at][: token.start()] + value + lines[at][token.end() :]
    return [*lines[:at], new, *lines[at + 1 :]]


def _name(lines: list[str], draw: Random) -> list[str]:
    known = [t for line in lines for t in re.findall(r"[A-Za-z_][\w.]*", line)]
    return _replace_token(lines, draw, r"[A-Za-z_][\w.]*", known)


def _operand(lines: list[str], draw: Random) -> list[str]:
    """Replace a random name by a number, or a number by a name."""
    known = [t for line in lines for t in re.findall(r"[A-Za-z_][\w.]*", line)]
    if draw.random() < 0.5:
        return _replace_token(lines, draw, r"\d+", known)
    return _replace_token(lines, draw, r"[A-Za-z_][\w.]*", list(NUMBERS))


def _operator(lines: list[str], draw: Random) -> list[str]:
    return _replace_token(lines, draw, r"[-+*%<>,]|//|[<>=!]=", list(OPERATORS))


def _call(lines: list[str], draw: Random) -> list[str]:
    return _replace_token(lines, draw, "|".join(CALLS), list(CALLS))


def _junk(lines: list[str], draw: Random) -> list[str]:
    return _replace_token(lines, draw, ".*", list(JUNK))


def _arguments(lines: list[str], draw: Random) -> list[str]:
    """Swap, drop or repeat an argument of a list in brackets."""
    places = [(i, m) for i, line in enumerate(lines) for m in IN_BRACKETS.finditer(line)]
    if not places:
        return lines
    at, match = draw.choice(places)
    inside = match[1] or match[2]
    parts = [part.strip() for part in inside.split(",")]
    match draw.randrange(3):
        case 0:
            draw.shuffle(parts)
        case 1:
            parts.pop(draw.randrange(len(parts)))
        case _:
            parts.insert(draw.randrange(len(parts)), draw.choice(parts))
    start = match.start() + 1
    new = lines[at][:start] + ", ".join(parts) + lines[at][start + len(inside) :]
    return [*lines[:at], new, *lines[at + 1 :]]


def _value(lines: list[str], draw: Random) -> list[str]:
    """Give a field `name=value` the value that a field of the same name has elsewhere."""
    fields = [(i, m) for i, line in enumerate(lines) for m in re.finditer(r"(\w+)=(\S+)", line)]
    if not fields:
        return lines
    at, field = draw.choice(fields)
    others = [m[2] for _, m in fields if m[1] == field[1]]
    new = lines[at][: field.start(2)] + draw.choice(others) + lines[at][field.end(2) :]
    return [*lines[:at], new, *lines[at + 1 :]]


def _wrap(lines: list[str], draw: Random) -> list[str]:
    """Put a name into a larger expression, such as `m // (m - 1)`."""
    at = _line(lines, draw)
    found = list(re.finditer(r"(?<=[=(\[ ])[a-z_]\w*(?=[),\] ]|$)", lines[at]))
    if not found:
        return lines
    token = draw.choice(found)
    other = draw.choice(["m", "n", "k", "workgroup", "read_c", *NUMBERS[:9], token[0]])
    forms = ("({0} + {1})", "{0}*{1}", "({0} - {1})", "({0} // {1})", "({0} % {1})")
    forms += ("min({0}, {1})", "max({0}, {1})", "select({0} < {1}, {0}, {1})", "-{0}")
    new = draw.choice(forms).format(token[0], other)
    return [
        *lines[:at],
        lines[at][: token.start()] + new + lines[at][token.end() :],
        *lines[at + 1 :],
    ]


_OF_LINES = (_delete, _duplicate, _swap, _move_block)
_OF_TOKENS = (
    *(_number, _number, _name, _name, _operand, _operator, _operator),
    *(_arguments, _value, _wrap, _wrap, _call, _junk),
)
