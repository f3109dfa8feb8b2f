"""`@epilogue`: a decorator that traces a Python function once into an `EpilogueFunction`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Container, Sequence
from dataclasses import replace
from itertools import takewhile
from typing import Any, cast

from coordgraph.epilogue.function import EpilogueFunction
from coordgraph.epilogue.operand import ACCUMULATOR, Operand
from coordgraph.epilogue.output import Output
from coordgraph.epilogue.values import Tape, Value
from coordgraph.errors import VerifyError
from coordgraph.problem_names import RESERVED

__all__ = ["epilogue"]


def epilogue(
    *wrong: object, **operands: str | Operand | Output
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
            to declare further properties. `index("n")` declares an index of the element of D, which
            the kernel computes. `output(…)` declares an output besides D instead, which
            is no parameter: the function returns a tuple, the value of D and then the value of
            every output in the order of their declarations. None as the value of D means that D is
            not stored.

    Raises:
        VerifyError: the names of the function's parameters and of `operands` differ, kernels or
            their calls use one of these names for something else, the result does not depend on an
            operand, the function does not return a value for D and for each output, or the function
            applies an operation to a value that cannot be traced.
    """
    if wrong:
        raise VerifyError(
            "@epilogue takes no positional argument; write @epilogue() with parentheses, and "
            'operands by name: @epilogue(bias="n")'
        )
    stored = {name: o for name, o in operands.items() if isinstance(o, Output)}
    named = {name: _named(name, o) for name, o in operands.items() if name not in stored}

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
        if wrong := sorted(stored.keys() & {*parameters}):
            raise VerifyError(
                f"epilogue {name}: {wrong[0]} is an output, so it cannot be a parameter; remove "
                "the parameter, and return the output's value after that of D"
            )
        if wrong := sorted({*own} ^ named.keys()):
            raise VerifyError(
                f"epilogue {name}: {_mismatch(wrong[0], name, parameters, named)}; the decorator "
                "must declare every parameter after the sums, and no other operand"
            )
        for each in operands:
            # Python would take such an operand of a call for another argument of the call.
            if each in RESERVED:
                what = "output" if each in stored else "operand"
                raise VerifyError(
                    f"epilogue {name}: the {what} '{each}' has a name that kernels and their calls "
                    f"already use; rename the {what}"
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
        first, more = _results(name, result, tuple(stored), tape)
        every = tuple(named[p] for p in own)
        outputs = tuple(
            replace(each, name=which, value=value.name)
            for (which, each), value in zip(stored.items(), more, strict=True)
        )
        of_d = (sums[0], False) if first is None else (first.name, True)
        steps = tuple(tape.steps)
        traced = EpilogueFunction(name, every, steps, of_d[0], outputs, sums, of_d[1])
        live = traced.part(of_d[0], outputs=outputs)
        return replace(traced, steps=live.steps, result=live.result, outputs=live.outputs)

    return trace


def _results(
    name: str, given: object, outputs: tuple[str, ...], tape: Tape
) -> tuple[Value | None, list[Value]]:
    """The values that a traced function returned: (that of D, those of all other outputs).

    The value of D is None if D is not stored.

    Args:
        name: the name of the function.
        given: the value, or the tuple of values, that the Python function returned.
        outputs: the names of the outputs besides D.
        tape: the `Tape` that recorded the operations of the function.

    Raises:
        VerifyError: there is not one traced value for each output.
    """
    values = cast("tuple[object, ...]", given) if isinstance(given, tuple) else (given,)
    if len(values) != 1 + len(outputs) or (isinstance(given, tuple) and not outputs):
        wanted = ", ".join(("D", *outputs))
        declare = "" if outputs else '; declare further outputs, as in pre=output("mn")'
        raise VerifyError(
            f"epilogue {name} returns {len(values)} values in a tuple, but its outputs are "
            f"{wanted}; return a value for each of them, in this order{declare}"
            if isinstance(given, tuple)
            else f"epilogue {name} returns one value, but its outputs are {wanted}; return a tuple "
            "with a value for each of them, in this order"
        )
    found: list[Value] = []
    # None leaves D unstored if there are other outputs. Otherwise a kernel would store nothing, so
    # None is refused, like every value that is no traced value.
    unstored = bool(outputs) and values[0] is None
    for value in values[unstored:]:
        if not isinstance(value, Value) or value.tape is not tape:
            raise VerifyError(
                f"epilogue {name} returns {value!r}, which is not computed from acc; return a "
                "traced value"
            )
        found.append(value)
    return (None, found) if unstored else (found[0], found[1:])


def _sums(parameters: Sequence[str], operands: Container[str]) -> tuple[str, ...]:
    """The names of the parameters that are sums of products.

    These are `acc`, if the first parameter is `acc`; otherwise all parameters before the first one
    that `operands` declares, if these are two or more. The result is () in all other cases.
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


def _mismatch(wrong: str, name: str, parameters: Sequence[str], declared: Collection[str]) -> str:
    """The error message for a name that is only an operand in `@epilogue(…)`, or only a parameter.

    Args:
        wrong: the name that only the decorator, or only the function, has.
        name: the name of the function.
        parameters: the function's parameters.
        declared: the names that the decorator declares.
    """
    if wrong not in declared:
        return (
            f'{wrong} is not declared; write @epilogue({wrong}="mn") and def {name}(acc, {wrong})'
        )
    return (
        f"{wrong} is no parameter of the function, whose parameters are {', '.join(parameters)}; "
        f"declare the operand under its parameter's name, or write def {name}(acc, {wrong})"
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
