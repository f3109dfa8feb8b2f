"""The text forms of an epilogue function: a line that `parse_function` reads, and pseudo-code."""

from __future__ import annotations

import re
from collections.abc import Mapping

from coordgraph.epilogue.function import EpilogueFunction
from coordgraph.epilogue.operand import ACCUMULATOR, NOT_STORED, SUM, Operand
from coordgraph.epilogue.output import Output
from coordgraph.epilogue.printing import plain
from coordgraph.epilogue.values import Argument, Constant, Step, known
from coordgraph.errors import VerifyError

__all__ = ["function_text", "parse_function", "statements"]

_WHOLE = re.compile(r"\s*([A-Za-z_]\w*)\s*\(([^()]*)\)\s*(?:->([^{}]*))?\{(.*)\}\s*")
_STEP = re.compile(r"%(\d+)\s*=\s*([A-Za-z_]\w*)\s*\(([^()]*)\)")
_VALUE = re.compile(r"%\d+|[A-Za-z_]\w*")
_NUMBERS = {"inf": float("inf"), "-inf": float("-inf"), "nan": float("nan")}
_TRUTHS = {"true": True, "false": False}


def function_text(function: EpilogueFunction) -> str:
    """The text form of an epilogue: `f(bias: n) { %0 = add(acc, bias); %1 = relu(%0); %1 }`.

    Outputs besides D are declared behind an arrow, and their values follow that of D:
    `f(bias: n) -> pre: mn bf16 { %0 = add(acc, bias); %1 = relu(%0); %1, %0 }`.
    """
    return function.text()


def parse_function(text: str) -> EpilogueFunction:
    """Parse the text form of an epilogue, as `function_text` writes it.

    Raises:
        VerifyError: the text is malformed; the message quotes the wrong part.
    """
    whole = _WHOLE.fullmatch(text)
    if whole is None:
        raise VerifyError(
            f"the text {text!r} is not an epilogue; it should be as in "
            "'f(bias: n) { %0 = add(acc, bias); %0 }'"
        )
    name, operands, declared, body = whole.groups()
    *lines, results = (line.strip() for line in body.split(";"))
    steps: list[Step] = []
    for line in lines:
        found = _STEP.fullmatch(line)
        if found is None or int(found[1]) != len(steps):
            raise VerifyError(
                f"epilogue {name}: step {line!r} cannot be read; write it as '%{len(steps)} = …(…)'"
            )
        steps.append(_step(found[2], found[3]))
    parts = [part.partition(":") for part in operands.split(",") if part.strip()]
    sums = tuple(word.strip() for word, _, rest in parts if rest.strip() == SUM)
    named = tuple(Operand.parse("".join(part)) for part in parts if part[2].strip() != SUM)
    outputs = [part for part in (declared or "").split(",") if part.strip()]
    result, *values = (_argument(part.strip()) for part in results.split(","))
    if len(values) != len(outputs):
        raise VerifyError(
            f"epilogue {name} declares {len(outputs)} outputs besides D, but gives "
            f"{len(values)} values for them; give one for each"
        )
    stored = tuple(
        Output.parse(part.strip(), value) for part, value in zip(outputs, values, strict=True)
    )
    sums, stores_d = sums or (ACCUMULATOR,), result != NOT_STORED
    result = result if stores_d else sums[0]
    return EpilogueFunction(name, named, tuple(steps), result, stored, sums, stores_d)


def _step(operation: str, inside: str) -> Step:
    arguments: list[Argument] = []
    constants: dict[str, Constant] = {}
    for part in filter(None, map(str.strip, inside.split(","))):
        option = re.fullmatch(r"([A-Za-z_]\w*)\s*=(?!=)\s*(.+)", part)
        if option is None:
            arguments.append(_argument(part))
        elif option[2][0] in "'\"":
            constants[option[1]] = option[2][1:-1]
        else:
            constants[option[1]] = _argument(option[2])
    return Step(operation, tuple(arguments), known(operation).checked(constants))


def _argument(text: str) -> Argument:
    if text in _NUMBERS:
        return _NUMBERS[text]
    if text in _TRUTHS:
        return _TRUTHS[text]
    if _VALUE.fullmatch(text):
        return text
    try:
        return int(text) if re.fullmatch(r"-?\d+", text) else float(text)
    except ValueError:
        raise VerifyError(
            f"{text!r} in the text of an epilogue is neither the name of a value nor a number; "
            "declare it as an operand, or correct it"
        ) from None


def statements(function: EpilogueFunction, names: Mapping[str, str]) -> list[str]:
    """The epilogue as C-like statements, of which the last assigns the result to `acc`.

    Outputs besides D are stored before that assignment, which is left out if D is not stored.

    Args:
        function: the epilogue.
        names: texts that replace the names of sums, operands and outputs, such as `bias[n]` for
            `bias`.
    """
    uses: dict[str, int] = {}
    read = [argument for step in function.steps for argument in step.arguments]
    if function.outputs:
        read += (function.result,) if function.stores_d else ()
        read += (o.value for o in function.outputs)
    for argument in read:
        if isinstance(argument, str):
            uses[argument] = uses.get(argument, 0) + 1
    texts: dict[str, str] = {}
    lines: list[str] = []

    def shown(value: Argument) -> str:
        return texts.get(value, names.get(value, value)) if isinstance(value, str) else plain(value)

    for number, step in enumerate(function.steps):
        text = known(step.operation).text(*map(shown, step.arguments), **dict(step.constants))
        name = f"%{number}"
        if uses.get(name, 0) > 1:
            lines.append(f"auto t{number} = {text};")
            text = f"t{number}"
        texts[name] = text
    stores = [
        f"{shown(o.name)} = {o.reduce}{f'({value})' if o.reduce else value};"
        for o in function.outputs
        for value in (_bare(shown(o.value)),)
    ]
    result, sums = shown(function.result), shown(ACCUMULATOR)
    if not function.stores_d:
        return [*lines, *stores]
    if result == sums and not lines:
        return stores
    return [*lines, *stores, f"{sums} = {_bare(result)};"]


def _bare(text: str) -> str:
    """A text without the parentheses that enclose all of it."""
    return text[1:-1] if text.startswith("(") and _matched(text) else text


def _matched(text: str) -> bool:
    """True if the last character of a text closes the parenthesis that is its first character."""
    depth = 0
    for position, letter in enumerate(text):
        depth += (letter == "(") - (letter == ")")
        if not depth:
            return position == len(text) - 1
    return False
