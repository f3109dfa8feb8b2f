"""The text forms of an epilogue function: a line that `parse_function` reads, and pseudo-code."""

from __future__ import annotations

import re
from collections.abc import Mapping

from coordgraph.epilogue.function import EpilogueFunction
from coordgraph.epilogue.operand import ACCUMULATOR, SUM, Operand
from coordgraph.epilogue.printing import plain
from coordgraph.epilogue.values import Argument, Constant, Step, known
from coordgraph.errors import VerifyError

__all__ = ["function_text", "parse_function", "statements"]

_WHOLE = re.compile(r"\s*([A-Za-z_]\w*)\s*\(([^()]*)\)\s*\{(.*)\}\s*")
_STEP = re.compile(r"%(\d+)\s*=\s*([A-Za-z_]\w*)\s*\(([^()]*)\)")
_VALUE = re.compile(r"%\d+|[A-Za-z_]\w*")
_NUMBERS = {"inf": float("inf"), "-inf": float("-inf"), "nan": float("nan")}
_TRUTHS = {"true": True, "false": False}


def function_text(function: EpilogueFunction) -> str:
    """The text form of an epilogue: `f(bias: n) { %0 = add(acc, bias); %1 = relu(%0); %1 }`."""
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
    name, operands, body = whole.groups()
    *lines, result = (line.strip() for line in body.split(";"))
    steps: list[Step] = []
    for line in lines:
        found = _STEP.fullmatch(line)
        if found is None or int(found[1]) != len(steps):
            raise VerifyError(
                f"epilogue {name}: step {line!r} cannot be read; write it as '%{len(steps)} = …(…)'"
            )
        steps.append(_step(found[2], found[3]))
    declared = [part.partition(":") for part in operands.split(",") if part.strip()]
    sums = tuple(word.strip() for word, _, rest in declared if rest.strip() == SUM)
    named = tuple(Operand.parse("".join(part)) for part in declared if part[2].strip() != SUM)
    return EpilogueFunction(name, named, tuple(steps), _argument(result), sums or (ACCUMULATOR,))


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

    Args:
        function: the epilogue.
        names: texts that replace the names of sums and operands, such as `bias[n]` for `bias`.
    """
    uses: dict[str, int] = {}
    for step in function.steps:
        for argument in step.arguments:
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
    result = shown(function.result)
    outer = result[1:-1] if result.startswith("(") and _matched(result) else result
    return lines if result == shown("acc") and not lines else [*lines, f"{shown('acc')} = {outer};"]


def _matched(text: str) -> bool:
    """True if the last character of a text closes the parenthesis that is its first character."""
    depth = 0
    for position, letter in enumerate(text):
        depth += (letter == "(") - (letter == ")")
        if not depth:
            return position == len(text) - 1
    return False
