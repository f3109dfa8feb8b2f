"""`EpilogueFunction`: a traced epilogue, as a frozen record of elementwise steps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from coordgraph.epilogue.emitter import Emitter
from coordgraph.epilogue.kinds import Kinds, kinds_of, value_kind
from coordgraph.epilogue.operand import ACCUMULATOR, NOT_STORED, Operand, sum_named
from coordgraph.epilogue.operation import NUMPY_KINDS, Array, emitted
from coordgraph.epilogue.output import Output
from coordgraph.epilogue.printing import line_of
from coordgraph.epilogue.values import Argument, Step, known
from coordgraph.errors import CodegenError, VerifyError

__all__ = ["EpilogueFunction", "Kinds", "value_kind"]


@dataclass(frozen=True, repr=False)
class EpilogueFunction:
    """An epilogue: computes each element of D from one or several sums of products and operands.

    The function may also compute elements of further outputs from the same values.

    Args:
        name: the name of the Python function.
        operands: the arguments of the function other than sums.
        steps: the operations in order. Step i computes the value `%i` from sums, operands, earlier
            values and numbers.
        result: the name of the value that is converted to D's type and stored; the name of the
            first sum if D is not stored.
        outputs: the outputs besides D, each with the name of its value.
        sums: the names of the sums of products: `acc`, or the names of several sums, one for each
            part of B's columns, as in `silu(gate) * up`.
        stores_d: whether D is stored; if not, `outputs` has all that the function computes.
    """

    name: str
    operands: tuple[Operand, ...]
    steps: tuple[Step, ...]
    result: Argument
    outputs: tuple[Output, ...] = ()
    sums: tuple[str, ...] = (ACCUMULATOR,)
    stores_d: bool = True

    def __post_init__(self) -> None:
        names = [o.name for o in self.operands]
        declared = [*names, *(o.name for o in self.outputs)]
        self._check_sums()
        if len({*declared, *self.sums}) < len(declared) + len(self.sums):
            what = "operands and outputs" if self.outputs else "operands"
            raise VerifyError(
                f"epilogue {self.name}: the {what} {', '.join(declared)} contain a name twice, or "
                f"the name {' or '.join(self.sums)} of a sum of products; rename one"
            )
        seen = {*self.sums, *names}
        for number, step in enumerate(self.steps):
            operation = known(step.operation)
            operation.checked(dict(step.constants))
            if len(step.arguments) != operation.arity:
                raise VerifyError(
                    f"epilogue {self.name}: {step.operation} takes {operation.arity} values, but "
                    f"{len(step.arguments)} are given; correct the step"
                )
            for argument in step.arguments:
                if isinstance(argument, str) and argument not in seen:
                    raise VerifyError(
                        f"epilogue {self.name}: step %{number} uses '{argument}', which is neither "
                        f"{' nor '.join(self.sums)}, nor an operand, nor an earlier step; use one "
                        "of them"
                    )
            seen.add(f"%{number}")
        for value in self._stored:
            if not isinstance(value, str) or value not in seen:
                raise VerifyError(
                    f"epilogue {self.name} returns {value!r}, which is neither "
                    f"{' nor '.join(self.sums)}, nor an operand, nor a step such as %0; return one "
                    "of them"
                )
        self._check_result()
        used = frozenset[str]().union(*map(self.needs, self._stored))
        if unused := [name for name in names if name not in used]:
            result = "no output depends" if self.outputs else "its result does not depend"
            raise VerifyError(
                f"epilogue {self.name}: {result} on the operand {unused[0]}; remove the operand"
            )

    def _check_result(self) -> None:
        """Check that a function that does not store D has outputs, and returns its first sum."""
        if self.stores_d:
            return
        if not self.outputs:
            raise VerifyError(
                f"epilogue {self.name} stores nothing: it has neither D nor other outputs; return "
                'a value for D, or declare an output, as in total=output("m", reduce="sum")'
            )
        if self.result != self.sums[0]:
            raise VerifyError(
                f"epilogue {self.name} does not store D, so its result must be {self.sums[0]}, "
                f"not {self.result}; change the result"
            )

    def _check_sums(self) -> None:
        """Check the names of the function's sums of products: `acc` if there is only one."""
        if not self.sums or (len(self.sums) == 1 and self.sums != (ACCUMULATOR,)):
            raise VerifyError(
                f"epilogue {self.name}: its sums of products are ({', '.join(self.sums)}); name "
                f"the only sum {ACCUMULATOR}, or give two or more sums"
            )
        for name in self.sums:
            sum_named(name)

    @property
    def _stored(self) -> tuple[Argument, ...]:
        """The names of the values that are stored: first D's, then those of all other outputs."""
        return self.result, *(o.value for o in self.outputs)

    @property
    def exchanged(self) -> EpilogueFunction:
        """An epilogue that computes the transpose of D: m and n are exchanged in operands' axes."""
        return replace(self, operands=tuple(o.exchanged for o in self.operands))

    def text(self) -> str:
        """The text form of the function: `f(bias: n) { %0 = add(acc, bias); %0 }`."""
        several = self.sums if len(self.sums) > 1 else ()
        result = self.result if self.stores_d else NOT_STORED
        return line_of(self.name, self.operands, self.steps, result, self.outputs, several)

    def __repr__(self) -> str:
        return f"<epilogue {self.text()}>"

    def operand(self, name: str) -> Operand | None:
        """The operand named `name`, or None if the function has no such operand."""
        return next((o for o in self.operands if o.name == name), None)

    @cached_property
    def scalars(self) -> tuple[Operand, ...]:
        """The operands that a launch passes by value (single numbers)."""
        return tuple(o for o in self.operands if o.is_scalar)

    @cached_property
    def tensors(self) -> tuple[Operand, ...]:
        """The operands that the kernel reads from tensors in memory."""
        return tuple(o for o in self.operands if not o.is_scalar and not o.index)

    @cached_property
    def indices(self) -> tuple[Operand, ...]:
        """The operands that are indices of the element of D, which the kernel computes."""
        return tuple(o for o in self.operands if o.index)

    @cached_property
    def registers(self) -> int:
        """The largest number of 32-bit registers that an operation needs for temporaries on a GPU.

        Arguments and results of operations are not counted.
        """
        return max((known(step.operation).temporaries for step in self.steps), default=0)

    def kinds(self, accumulator: str, default: str) -> Kinds:
        """The kinds (f32, f64, i32 or bool) of all values of the function.

        Args:
            accumulator: the element type of the sums.
            default: the element type of D, and of operands with axes but without a declared type.

        Raises:
            VerifyError: the arguments of a step differ in kind, or have a kind that the step's
                operation does not support.
        """
        every = (self.sums, self.operands, self.steps, self.result, self.outputs)
        return kinds_of(self.name, *every, accumulator, default)

    def evaluate(self, values: Mapping[str, Array], accumulator: str, default: str) -> Array:
        """The value of D, evaluated with NumPy; generated code is tested against it.

        Args:
            values: the arrays of every sum and operand by name, which broadcast together.
            accumulator: the element type of the sums.
            default: the element type of D, and of operands with axes but without a declared type.
        """
        result, _ = self.evaluate_all(values, accumulator, default)
        return result

    def evaluate_all(
        self, values: Mapping[str, Array], accumulator: str, default: str
    ) -> tuple[Array, dict[str, Array]]:
        """The value of D, and the values of all other outputs by name, evaluated with NumPy.

        `values` has the arrays of all sums and operands by name; `accumulator` and `default` are
        the element types of the sums and of D, as for `evaluate`.
        """
        import numpy as np

        kinds = self.kinds(accumulator, default)
        known_as = {**dict.fromkeys(self.sums, accumulator), **kinds.operands}
        made = {
            name: np.asarray(values[name]).astype(NUMPY_KINDS[k]) for name, k in known_as.items()
        }

        def run(
            step: Step, kind: str, arguments: list[Any], options: dict[str, Any], result: str
        ) -> Array:
            return known(step.operation).numpy(*arguments, **options)

        def number(value: Any, kind: str) -> Array:
            return np.asarray(value, NUMPY_KINDS[kind])

        outputs, result = self._run(made, kinds, known_as, run, number)
        return result, outputs

    def emit(
        self, emit: Emitter, values: Mapping[str, Any], accumulator: str, default: str
    ) -> Iterator[Any]:
        """Emit code that computes the function for one element of D, in two parts.

        The iterator first yields a dictionary with the values of the outputs besides D, by name. It
        then yields the value of D. The steps on which only D depends are emitted when the value of
        D is requested, so a caller can use the other outputs before it replaces the sum by D.

        Args:
            emit: the code generator.
            values: the values of every sum and operand for the element, by name.
            accumulator: the element type of the sums.
            default: the element type of D, and of operands with axes but without a declared type.
        """
        kinds = self.kinds(accumulator, default)
        known_as = {**dict.fromkeys(self.sums, accumulator), **kinds.operands}

        def run(
            step: Step, kind: str, arguments: list[Any], options: dict[str, Any], result: str
        ) -> Any:
            found = emitted(known(step.operation), emit, kind, arguments, options)
            try:
                # Convert to the same kind: `convert` raises an error if the value has another kind.
                return emit.convert(found, result, result)
            except CodegenError as error:
                raise CodegenError(
                    f"{step.operation}: its method llvm(emit, …) must return a value of {result}; "
                    f"{error}"
                ) from error

        return self._run(dict(values), kinds, known_as, run, emit.constant)

    def _run(
        self, made: dict[str, Any], kinds: Kinds, known_as: dict[str, str], run: Any, number: Any
    ) -> Iterator[Any]:
        """Call `run` for each step, with the values of the step's arguments.

        Yields a dictionary with the values of the outputs besides D, by name, as soon as the steps
        on which they depend have run. Then runs all other steps, and yields the value of D.

        Args:
            made: the values of sums and operands by name; the function adds the value of each
                step.
            kinds: the kinds of all values.
            known_as: the kinds of sums and operands by name; the function adds the kind of each
                step.
            run: a function that applies one step to the values of the step's arguments; it also
                gets the kind of the arguments, the options, and the kind of the result.
            number: a function that makes a value from a constant and a kind.
        """

        def advance(places: list[int]) -> None:
            for place in places:
                step, result = self.steps[place], kinds.steps[place]
                operation = known(step.operation)
                given = [known_as[a] for a in step.arguments if isinstance(a, str)]
                kind = next((k for k in given if k != "bool"), given[0] if given else "f32")
                if step.operation == "where" and kind == "bool":
                    kind = result
                arguments = [
                    made[a] if isinstance(a, str) else number(a, kind) for a in step.arguments
                ]
                options = {**operation.options, **dict(step.constants)}
                name = f"%{place}"
                made[name], known_as[name] = run(step, kind, arguments, options, result), result

        first, places = self._of_outputs, range(len(self.steps))
        advance([place for place in places if place in first])
        yield {o.name: made[str(o.value)] for o in self.outputs}
        advance([place for place in places if place not in first])
        yield made[str(self.result)]

    @cached_property
    def _of_outputs(self) -> frozenset[int]:
        """The numbers of the steps on which outputs besides D depend."""
        found: set[int] = set()
        waiting = [str(output.value) for output in self.outputs]
        while waiting:
            value = waiting.pop()
            if value.startswith("%") and (place := int(value[1:])) not in found:
                found.add(place)
                waiting += [a for a in self.steps[place].arguments if isinstance(a, str)]
        return frozenset(found)

    # The following methods find the operands that each value depends on.

    @cached_property
    def _needs(self) -> dict[str, frozenset[str]]:
        """The names of sums and operands on which each value depends, by value name (`%1`)."""
        found = {
            name: frozenset((name,)) for name in (*self.sums, *(o.name for o in self.operands))
        }
        for number, step in enumerate(self.steps):
            parts = (found[a] for a in step.arguments if isinstance(a, str))
            found[f"%{number}"] = frozenset[str]().union(*parts)
        return found

    def needs(self, value: Argument) -> frozenset[str]:
        """The names of sums and operands on which `value` depends; empty for a number."""
        return self._needs[value] if isinstance(value, str) else frozenset()

    @cached_property
    def linear(self) -> bool:
        """True if the steps prove that the result is an affine function of the sums, else False."""
        good = dict.fromkeys((*self.sums, *(o.name for o in self.operands)), True)
        for number, step in enumerate(self.steps):
            constant = tuple(self.needs(a).isdisjoint(self.sums) for a in step.arguments)
            parts = all(good[a] for a in step.arguments if isinstance(a, str))
            good[f"%{number}"] = parts and known(step.operation).linear_in(constant)
        return good[str(self.result)]

    def scale_of(self, name: str) -> str:
        """The scalar operand that multiplies the operand `name` in all its uses; '' for none.

        If that scalar is 0 at launch, the kernel need not read the operand `name`.
        """
        scalars = {o.name for o in self.scalars}
        found: set[str] = set()
        for step in self.steps:
            if name not in step.arguments:
                continue
            others = [a for a in step.arguments if a != name]
            scale = others[0] if others else None
            if step.operation != "mul" or not isinstance(scale, str) or scale not in scalars:
                return ""
            found.add(scale)
        return found.pop() if len(found) == 1 and self.result != name else ""

    def vanishes(self, value: Argument, name: str) -> bool:
        """True if the steps prove that `value` is 0 whenever the operand `name` is 0.

        Other values are assumed to be finite, and divisors not to be 0.
        """
        zeros: set[Argument] = {name}
        for number, step in enumerate(self.steps):
            if known(step.operation).zero_with(tuple(a in zeros for a in step.arguments)):
                zeros.add(f"%{number}")
        return value in zeros

    def part(
        self, result: Argument, base: Argument | None = None, outputs: tuple[Output, ...] = ()
    ) -> EpilogueFunction:
        """A function that computes the value `result` of this function.

        Args:
            result: the value to compute, such as `%3`.
            base: the value that the new function takes as its `acc`; by default the new function
                has the same sums of products as this one.
            outputs: those outputs of this function that the new function computes, too.
        """
        taken: dict[str, str] = {} if base is None else {str(base): ACCUMULATOR}
        steps: list[Step] = []

        def renamed(value: Argument) -> Argument:
            return taken.get(value, value) if isinstance(value, str) else value

        waiting = [*(o.value for o in reversed(outputs)), result]
        # Visit steps depth first, so that every step comes after the steps of its arguments.
        while waiting:
            value = waiting[-1]
            if not isinstance(value, str) or not value.startswith("%") or value in taken:
                waiting.pop()
                continue
            step = self.steps[int(value[1:])]
            before = [a for a in step.arguments if str(a).startswith("%") and a not in taken]
            if before:
                waiting.append(before[0])
                continue
            steps.append(replace(step, arguments=tuple(map(renamed, step.arguments))))
            taken[value] = f"%{len(steps) - 1}"

        top = renamed(result)
        stored = tuple(replace(o, value=renamed(o.value)) for o in outputs)
        used = {a for step in steps for a in step.arguments} | {top, *(o.value for o in stored)}
        operands = tuple(o for o in self.operands if o.name in used)
        sums = self.sums if base is None else (ACCUMULATOR,)
        stores = self.stores_d or not outputs
        return EpilogueFunction(self.name, operands, tuple(steps), top, stored, sums, stores)
