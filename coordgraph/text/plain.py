"""Convert kernel graphs to and from plain data for JSON: dicts, lists, strings and numbers.

An expression becomes a string in the syntax of the text form. Keys are the field names of the
classes; a field that has its default value is omitted.
"""

from __future__ import annotations

from collections.abc import Mapping
from reprlib import repr as shown
from typing import Any, TypeVar, cast

from coordgraph.collection import collection_paused
from coordgraph.control.operations import OPERATIONS, Operation
from coordgraph.coordinates.dimensions import DIMENSIONS
from coordgraph.coordinates.edges import EDGES
from coordgraph.epilogue import function_text
from coordgraph.errors import VerifyError
from coordgraph.foreign_graphs import faults_named
from coordgraph.frontend import Gemm
from coordgraph.integers.text import MAX_DIGITS
from coordgraph.kernel import JSON, KernelGraph
from coordgraph.provenance.record import Origin, Part
from coordgraph.tables import SUMS
from coordgraph.text.build import build
from coordgraph.text.origins import NUMBERED
from coordgraph.text.printer import Expressions, origins
from coordgraph.text.raw import (
    MAX_NESTING,
    VERSION,
    Path,
    RawAssumption,
    RawExpression,
    RawGraph,
    RawOperation,
    RawOrigin,
    RawParameter,
    RawRecord,
    RawTable,
    RawTensor,
    Where,
    function_at,
    suggest,
)
from coordgraph.text.shapes import Kind, Shape, field_shapes, record_fields
from coordgraph.text.symbols import free_symbols

__all__ = ["from_json", "to_json"]

T = TypeVar("T")
_PARTS = (
    "coordgraph",
    "gemm",
    "level",
    "symbols",
    "parameters",
    "tables",
    "assumptions",
    "tensors",
    "dimensions",
    "edges",
    "control",
    "log",
    "origins",
)


@JSON.implement
def to_json(graph: KernelGraph, *, provenance: bool = False) -> dict[str, Any]:
    """Convert a graph to plain data, which `from_json` reads back.

    Args:
        graph: the graph.
        provenance: whether to also write the origin of each record that passes made or changed.

    Raises:
        VerifyError: plain data cannot express part of the graph, such as an operation nested too
            deep, or an expression or field of an unknown type.
    """
    write = _Writer()
    text = write.expression
    return {
        "coordgraph": VERSION,
        "gemm": write.record(graph.gemm),
        "level": graph.level,
        "symbols": {
            s.name: "positive" if s.is_positive else "nonnegative" for s in free_symbols(graph)
        },
        "parameters": [
            {"name": p.name, "minimum": int(p.minimum), "maximum": int(p.maximum)}
            | ({} if p.value is None else {"value": text(p.value)})
            | ({"note": p.note} if p.note else {})
            for p in graph.parameters.items
        ],
        "assumptions": [
            {"expr": text(a.expr), "maximum": int(a.maximum)} for a in graph.parameters.assumptions
        ],
        "tables": [
            {"name": known.name, "length": text(known.length), "maximum": text(known.maximum)}
            | ({} if known.step is None else {"step": text(known.step)})
            | ({} if known.rule == SUMS else {"rule": known.rule})
            | ({"note": known.note} if known.note else {})
            for known in graph.parameters.tables
        ],
        "tensors": [
            {
                "name": t.name,
                "dtype": t.dtype,
                "shape": [text(extent) for extent in t.shape],
                "role": t.role.value,
            }
            | ({} if t.strides is None else {"strides": [text(stride) for stride in t.strides]})
            for t in graph.tensors
        ],
        "dimensions": [{"kind": d.kind, **write.record(d)} for d in graph.coordinates],
        "edges": [{"kind": e.kind, **write.record(e)} for e in graph.coordinates.edges],
        "control": write.operation(graph.control.root),
        "log": list(graph.log),
        **({"origins": [_origin(*each) for each in origins(graph)]} if provenance else {}),
    }


def _origin(part: Part, key: str | int, origin: Origin) -> dict[str, Any]:
    found: dict[str, Any] = {"part": part.value, "key": key, "made": origin.made}
    if origin.sources:
        found["sources"] = list(origin.sources)
    return found | ({"changed": list(origin.changed)} if origin.changed else {})


class _Writer:
    def __init__(self) -> None:
        self.expression = Expressions()

    def record(self, record: Any, without: tuple[str, ...] = ()) -> dict[str, Any]:
        return {
            spec.name: self._value(spec.shape, value)
            for spec in record_fields(type(record), without=without)
            if not spec.is_default(value := getattr(record, spec.name))
        }

    def operation(self, op: Operation, depth: int = 0) -> dict[str, Any]:
        if depth > MAX_NESTING:
            raise VerifyError(
                f"operations nest more than {MAX_NESTING} levels deep; use fewer levels"
            )
        bodies = {
            name: [self.operation(child, depth + 1) for child in body]
            for name in op.BODIES
            if (body := getattr(op, name))
        }
        return {"kind": op.kind, **self.record(op, op.BODIES), **bodies}

    def _value(self, shape: Shape, given: object) -> Any:
        if given is None and shape.optional:
            return None
        value = cast("Any", given)
        match shape.kind:
            case Kind.INTEGER:
                return int(value)
            case Kind.STRING:
                return str(value)
            case Kind.TRUTH:
                return bool(value)
            case Kind.EXPRESSION | Kind.CONDITION:
                return self.expression(value)
            case Kind.FUNCTION:
                return function_text(value)
            case Kind.TUPLE:
                parts = ((shape.part(i), v) for i, v in enumerate(value))
                return [self._value(s, v) for s, v in parts if s is not None]


def from_json(data: Mapping[str, Any]) -> KernelGraph:
    """Read a graph from plain data, such as `json.load` returns.

    Raises:
        VerifyError: the data is malformed, names something unknown, or breaks a rule of the graph;
            the message starts with the path of the wrong value, such as `dimensions[3].size`.
    """
    if isinstance(data, str | bytes):
        raise VerifyError(
            "graph: from_json takes the plain data that json.loads returns, not its text; write "
            "from_json(json.loads(text))"
        )
    with collection_paused(), faults_named("reading the graph"):
        return build(_read_graph(data, Path("")))


def _read_graph(data: Any, at: Path) -> RawGraph:
    top = _mapping(data, at)
    if (version := top.get("coordgraph")) != VERSION:
        raise at.error(
            f"the field 'coordgraph' gives the format version {shown(version)}; only {VERSION} can "
            "be read: write the graph again with this version of the library"
        )
    raw = RawGraph(at)
    for name in top:
        if name not in _PARTS:
            raise at.error(f"a graph has no field '{name}'{suggest(str(name), _PARTS)}")
    if "gemm" not in top:
        raise at.error(
            "the field 'gemm' is missing; it describes the problem, as in {\"dtype\": \"bf16\"}"
        )
    raw.gemm = RawRecord(Gemm, at / "gemm")
    _read_fields(raw.gemm, _mapping(top["gemm"], at / "gemm"), at / "gemm", ())
    if "level" in top:
        raw.level, raw.level_at = _string(top["level"], at / "level"), at / "level"
    raw.symbols = _read_symbols(top.get("symbols", {}), at / "symbols")
    raw.parameters = [_read_parameter(v, here) for here, v in _items(top, at, "parameters")]
    raw.tables = [_read_table(v, here) for here, v in _items(top, at, "tables")]
    raw.assumptions = [_read_assumption(v, here) for here, v in _items(top, at, "assumptions")]
    raw.tensors = [_read_tensor(v, here) for here, v in _items(top, at, "tensors")]
    raw.dimensions = [
        _read_record(v, here, DIMENSIONS, "kind of dimension")
        for here, v in _items(top, at, "dimensions")
    ]
    raw.edges = [_read_record(v, here, EDGES, "edge") for here, v in _items(top, at, "edges")]
    if "control" in top:
        raw.root = _read_operation(top["control"], at / "control", 0)
    raw.log = [_string(v, here) for here, v in _items(top, at, "log")]
    raw.origins = [_read_origin(v, here) for here, v in _items(top, at, "origins")]
    return raw


def _read_origin(item: Any, at: Path) -> RawOrigin:
    entry = _only(item, at, "part", "key", "made", "sources", "changed")
    part, key = _string(entry.get("part"), at / "part"), entry.get("key")
    read = _number if part in NUMBERED else _string
    sources, changed = (
        tuple(_string(v, here) for here, v in _items(entry, at, name))
        for name in ("sources", "changed")
    )
    origin = Origin(_string(entry.get("made"), at / "made"), sources, changed)
    return RawOrigin(part, read(key, at / "key"), at, origin)


def _read_symbols(value: Any, at: Path) -> list[tuple[str, bool, Where]]:
    found: list[tuple[str, bool, Where]] = []
    for name, sort in _mapping(value, at).items():
        here = at / str(name)
        if sort not in ("positive", "nonnegative"):
            raise here.error(
                f"the sign of a symbol is 'positive' or 'nonnegative', not {shown(sort)}; give one "
                "of them"
            )
        found.append((str(name), sort == "positive", here))
    return found


def _read_assumption(item: Any, at: Path) -> RawAssumption:
    entry = _only(item, at, "expr", "maximum")
    expr = RawExpression(_string(entry.get("expr"), at / "expr"), at / "expr")
    return RawAssumption(expr, _number(entry.get("maximum"), at / "maximum"))


def _read_table(item: Any, at: Path) -> RawTable:
    entry = _only(item, at, "name", "length", "maximum", "step", "rule", "note")
    length, maximum = (
        RawExpression(_string(entry.get(part), at / part), at / part)
        for part in ("length", "maximum")
    )
    step = entry.get("step")
    return RawTable(
        _string(entry.get("name"), at / "name"),
        at,
        length,
        maximum,
        None if step is None else RawExpression(_string(step, at / "step"), at / "step"),
        _string(entry.get("rule", SUMS), at / "rule"),
        _string(entry.get("note", ""), at / "note"),
    )


def _read_parameter(item: Any, at: Path) -> RawParameter:
    entry = _only(item, at, "name", "minimum", "maximum", "value", "note")
    value = entry.get("value")
    return RawParameter(
        _string(entry.get("name"), at / "name"),
        at,
        _number(entry.get("minimum"), at / "minimum"),
        _number(entry.get("maximum"), at / "maximum"),
        None if value is None else RawExpression(_string(value, at / "value"), at / "value"),
        _string(entry.get("note", ""), at / "note"),
    )


def _read_tensor(item: Any, at: Path) -> RawTensor:
    entry = _only(item, at, "name", "dtype", "shape", "role", "strides")
    return RawTensor(
        _string(entry.get("name"), at / "name"),
        at,
        _string(entry.get("dtype"), at / "dtype"),
        [RawExpression(_string(v, here), here) for here, v in _items(entry, at, "shape")],
        _string(entry.get("role"), at / "role"),
        at / "role",
        [RawExpression(_string(v, here), here) for here, v in _items(entry, at, "strides")] or None,
    )


def _read_record(item: Any, at: Path, registry: Mapping[str, type[Any]], what: str) -> RawRecord:
    entry = _mapping(item, at)
    raw = RawRecord(_class(entry, at, registry, what), at)
    _read_fields(raw, entry, at, ())
    for side in ("upstream", "downstream"):
        if registry is EDGES and side not in raw.values:
            raise at.error(
                f"the edge has no field '{side}'; give it a list of the ids of {side} dimensions"
            )
    return raw


def _read_operation(item: Any, at: Path, depth: int) -> RawOperation:
    if depth > MAX_NESTING:
        raise at.error(f"operations nest more than {MAX_NESTING} levels deep; use fewer levels")
    entry = _mapping(item, at)
    cls: type[Operation] = _class(entry, at, OPERATIONS, "operation")
    raw = RawOperation(cls, at)
    _read_fields(raw, entry, at, cls.BODIES)
    for name in cls.BODIES:
        raw.bodies[name] = [
            _read_operation(child, here, depth + 1) for here, child in _items(entry, at, name)
        ]
    return raw


def _class(
    entry: Mapping[str, Any], at: Path, registry: Mapping[str, type[T]], what: str
) -> type[T]:
    name = _string(entry.get("kind"), at / "kind")
    if name not in registry:
        raise (at / "kind").error(f"unknown {what} '{name}'{suggest(name, registry)}")
    return registry[name]


def _read_fields(
    raw: RawRecord, entry: Mapping[str, Any], at: Path, bodies: tuple[str, ...]
) -> None:
    known = field_shapes(raw.cls, bodies)
    for name, value in entry.items():
        if name in known:
            raw.places[name] = at / name
            raw.values[name] = _read_value(known[name], value, at / name)
        elif name not in bodies and name != "kind":
            raise at.error(f"{raw.cls.__name__} has no field '{name}'{suggest(name, known)}")


def _read_value(shape: Shape, value: Any, at: Path) -> Any:
    if value is None and shape.optional:
        return None
    match shape.kind:
        case Kind.INTEGER:
            return _number(value, at)
        case Kind.STRING:
            return _string(value, at)
        case Kind.TRUTH:
            if not isinstance(value, bool):
                raise at.error(f"true or false is needed here, not {shown(value)}")
            return value
        case Kind.EXPRESSION | Kind.CONDITION:
            return RawExpression(_string(value, at), at, shape.kind is Kind.CONDITION)
        case Kind.FUNCTION:
            return function_at(_string(value, at), at)
        case Kind.TUPLE:
            values = [v for _, v in _items({"": value}, at, "")]
            if not shape.open and len(values) != len(shape.items):
                raise at.error(f"{len(shape.items)} values are needed here, not {len(values)}")
            parts = ((i, shape.part(i), v) for i, v in enumerate(values))
            return tuple(_read_value(s, v, at / i) for i, s, v in parts if s is not None)


def _mapping(value: Any, at: Path) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise at.error(
            f"a mapping is needed here, not {type(value).__name__}; give names and their values"
        )
    return cast("Mapping[str, Any]", value)


def _only(value: Any, at: Path, *names: str) -> Mapping[str, Any]:
    entry = _mapping(value, at)
    for name in entry:
        if name not in names:
            raise at.error(f"unknown field '{name}'{suggest(str(name), names)}")
    return entry


def _items(entry: Mapping[str, Any], at: Path, name: str) -> list[tuple[Path, Any]]:
    """The items of the list `entry[name]`, each with its path; none if the list is absent."""
    here, value = (at / name if name else at), entry.get(name, [])
    if not isinstance(value, list | tuple):
        raise here.error(
            f"a list is needed here, not {type(value).__name__}; put the value into a list"
        )
    return [(here / i, v) for i, v in enumerate(cast("list[Any]", value))]


def _string(value: Any, at: Path) -> str:
    if not isinstance(value, str):
        raise at.error(
            "the value is missing; give a string"
            if value is None
            else f"a string is needed here, not {shown(value)}"
        )
    return value


def _number(value: Any, at: Path) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise at.error(
            "the value is missing; give a whole number"
            if value is None
            else f"a whole number is needed here, not {shown(value)}"
        )
    if abs(value) >= 10**MAX_DIGITS:
        raise at.error(
            f"the number has more than {MAX_DIGITS} digits, the limit of the text form; give a "
            "smaller number"
        )
    return value
