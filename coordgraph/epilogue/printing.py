"""Print an epilogue function as one line, which `coordgraph.epilogue.text` can parse."""

from __future__ import annotations

from collections.abc import Sequence

from coordgraph.epilogue.operand import Operand, sum_named
from coordgraph.epilogue.output import Output
from coordgraph.epilogue.values import Argument, Step

__all__ = ["line_of", "plain"]


def line_of(
    name: str,
    operands: Sequence[Operand],
    steps: Sequence[Step],
    result: Argument,
    outputs: Sequence[Output] = (),
    sums: Sequence[str] = (),
) -> str:
    """The text form of an epilogue: `f(bias: n) { %0 = add(acc, bias); %1 = relu(%0); %1 }`.

    Outputs besides D are declared behind an arrow, and their values follow that of D:
    `f(bias: n) -> pre: mn bf16 { %0 = add(acc, bias); %1 = relu(%0); %1, %0 }`. `sums` are the
    names of the sums of products if the function has several: `f(gate: sum, up: sum, …)`. The
    value of D is `none` if D is not stored.
    """
    declared = ", ".join([*map(sum_named, sums), *(o.text() for o in operands)])
    stored = f" -> {', '.join(o.text() for o in outputs)}" if outputs else ""
    values = ", ".join(plain(value) for value in (result, *(o.value for o in outputs)))
    lines = [
        f"%{number} = {step.operation}({', '.join(_parts(step))})"
        for number, step in enumerate(steps)
    ]
    return f"{name}({declared}){stored} {{ {'; '.join([*lines, values])} }}"


def _parts(step: Step) -> list[str]:
    constants = (
        f"{n}={v!r}" if isinstance(v, str) else f"{n}={plain(v)}" for n, v in step.constants
    )
    return [*map(plain, step.arguments), *constants]


def plain(value: Argument) -> str:
    """The text of an operation's argument: a name such as `%0`, or a number with all its digits."""
    if isinstance(value, bool):
        return str(value).lower()
    return value if isinstance(value, str) else repr(value)
