"""Options of passes: the allowed types and values of their fields, and the text that lists them.

A field's type is one of bool, int, float and str, one of them and None, or a `Literal` of the
allowed strings; `option` bounds numbers. `Pass` checks all of it when a pass is made, for every
pass, wherever it was written.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from dataclasses import Field, field, fields
from functools import cache
from types import NoneType, UnionType
from typing import (
    Any,
    Literal,
    NamedTuple,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

__all__ = [
    "allowed_range",
    "allowed_values",
    "option",
    "option_meaning",
    "option_text",
    "option_types",
    "without_options",
    "wrong_option",
]

_WORDS: dict[type, str] = {
    bool: "True or False",
    int: "a whole number",
    float: "a number",
    str: "a string",
    NoneType: "None",
}
_EXACT = 2**53
"""Integers up to this number convert to float without rounding."""
_LIMITS = "limits"


class _Limits(NamedTuple):
    """The smallest and largest allowed number, and a hint for the error if one is outside."""

    least: float
    most: float
    hint: str


def option(default: Any, *, least: float, most: float, hint: str = "") -> Any:
    """Declare a field of a pass with a default and limits.

    In the class: `splits: int = option(2, least=2, most=8)`.

    Args:
        default: the default of the field.
        least, most: the smallest and the largest allowed number. None is allowed too, if the
            field's type includes it.
        hint: what to use instead of a number outside; the error message ends with it.
    """
    return field(default=default, metadata={_LIMITS: _Limits(least, most, hint)})


def wrong_option(step: Any) -> str | None:
    """A message about the first option of a pass whose type or value is not allowed, or None."""
    kind = type(step)
    types, allowed = option_types(kind), allowed_values(kind)
    for f in fields(step):
        name, value = f.name, getattr(step, f.name)
        if types[name] and not any(_fits(value, each) for each in types[name]):
            wanted = " or ".join(_WORDS[each] for each in types[name])
            return f"{name} = {value!r} should be {wanted}"
        if allowed[name] and value is not None and value not in allowed[name]:
            return f"{name}={value} is unknown; there are {', '.join(map(str, allowed[name]))}"
        limits = _limits(f)
        if limits and value is not None and not limits.least <= value <= limits.most:
            hint = f"; {limits.hint}" if limits.hint else ""
            return f"{name}={value} is outside {limits.least}..{limits.most}{hint}"
    return None


def option_text(kind: type[Any], name: str) -> str:
    """The type of an option and its allowed values, for people: `int, 1..65535, or none`."""
    (found,) = (f for f in fields(kind) if f.name == name)
    types, limits = option_types(kind)[name], _limits(found)
    if not types:
        return found.type if isinstance(found.type, str) else str(found.type)
    plain = [t.__name__ for t in types if t is not NoneType]
    text = " | ".join(map(str, allowed_values(kind)[name])) or " | ".join(plain)
    if limits:
        text += f", {limits.least}..{limits.most}"
    return f"{text}, or none" if NoneType in types else text


def option_meaning(kind: type[Any], name: str) -> str:
    """What an option means, in one line: its entry under `Args:` in the docstring of the class.

    An option that a base class declares may be described there. '' where no docstring has it.
    """
    for owner in kind.__mro__:
        if name in (described := _described(owner)):
            return described[name]
    return ""


def without_options(docstring: str) -> str:
    """A docstring, as `inspect.cleandoc` returns it, without its section `Args:`."""
    return _SECTION.sub("", docstring).strip()


_SECTION = re.compile(r"^Args:\n((?:[ ]+.*\n?|\n)*)", re.MULTILINE)
_ENTRY = re.compile(r"^    (\w+(?:, \w+)*): (.*(?:\n {5,}.*)*)", re.MULTILINE)


def _described(kind: type[Any]) -> dict[str, str]:
    """The entries under `Args:` in a class's own docstring, by option."""
    section = _SECTION.search(inspect.cleandoc(vars(kind).get("__doc__") or ""))
    found: dict[str, str] = {}
    for names, text in _ENTRY.findall(section.group(1) if section else ""):
        found |= dict.fromkeys(names.split(", "), " ".join(text.split()))
    return found


@cache
def option_types(kind: type[Any]) -> dict[str, tuple[type, ...]]:
    """Which of bool, int, float, str and None each option takes; () for any other type."""
    hints = _hints(kind)
    return {f.name: _plain_types(hints.get(f.name)) for f in fields(kind)}


@cache
def allowed_values(kind: type[Any]) -> dict[str, tuple[object, ...]]:
    """The values that each option's `Literal` allows; () for an option without one."""
    hints = _hints(kind)
    return {f.name: tuple(_literals(hints.get(f.name))) for f in fields(kind)}


def allowed_range(kind: type[Any], name: str) -> tuple[float, float] | None:
    """The least and the largest number that an option may be, or None where `option` set none."""
    (found,) = (f for f in fields(kind) if f.name == name)
    limits = _limits(found)
    return limits and (limits.least, limits.most)


def _hints(kind: type[Any]) -> dict[str, Any]:
    try:
        return get_type_hints(kind)
    except (NameError, TypeError):  # a name under TYPE_CHECKING, or local to a function
        return {}


def _alternatives(hint: Any) -> tuple[Any, ...]:
    return get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)


def _literals(hint: Any) -> Iterator[object]:
    for each in _alternatives(hint):
        if get_origin(each) is Literal:
            yield from get_args(each)


def _plain_types(hint: Any) -> tuple[type, ...]:
    found: list[Any] = []
    for each in _alternatives(hint):
        is_literal = get_origin(each) is Literal
        found += [type(value) for value in get_args(each)] if is_literal else [each]
    known = all(isinstance(each, type) and each in _WORDS for each in found)
    return tuple(dict.fromkeys(found)) if known else ()


def _limits(found: Field[Any]) -> _Limits | None:
    return found.metadata.get(_LIMITS)


def _fits(value: object, kind: type) -> bool:
    if isinstance(value, bool):  # bool is a subclass of int in Python
        return kind is bool
    if kind is float and isinstance(value, int):
        return abs(value) <= _EXACT
    return isinstance(value, kind) and value == value  # refuse NaN: it does not equal itself
