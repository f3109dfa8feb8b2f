"""Options of passes: which types and values a pass's fields allow, and texts that list these.

The type of a field is bool, int, float or str, or a `Literal` of the allowed strings; None may be
allowed as well. `option` gives the smallest and the largest allowed number. `Pass` checks types and
values whenever a pass is constructed.
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

from coordgraph.validation import a_type

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
"""Largest absolute value up to which every integer converts to a 64-bit float exactly."""
_LONG = 60
"""Largest number of characters of a value that an error message quotes."""
_LIMITS = "limits"
"""Key of a field's metadata under which `option` stores the `_Limits`."""


class _Limits(NamedTuple):
    """The smallest and largest allowed number of an option, and a hint for the error message.

    Args:
        least, most: the smallest and the largest allowed number.
        hint: what to use instead of a number that is too small or too large; may be empty.
    """

    least: float
    most: float
    hint: str


def option(default: Any, *, least: float, most: float, hint: str = "") -> Any:
    """Declare an option of a pass, with its default and its limits, as a dataclass field.

    For example, in the class body: `splits: int = option(2, least=2, most=8)`.

    Args:
        default: the default value of the field.
        least, most: the smallest and the largest allowed number. None is allowed too if the type
            of the field includes it.
        hint: what to use instead of a number that is too small or too large; the error message
            ends with this text.
    """
    return field(default=default, metadata={_LIMITS: _Limits(least, most, hint)})


def _shown(value: Any) -> str:
    """A wrong value as text for an error message: its `repr`, or its type if the `repr` is long."""
    text = repr(value)
    return text if len(text) <= _LONG else a_type(value)


def wrong_option(step: Any) -> str | None:
    """Return an error message for the first option whose type or value is not allowed, or None.

    Args:
        step: the pass, a dataclass instance whose fields are its options.
    """
    kind = type(step)
    types, allowed = option_types(kind), allowed_values(kind)
    for f in fields(step):
        name, value = f.name, getattr(step, f.name)
        if types[name] and not any(_fits(value, each) for each in types[name]):
            wanted = " or ".join(_WORDS[each] for each in types[name])
            return f"{name} = {_shown(value)} should be {wanted}"
        if allowed[name] and value is not None and value not in allowed[name]:
            known = ", ".join(map(str, allowed[name]))
            return f"{name}={value} is unknown; use one of {known}"
        limits = _limits(f)
        if limits and value is not None and not limits.least <= value <= limits.most:
            hint = f"; {limits.hint}" if limits.hint else ""
            return f"{name}={value} is outside {limits.least}..{limits.most}{hint}"
    return None


def option_text(kind: type[Any], name: str) -> str:
    """Text with the type and the allowed values of an option, such as `int, 1..65535, or none`.

    Args:
        kind: the class of the pass.
        name: the name of the option.
    """
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
    """What an option means, in one line: the option's entry under `Args:` in a class's docstring.

    The docstrings of the class and then of its base classes are searched; '' if none has an entry.
    """
    for owner in kind.__mro__:
        if name in (described := _described(owner)):
            return described[name]
    return ""


def without_options(docstring: str) -> str:
    """`docstring`, in the form that `inspect.cleandoc` returns, without its section `Args:`."""
    return _SECTION.sub("", docstring).strip()


_SECTION = re.compile(r"^Args:\n((?:[ ]+.*\n?|\n)*)", re.MULTILINE)
_ENTRY = re.compile(r"^    (\w+(?:, \w+)*): (.*(?:\n {5,}.*)*)", re.MULTILINE)


def _described(kind: type[Any]) -> dict[str, str]:
    """The text of each entry under `Args:` in a class's own docstring, by the option's name."""
    section = _SECTION.search(inspect.cleandoc(vars(kind).get("__doc__") or ""))
    found: dict[str, str] = {}
    for names, text in _ENTRY.findall(section.group(1) if section else ""):
        found |= dict.fromkeys(names.split(", "), " ".join(text.split()))
    return found


@cache
def option_types(kind: type[Any]) -> dict[str, tuple[type, ...]]:
    """For each option of a pass class, its allowed types among bool, int, float, str and None.

    The tuple is empty for an option of any other type.
    """
    hints = _hints(kind)
    return {f.name: _plain_types(hints.get(f.name)) for f in fields(kind)}


@cache
def allowed_values(kind: type[Any]) -> dict[str, tuple[object, ...]]:
    """For each option of a pass class, the values of its `Literal` type; () for other types."""
    hints = _hints(kind)
    return {f.name: tuple(_literals(hints.get(f.name))) for f in fields(kind)}


def allowed_range(kind: type[Any], name: str) -> tuple[float, float] | None:
    """(smallest, largest) number that an option allows; None if its declaration sets no limits.

    Args:
        kind: the class of the pass.
        name: the name of the option.
    """
    (found,) = (f for f in fields(kind) if f.name == name)
    limits = _limits(found)
    return limits and (limits.least, limits.most)


def _hints(kind: type[Any]) -> dict[str, Any]:
    """The evaluated type annotations of a class; {} if one of them cannot be evaluated."""
    try:
        return get_type_hints(kind)
    except (NameError, TypeError):  # an annotation uses a name that only TYPE_CHECKING imports
        return {}


def _alternatives(hint: Any) -> tuple[Any, ...]:
    """The members of a union type such as `int | None`; for any other type, the type alone."""
    return get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)


def _literals(hint: Any) -> Iterator[object]:
    """The values of every `Literal` in a type annotation."""
    for each in _alternatives(hint):
        if get_origin(each) is Literal:
            yield from get_args(each)


def _plain_types(hint: Any) -> tuple[type, ...]:
    """The types bool, int, float, str and None in an annotation; () if it allows any other type."""
    found: list[Any] = []
    for each in _alternatives(hint):
        is_literal = get_origin(each) is Literal
        found += [type(value) for value in get_args(each)] if is_literal else [each]
    known = all(isinstance(each, type) and each in _WORDS for each in found)
    return tuple(dict.fromkeys(found)) if known else ()


def _limits(found: Field[Any]) -> _Limits | None:
    """The limits that `option` stored in the metadata of a field; None if there are none."""
    return found.metadata.get(_LIMITS)


def _fits(value: object, kind: type) -> bool:
    """Whether an option of type `kind` allows `value`.

    The type float also allows an int that converts to float exactly.
    """
    if isinstance(value, bool):  # in Python, bool is a subclass of int
        return kind is bool
    if kind is float and isinstance(value, int):
        return abs(value) <= _EXACT
    return isinstance(value, kind) and value == value  # False for NaN, which does not equal itself
