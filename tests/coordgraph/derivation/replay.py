"""Evaluate the printed formulas of a derivation (see `KernelGraph.explain`) step by step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from coordgraph.derivation import Derivation
from coordgraph.integers import evaluate, index_symbol, parse_expression

__all__ = ["replayed"]


def replayed(derivation: Derivation, tables: Mapping[str, Sequence[int]]) -> tuple[int, bool]:
    """Recompute, from the printed formulas, the derived index and whether its guards hold.

    Every formula must evaluate to the value that the derivation prints beside it.

    Args:
        derivation: a derivation with a number for every index, not only formulas.
        tables: the entries of the tables that formulas read, by the table's name.

    Returns:
        The index, and True if all guards hold.
    """
    record = derivation.as_data()
    values: dict[str, Any] = {**tables}
    values.update({name: int(text) for name, text in record["given"].items()})
    for parameter in record["parameters"]:
        if parameter["formula"] is not None:
            assert value_of(parameter["formula"], values) == parameter["value"]
        values[parameter["name"]] = parameter["value"]
    inside = True
    for step in record["steps"]:
        for index in step["computes"]:
            if index["value"] is None:
                continue
            assert value_of(index["numbers"], tables) == index["value"]
            assert value_of(index["formula"], values) == index["value"]
            assert value_of(index["expression"], values) == index["value"]
            values[index["dimension"]] = index["value"]
        for guard in step["guards"]:
            if guard["applied"] is False:
                continue
            assert bool(value_of(guard["numbers"], tables)) == guard["value"]
            assert bool(value_of(guard["condition"], values)) == guard["value"]
            inside = inside and guard["value"]
    assert value_of(record["expression"], values) == record["value"]
    assert record["padding"] is not inside
    return record["value"], inside


def value_of(text: str, values: Mapping[str, Any]) -> int:
    return int(evaluate(parse_expression(text, index_symbol), values))
