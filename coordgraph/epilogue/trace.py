"""`@epilogue`: a decorator that traces a Python function once into an `EpilogueFunction`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Container, Sequence
from dataclasses import replace
from itertools import takewhile
from typing import Any

from coordgraph.epilogue.function import EpilogueFunction
from coordgraph.epilogue.operand import ACCUMULATOR, Operand
from coordgraph.epilogue.values import Tape, Value
from coordgraph.errors import VerifyError

__all__ = ["epilogue"]


def epilogue(
    *wrong: object, **operands: str | Operand
) -> Callable[[Callable[..., Any]], EpilogueFunction]:
    """A decorator that turns a function of sums and operands into an epilogue for `Gemm`.

    The function's first parameter is `acc`, the sum of products of an element of D. A function
    whose first two or more parameters are not declared computes an element of D from as many sums,
    one for each part of B's columns: `def swiglu(gate, up)`. See `Gemm.parts`.

    Args:
        wrong: positional arguments; any is an error, because the decorator takes keyword arguments
            only.
        operands: for each parameter of the function after the sums, the coordinates of D on which
            the operand's elements depend (`bias="n"`, `residual="mn"`, `scale=""`), or `operand(…)`
            to declare further properties.

    Raises:
        VerifyError: the names of the function's parameters and of `operands` differ, the result
            does not depend on an operand, or the function applies an operation to a value that
            cannot be traced.
    """
    if wrong:
        raise VerifyError(
            "@epilogue takes no positional argument; write @epilogue() with parentheses, and "
            'operands by name: @epilogue(bias="n")'
        )
    named = {name: _named(name, given) for name, given in operands.items()}

    def trace(function: Callable[..., Any]) -> EpilogueFunction:
        name = str(getattr(function, "__name__", ""))
        name = name if name.isidentifier() and name.isascii() else "unnamed"
        parameters = _parameters(name, function)
        sums = _sums(parameters, named)
        if not sums:
            raise VerifyError(
                f"epilogue {name}: its first parameter must be {ACCUMULATOR}, the sum of products; "
                f"write def {name}({ACCUMULATOR}, …), or def {name}(gate, up, …) for two sums"
            )
        own = parameters[len(sums) :]
        if wrong := sorted({*own} ^ named.keys()):
            said = "no parameter of the function" if wrong[0] in named else "not declared"
            raise VerifyError(
                f'epilogue {name}: {wrong[0]} is {said}; write @epilogue({wrong[0]}="mn") and '
                f"def {name}({', '.join(sums)}, {wrong[0]})"
            )
        tape = Tape()
        values = {p: Value(tape, p) for p in parameters}
        try:
            result = function(**values)
        except (TypeError, AttributeError) as error:
            raise VerifyError(
                f"epilogue {name}: {error}; traced values take + - * /, comparisons and the "
                "functions of coordgraph.epilogue, such as ep.exp for numpy.exp or math.exp"
            ) from error
        if not isinstance(result, Value) or result.tape is not tape:
            raise VerifyError(
                f"epilogue {name} returns {result!r}, which is not computed from acc; return a "
                "traced value"
            )
        every = tuple(named[p] for p in own)
        steps = tuple(tape.steps)
        live = EpilogueFunction(name, every, steps, result.name, sums).part(result.name)
        return EpilogueFunction(name, every, live.steps, live.result, sums)

    return trace


def _sums(parameters: Sequence[str], operands: Container[str]) -> tuple[str, ...]:
    """The parameters that are sums of products: `acc`, or two or more that are not declared.

    () if the first parameter is neither `acc` nor followed by another one that is not declared.
    """
    if parameters[:1] == [ACCUMULATOR]:
        return (ACCUMULATOR,)
    found = tuple(takewhile(lambda name: name not in operands, parameters))
    return found if len(found) > 1 else ()


def _named(name: str, given: object) -> Operand:
    """The operand that is declared by the keyword argument `name=given` of `@epilogue`."""
    if isinstance(given, Operand):
        return replace(given, name=name)
    if isinstance(given, str):
        return Operand(name, given)
    raise VerifyError(
        f'epilogue: {name}={given!r} is neither coordinates nor an operand; write {name}="n", or '
        f"{name}=operand(…)"
    )


def _parameters(name: str, function: Callable[..., Any]) -> list[str]:
    """The names of a function's parameters.

    Raises:
        VerifyError: Python cannot inspect the parameters, or a parameter cannot be passed by name.
    """
    try:
        found = inspect.signature(function).parameters
    except (TypeError, ValueError):
        raise VerifyError(
            f"epilogue {name}: Python cannot inspect the parameters of {function!r}; write a "
            "function, as in def f(acc)"
        ) from None
    for parameter in found.values():
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise VerifyError(
                f"epilogue {name}: the parameter {parameter} cannot be passed by name; declare "
                f"every operand as a parameter, as in def {name}(acc, bias)"
            )
    return [*found]
