"""Derive from type hints how the fields of dimensions, edges and operations are written and read.

The text form and plain data both use these shapes. Classes of dimensions, edges and operations that
are defined outside this library can therefore be written and read, too.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, dataclass, fields
from enum import Enum
from functools import cache
from inspect import get_annotations
from typing import Any, ClassVar, Literal, Union, cast, get_args, get_origin, get_type_hints

from sympy import Expr, Integer, Symbol
from sympy.logic.boolalg import Boolean

from coordgraph.epilogue import EpilogueFunction
from coordgraph.errors import VerifyError

__all__ = ["FieldSpec", "Kind", "Shape", "field_shapes", "record_fields", "required_fields"]


class Kind(Enum):
    """The kinds of values that fields of records may have, with their names in error messages."""

    INTEGER = "a whole number"
    STRING = "a word or a string"
    TRUTH = "true or false"
    EXPRESSION = "an integer expression"
    CONDITION = "a condition"
    FUNCTION = "an epilogue's function in quotes"
    TUPLE = "a list in parentheses"


@dataclass(frozen=True)
class Shape:
    """The type of a field's value, in the form that the text form and plain data need.

    Args:
        kind: the kind of value.
        optional: True if the value may be None.
        items: for a tuple, the type (`Shape`) of each item; an open tuple has one type for all
            items.
        open: True if a tuple may have any number of items.
    """

    kind: Kind
    optional: bool = False
    items: tuple[Shape, ...] = ()
    open: bool = False

    def part(self, position: int) -> Shape | None:
        """The type of a tuple field's item at `position`; None after the last item."""
        if self.open:
            return self.items[0]
        return self.items[position] if position < len(self.items) else None


@dataclass(frozen=True)
class FieldSpec:
    """A field of a dataclass: the field's name, the type of its values, and any default."""

    name: str
    shape: Shape
    default: Any = MISSING

    @property
    def required(self) -> bool:
        """True if the field has no default, so that the input must give the field a value."""
        return self.default is MISSING

    def is_default(self, value: object) -> bool:
        """True if `value` has the default's type and equals it; such a value is not written."""
        return not self.required and type(value) is type(self.default) and value == self.default


_LEAVES: dict[Any, Kind] = {
    bool: Kind.TRUTH,
    int: Kind.INTEGER,
    str: Kind.STRING,
    Expr: Kind.EXPRESSION,
    Boolean: Kind.CONDITION,
    EpilogueFunction: Kind.FUNCTION,
}
_EXPRESSIONS = {Expr, Integer, Symbol, int}
_COMMON_NAMES = {"Expr": Expr, "Boolean": Boolean, "ClassVar": ClassVar, "Literal": Literal}


@cache
def record_fields(cls: type[Any], without: tuple[str, ...] = ()) -> tuple[FieldSpec, ...]:
    """The fields of a dataclass in order, except fields named in `without`.

    Raises:
        VerifyError: the text form and plain data cannot express the type of a field.
    """
    wanted = [f for f in fields(cls) if f.init and f.name not in without]
    hints = _hints(cls)
    specs: list[FieldSpec] = []
    for f in wanted:
        shape = _shape(hints.get(f.name))
        if shape is None:
            raise VerifyError(
                f"{cls.__name__}.{f.name}: a field of type {f.type} has no written form; use int, "
                "str, bool, Expr, a Boolean condition, or tuples of them"
            )
        specs.append(FieldSpec(f.name, shape, _default(f)))
    return tuple(specs)


@cache
def field_shapes(cls: type[Any], without: tuple[str, ...] = ()) -> Mapping[str, Shape]:
    """The types of a dataclass's fields, by field name, except fields named in `without`."""
    return {spec.name: spec.shape for spec in record_fields(cls, without)}


@cache
def required_fields(cls: type[Any], without: tuple[str, ...] = ()) -> tuple[str, ...]:
    """The names of a dataclass's fields without a default, except fields named in `without`."""
    return tuple(spec.name for spec in record_fields(cls, without) if spec.required)


def _hints(cls: type[Any]) -> dict[str, Any]:
    """The type hints of a dataclass's fields.

    A hint with a name that is imported only for type checkers becomes None; other hints are
    resolved.
    """
    try:
        return get_type_hints(cls)
    except NameError:
        pass
    hints: dict[str, Any] = {}
    for base in reversed(cls.__mro__):
        for name, hint in get_annotations(base).items():
            alone = {"__annotations__": {name: hint}, "__module__": base.__module__}
            holder = type(name, (), alone)
            try:
                hints |= get_type_hints(holder, localns=_COMMON_NAMES)
            except NameError:
                hints[name] = None
    return hints


def _default(f: Field[Any]) -> Any:
    if f.default_factory is not MISSING:
        return cast("Callable[[], Any]", f.default_factory)()
    return f.default


def _shape(hint: Any) -> Shape | None:
    if hint in _LEAVES:
        return Shape(_LEAVES[hint])
    if isinstance(hint, type) and not get_args(hint):
        return _subclass(hint)
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Literal:
        kinds = {type(value) for value in arguments}
        return _shape(kinds.pop()) if len(kinds) == 1 else None
    if origin is tuple:
        repeated = len(arguments) == 2 and arguments[1] is ...
        items = tuple(map(_shape, arguments[:1] if repeated else arguments))
        if None in items:
            return None
        return Shape(Kind.TUPLE, items=cast("tuple[Shape, ...]", items), open=repeated)
    if origin in (Union, types.UnionType):
        return _union([a for a in arguments if a is not type(None)], type(None) in arguments)
    return None


def _subclass(hint: type[Any]) -> Shape | None:
    """The `Shape` for a type hint that is a subclass of sympy's `Expr` or `Boolean`, else None."""
    for base in (Boolean, Expr):
        if issubclass(hint, base):
            return Shape(_LEAVES[base])
    return None


def _union(members: list[Any], optional: bool) -> Shape | None:
    if len(members) > 1:
        if set(members) <= _EXPRESSIONS:
            return Shape(Kind.EXPRESSION, optional)
        return Shape(Kind.CONDITION, optional) if set(members) <= {Boolean, bool} else None
    inner = _shape(members[0])
    return inner and Shape(inner.kind, optional, inner.items, inner.open)
