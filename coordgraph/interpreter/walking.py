"""`walk`: execute the steps of a program for one workgroup; a `Worker` handles the operations."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from coordgraph.errors import EvaluationError
from coordgraph.interpreter.events import Event
from coordgraph.interpreter.formulas import Environment
from coordgraph.interpreter.steps import Branch, DynamicLoop, Let, Loop, Step, Work

__all__ = ["Budget", "BudgetExceeded", "EndlessLoop", "Fuel", "Worker", "walk"]


class EndlessLoop(EvaluationError):
    """The loops of one workgroup have more iterations than are allowed (the `most` of `Fuel`)."""


class BudgetExceeded(EvaluationError):
    """All workgroups of a launch together have more loop iterations than a `Budget` allows."""


class Budget:
    """Limits the loop iterations of all workgroups of a launch together.

    Args:
        most: the largest number of iterations.
    """

    def __init__(self, most: int) -> None:
        self.most, self.spent = most, 0

    def spend(self) -> None:
        """Count one iteration; raises BudgetExceeded if all workgroups' total is too large."""
        self.spent += 1
        if self.spent > self.most:
            raise BudgetExceeded(
                f"the loops of all workgroups run for more than {self.most} iterations; choose a "
                "smaller launch"
            )


class Fuel:
    """Limits the loop iterations of one workgroup, so that a faulty loop cannot run for ever.

    Args:
        workgroup: the number of the workgroup.
        most: the largest number of iterations; None for no limit.
        budget: counts the iterations of all workgroups; None for no limit.
    """

    def __init__(self, workgroup: int, most: int | None, budget: Budget | None = None) -> None:
        self._workgroup, self._most, self._burnt, self._budget = workgroup, most, 0, budget

    def burn(self) -> None:
        """Count a loop iteration; raises EndlessLoop or BudgetExceeded if there are too many."""
        self._burnt += 1
        if self._budget is not None:
            self._budget.spend()
        if self._most is not None and self._burnt > self._most:
            raise EndlessLoop(
                f"the loops of workgroup {self._workgroup} run for more than {self._most} "
                "iterations, so one of them probably never ends; correct the bounds of the loops"
            )


class Worker(Protocol):
    """Protocol of the objects to which `walk` passes loops and operations.

    One implementation computes elements, another records a trace.
    """

    def accumulate(self, loop: Loop, env: Environment, start: int, stop: int) -> bool:
        """Handle all iterations of a loop and return True, or return False to do nothing.

        If the result is False, `walk` executes the loop iteration by iteration.

        Args:
            loop: the loop.
            env: the values of the workgroup's symbols.
            start, stop: the first value of the loop's index, and the end of its range.
        """
        ...

    def work(self, work: Work, env: Environment) -> Iterator[Event]:
        """Handle one operation; yields an event wherever another workgroup may run first."""
        ...

    def iterate(self) -> None:
        """Called before each iteration that `walk` executes; may raise an error to end the walk."""
        ...


def walk(steps: tuple[Step, ...], env: Environment, worker: Worker) -> Iterator[Event]:
    """Execute `steps` for one workgroup; `worker` handles operations and yields events."""
    for step in steps:
        match step:
            case Work():
                yield from worker.work(step, env)
            case Let():
                (env[step.place],) = step.value(env)
                yield from walk(step.body, env, worker)
            case Branch():
                yield from walk(step.body if step.condition(env)[0] else step.orelse, env, worker)
            case DynamicLoop():
                index, stop = step.bounds(env)
                while index < stop:
                    worker.iterate()
                    env[step.index] = index
                    # Without a `TakeTicket` in the body, the loop ends.
                    env[step.following] = stop
                    yield from walk(step.body, env, worker)
                    index = env[step.following]
            case Loop():
                index, stop = step.bounds(env)
                if worker.accumulate(step, env, index, stop):
                    continue
                while index < stop:
                    worker.iterate()
                    env[step.index] = index
                    yield from walk(step.body, env, worker)
                    env[step.index] = index
                    (advance,) = step.step(env)
                    if advance < 1:
                        raise EvaluationError(
                            f"the loop over {step.symbol} steps by {advance}; make its step at "
                            "least 1"
                        )
                    index += advance
