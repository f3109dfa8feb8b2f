"""Mutations of a graph's plain data: wrong types, missing fields, nesting, large numbers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from random import Random
from typing import Any

from tests.fuzz.texts import mutated_expression

__all__ = ["mutated_data"]

INTEGERS = (0, 1, -1, 2, 3, 2**31 - 1, 2**31, 2**63 - 1, 2**63, -(2**63), 10**40)
OTHERS = (
    None,
    True,
    False,
    1.5,
    float("nan"),
    float("inf"),
    10**5000,
    "",
    "m",
    "é",
    [],
    {},
    [[]],
    "9" * 5000,
)


def mutated_data(text: str, draw: Random) -> Any:
    """Parse plain data from JSON, and change one to three values in it."""
    data = json.loads(text)
    for _ in range(draw.choice((1, 1, 1, 2, 3))):
        places = list(_places(data))
        holder, key = draw.choice(places)
        _change(holder, key, draw)
    return data


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every (container, key) inside a value of plain data."""
    pending = [value]
    while pending:
        held = pending.pop()
        for key in list(held) if isinstance(held, dict) else range(len(held)):
            yield held, key
            if isinstance(held[key], dict | list):
                pending.append(held[key])


def _change(holder: Any, key: Any, draw: Random) -> None:
    value = holder[key]
    kind = draw.random()
    if kind < 0.1:
        del holder[key]
    elif kind < 0.2 and isinstance(holder, list):
        holder.insert(draw.randrange(len(holder) + 1), value)
    elif kind < 0.3 and isinstance(holder, list):
        other = draw.randrange(len(holder))
        holder[key], holder[other] = holder[other], value
    elif kind < 0.35:
        for _ in range(draw.choice((1, 3, 300, 2000))):
            value = [value] if draw.random() < 0.5 else {"body": [value]}
        holder[key] = value
    elif kind < 0.4 and isinstance(holder, dict):
        holder[draw.choice((*holder, "body", "orelse", "size", "kind"))] = value
    elif kind < 0.5:
        holder[key] = draw.choice(OTHERS)
    elif isinstance(value, str):
        holder[key] = mutated_expression(value, draw)
    elif isinstance(value, bool):
        holder[key] = not value
    elif isinstance(value, int):
        holder[key] = draw.choice((value - 1, value + 1, *INTEGERS))
    elif isinstance(value, list):
        draw.shuffle(value)
    else:
        holder[key] = draw.choice((*INTEGERS, *OTHERS))
