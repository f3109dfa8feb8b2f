"""Print a derivation for readers: one numbered step for each edge, then the result."""

from __future__ import annotations

import re
from collections.abc import Iterator

from sympy import Integer
from sympy.logic.boolalg import false, true

from coordgraph.coordinates.traverse import Direction
from coordgraph.derivation.numbers import with_numbers
from coordgraph.derivation.record import (
    LINES,
    Address,
    Derivation,
    EdgeStep,
    GuardStep,
    IndexStep,
    Line,
    ParameterStep,
    Stride,
)
from coordgraph.integers import to_text

__all__ = ["lines"]

OPTIONS = re.compile(r"\{[^}]*\}")
"""Pattern of the options of a pass in the text form of a pipeline: they stand in braces."""
LONG = 120
"""A formula with at least this many characters is not printed again with numbers in place of
names."""


@LINES.implement
def lines(derivation: Derivation) -> list[Line]:
    """The lines of a derivation, as pieces of text with the names of their styles."""
    return list(_lines(derivation))


def _lines(derivation: Derivation) -> Iterator[Line]:
    made = f"   made by {derivation.origin}" if derivation.origin else ""
    yield [(derivation.wanted, "bold"), (f": {derivation.kind}", ""), (made, "dim")]
    yield []
    if derivation.given:
        given = ", ".join(_given(name, to_text(v)) for name, v in derivation.given.items())
        yield [("given  ", "dim"), (given, "")]
    for title, parameter in zip(_titles("with"), derivation.parameters, strict=False):
        yield [(title, "dim"), *_parameter(parameter)]
    for number, step in enumerate(derivation.steps, 1):
        yield []
        yield from _step(number, step)
    yield []
    yield from _result(derivation)


def _titles(first: str) -> Iterator[str]:
    yield f"{first:7}"
    while True:
        yield " " * 7


def _given(name: str, value: str) -> str:
    return name if name == value else f"{name} = {value}"


def _parameter(parameter: ParameterStep) -> Line:
    parts = [parameter.name]
    if parameter.formula is not None:
        parts.append(to_text(parameter.formula))
    if parameter.value is not None:
        parts.append(str(parameter.value))
    return [(" = ".join(parts), ""), (f"   {parameter.note}" if parameter.note else "", "dim")]


def _step(number: int, step: EdgeStep) -> Iterator[Line]:
    # Leave out the options of passes, which would make the line too long; `step.origin` has them.
    made = f"   made by {OPTIONS.sub('', step.origin)}" if step.origin else ""
    yield [(f"{number:3}  ", "dim"), (str(step.edge), "cyan"), (made, "dim")]
    for index in step.computes:
        yield from _index(index)
        if index.outside:
            why = f"{index.value} is outside {_range(index)}: no workgroup is at this point"
            yield [(f"       {why}", "red")]
    for guard in step.guards:
        yield _guard(guard)


def _index(index: IndexStep) -> Iterator[Line]:
    formula = to_text(index.formula)
    head = f"       {index.dimension} = "
    again = f"{'= ':>{len(head)}}"
    if index.value is None:
        yield [(head, ""), (formula, "")]
        whole = to_text(index.expression)
        if whole != formula:
            yield [(again, ""), (whole, "green")]
        return
    value = str(index.value)
    if formula == value:
        yield [(head, ""), (value, "green")]
        return
    # The formula is a single symbol, so its text with a number in place of the symbol is the value.
    if index.numbers.strip("()") == value:
        yield [(head, ""), (f"{formula} = ", ""), (value, "green")]
        return
    yield [(head, ""), (formula, "")]
    if len(index.numbers) <= LONG:
        yield [(again, ""), (index.numbers, "")]
    yield [(again, ""), (value, "green")]


def _range(index: IndexStep) -> str:
    """The range of a computed index: `0..255`."""
    return f"0..{index.last}" if index.last is not None and index.last >= 0 else "an empty range"


def _guard(guard: GuardStep) -> Line:
    line: Line = [("       guard ", "dim"), (to_text(guard.condition), "")]
    if guard.applies not in (true, false):
        line.append((f", which counts where {to_text(guard.applies)}", ""))
    if guard.value is None:
        return [*line, (", which always holds" if guard.always else "", "dim")]
    if guard.numbers != to_text(guard.condition):
        line.append((f": {guard.numbers}", ""))
    if guard.value:
        return [*line, (", true", "green")]
    return [*line, (", false: padding", "red") if guard.refuses else (", false, not needed", "dim")]


def _result(derivation: Derivation) -> Iterator[Line]:
    value, address = derivation.value, derivation.address
    expression = to_text(derivation.expression)
    head = f"{derivation.wanted} = "
    if value is None:
        yield [(head, "bold"), (expression, "bold green"), (_unit(address), "")]
    else:
        yield [(head, "bold"), (str(value), "bold green"), (_unit(address), "")]
        if expression != str(value):
            yield [(f"{'= ':>{len(head)}}", ""), (expression, "")]
    yield from _verdict(derivation)
    if address is not None:
        yield from _memory(address)


def _unit(address: Address | None) -> str:
    if address is None:
        return ""
    return " elements" if address.bytes is None else f" elements = {address.bytes} bytes"


def _verdict(derivation: Derivation) -> Iterator[Line]:
    """The line that says whether the index is padding, or is computed by no workgroup at all.

    There is no such line in the forward direction.
    """
    if derivation.direction is Direction.FORWARD:
        return
    guard = to_text(derivation.guard)
    if (index := derivation.outside) is not None:
        where = f"{index.dimension} = {index.value} is outside {_range(index)}"
        yield [(f"no workgroup is at this point: {where}", "red")]
    elif derivation.padding is None:
        never = derivation.guard == true
        yield [("never padding" if never else f"not padding where {guard}", "")]
    elif derivation.padding:
        yield [(f"padding, which the kernel does not access: {_false(derivation)} is false", "red")]
    else:
        yield [("not padding", "")]


def _false(derivation: Derivation) -> str:
    guards = (guard for step in derivation.steps for guard in step.guards if guard.refuses)
    return next(with_numbers(g.condition, {}) for g in guards)


def _memory(address: Address) -> Iterator[Line]:
    width, size = address.element_bytes, ""
    if address.size is not None:
        size = to_text(address.size)
        if address.length is not None and size != str(address.length):
            size += f" = {address.length}"
        size = f", {size} elements"
    yield [
        ("memory ", "dim"),
        (f"{address.memory}: {address.dtype}, {_count(width, 'byte')} an element{size}", ""),
    ]
    if address.inside is False:
        yield [("the offset is outside this memory", "red")]
    for title, stride in zip(_titles("stride"), address.strides, strict=False):
        yield [(title, "dim"), (_stride(stride, width), "")]


def _stride(stride: Stride, width: int) -> str:
    """The change of the address per step of a coordinate: `A.index.0: k elements, 2*k bytes`."""
    elements, value, head = stride.elements, stride.value, f"{stride.coordinate}: "
    if elements is None and value is None:
        return head + stride.note
    if value is None and isinstance(elements, Integer):
        value = int(elements)
    if value is None and elements is not None:
        return f"{head}{to_text(elements)} elements = {to_text(width * elements)} bytes"
    assert value is not None
    distance = f"{_count(value, 'element')} = {_count(value * width, 'byte')}"
    if elements is None:
        return f"{head}{stride.note}, here {distance}"
    formula = "" if isinstance(elements, Integer) else f"{to_text(elements)} = "
    return f"{head}{formula}{distance}"


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
