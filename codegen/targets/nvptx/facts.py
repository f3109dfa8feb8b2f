"""`Facts`: the properties of a compiled program that its launches need, as plain data."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from sympy import Expr

from codegen.emit.arguments import Magic
from codegen.targets.nvptx.program import CudaProgram
from coordgraph import CoordGraphError
from coordgraph.integers import evaluate, index_symbol, parse_expression, to_text
from coordgraph.parameters import Assumption, Parameter, Parameters
from coordgraph.progress import wait_direction
from coordgraph.tables import Table, place_of
from coordgraph.tensors import Role, Tensor, dtype

__all__ = ["Facts"]


@dataclass(frozen=True)
class Facts:
    """The properties of a compiled program that its launches need.

    Args:
        threads: number of threads of a CTA.
        shared_bytes: size in bytes of the dynamic shared memory of a CTA.
        cluster: number of CTAs in one workgroup of the schedule (a cluster); 1 without clusters.
        overlaps: whether the kernel itself waits for earlier launches, so that it may start before
            they end.
        waits: whether workgroups wait for workgroups with `lower` or with `higher` numbers; `none`
            if no workgroup waits, `mixed` if both occur or nothing is proved.
        bytes_in_flight: number of bytes of operands that a thread's epilogue loads before it uses
            them.
        boxes: for each tensor that TMA copies, the shapes of its TMA boxes; each shape has a tensor
            map.
        parameters: the parameters of a launch, and the values that are computed from them.
        tensors: all tensors, in the order of the kernel's arguments.
        grid: the number of workgroups of the schedule, as an expression in the parameters.
        floats: (name, type) of each scalar operand of the epilogue; the type is f32 or i32.
        scalars: the integer arguments, as expressions in the parameters.
        divisors: the divisors that are known only at launch; for each, the host passes a
            multiplier and a shift (`Magic`).
    """

    threads: int
    shared_bytes: int
    cluster: int
    overlaps: bool
    waits: str
    bytes_in_flight: int
    boxes: dict[str, tuple[tuple[int, ...], ...]]
    parameters: Parameters
    tensors: tuple[Tensor, ...]
    grid: Expr
    floats: tuple[tuple[str, str], ...]
    scalars: tuple[Expr, ...]
    divisors: tuple[Expr, ...]

    @classmethod
    def of(cls, program: CudaProgram) -> Facts:
        """The `Facts` of `program`; generates its code first, which determines its arguments."""
        graph, arguments = program.lowered, program.walker.arguments
        _ = program.module
        grid = graph.workgroup.size
        assert grid is not None
        return cls(
            program.threads,
            program.shared_bytes,
            program.cluster,
            program.overlaps,
            wait_direction(program.graph),
            program.bytes_in_flight,
            dict(program.walker.boxes),
            graph.parameters,
            graph.tensors,
            grid,
            tuple(arguments.float_kinds.items()),
            tuple(scalar.value for scalar in arguments.scalars.values()),
            tuple(magic.divisor for magic in arguments.magics.values()),
        )

    @property
    def together(self) -> bool:
        """Whether all workgroups of a launch must be resident at once.

        That is needed if a workgroup may wait for a workgroup with a higher number, which may start
        later.
        """
        return self.waits in ("higher", "mixed")

    def workgroups(self, values: Mapping[str, int]) -> int:
        """The number of workgroups of a launch; `values`: the value of each parameter, by name."""
        return int(evaluate(self.grid, values))

    def integers(self, values: Mapping[str, int]) -> list[int]:
        """A launch's integer arguments, in order; `values`: each parameter's value, by name."""
        numbers = [int(evaluate(scalar, values)) for scalar in self.scalars]
        for divisor in self.divisors:
            numbers += Magic.numbers(int(evaluate(divisor, values)))
        return numbers

    def shape(self, tensor: Tensor, values: Mapping[str, int]) -> tuple[int, ...]:
        """The extents of a tensor, in elements; `values`: each parameter's value, by name."""
        return tuple(int(evaluate(extent, values)) for extent in tensor.shape)

    def strides(self, tensor: Tensor, values: Mapping[str, int]) -> tuple[int, ...] | None:
        """The strides of a tensor's axes, in elements; None for a row-major tensor without gaps.

        `values`: the value of each parameter, by name.
        """
        if tensor.strides is None:
            return None
        return tuple(int(evaluate(stride, values)) for stride in tensor.strides)

    # The following methods convert this object to plain data for JSON, and back.

    def to_json(self) -> dict[str, Any]:
        """This object as plain data for `json.dumps`; expressions become text."""
        return {
            "threads": self.threads,
            "shared_bytes": self.shared_bytes,
            "cluster": self.cluster,
            "overlaps": self.overlaps,
            "waits": self.waits,
            "bytes_in_flight": self.bytes_in_flight,
            "boxes": {name: [list(box) for box in boxes] for name, boxes in self.boxes.items()},
            "parameters": [
                [p.name, int(p.minimum), int(p.maximum), _text(p.value), p.note]
                for p in self.parameters.items
            ],
            "assumptions": [[to_text(a.expr), int(a.maximum)] for a in self.parameters.assumptions],
            "tables": [
                [t.name, to_text(t.length), to_text(t.maximum), _text(t.step), t.note, t.rule]
                for t in self.parameters.tables
            ],
            "tensors": [
                [t.name, t.dtype, _texts(t.shape), t.role.value, _texts(t.strides or ())]
                for t in self.tensors
            ],
            "grid": to_text(self.grid),
            "floats": [[name, kind] for name, kind in self.floats],
            "scalars": _texts(self.scalars),
            "divisors": _texts(self.divisors),
        }

    @classmethod
    def from_json(cls, data: Any) -> Facts:
        """The `Facts` that `to_json` has converted to the plain data `data`.

        Raises:
            ValueError: `data` does not have the form of the results of `to_json`.
        """
        try:
            return cls._read(data)
        except (CoordGraphError, KeyError, TypeError, ValueError, AttributeError) as error:
            raise ValueError(
                f"the data do not describe a kernel: {error}; use the result of to_json()"
            ) from error

    @classmethod
    def _read(cls, data: Mapping[str, Any]) -> Facts:
        """The `Facts` in the plain data `data`; any exception means that the data is malformed."""
        symbols: dict[str, Expr] = {}

        def read(text: str) -> Expr:
            return parse_expression(text, symbols.__getitem__)

        for name, *_ in data["tables"]:
            symbols |= {s.name: s for s in (index_symbol(name), place_of(name))}
        items: list[Parameter] = []
        for name, low, high, value, note in data["parameters"]:
            defined = None if value is None else read(value)
            items.append(Parameter(name, int(low), int(high), defined, note))
            symbols[name] = items[-1].symbol
        tables = tuple(
            Table(name, read(length), read(most), None if step is None else read(step), note, rule)
            for name, length, most, step, note, rule in data["tables"]
        )
        assumed = tuple(Assumption(read(text), int(most)) for text, most in data["assumptions"])
        return cls(
            int(data["threads"]),
            int(data["shared_bytes"]),
            int(data["cluster"]),
            bool(data["overlaps"]),
            str(data["waits"]),
            int(data["bytes_in_flight"]),
            {
                name: tuple(tuple(map(int, box)) for box in boxes)
                for name, boxes in data["boxes"].items()
            },
            Parameters(tuple(items), assumed, tables),
            tuple(
                Tensor(
                    name,
                    dtype(kind).name,
                    _each(read, shape),
                    Role(role),
                    _each(read, strides) or None,
                )
                for name, kind, shape, role, strides in data["tensors"]
            ),
            read(data["grid"]),
            tuple((str(name), str(kind)) for name, kind in data["floats"]),
            _each(read, data["scalars"]),
            _each(read, data["divisors"]),
        )


def _text(expression: Expr | None) -> str | None:
    """An expression as text; None stays None."""
    return None if expression is None else to_text(expression)


def _texts(expressions: Iterable[Expr]) -> list[str]:
    """The text of each expression."""
    return [to_text(e) for e in expressions]


def _each(read: Callable[[str], Expr], texts: Iterable[str]) -> tuple[Expr, ...]:
    """The parsed expressions of several texts; `read` parses one text."""
    return tuple(read(text) for text in texts)
