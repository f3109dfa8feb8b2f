"""`walk`: execute the steps of a program for one workgroup, with an exchangeable worker."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from coordgraph.errors import EvaluationError
from coordgraph.interpreter.events import Event
from coordgraph.interpreter.formulas import Environment
from coordgraph.interpreter.program import Branch, Let, Loop, Step, Work

__all__ = ["Worker", "walk"]


class Worker(Protocol):
    """Protocol of the visitors of `walk`: one computes elements, one records a trace."""

    def accumulate(self, loop: Loop, env: Environment, start: int, stop: int) -> bool:
        """Handle a whole loop at once and return True; return False to have it walked."""
        ...

    def work(self, work: Work, env: Environment) -> Iterator[Event]:
        """Handle one operation; yield an event before each access that others can observe."""
        ...


def walk(steps: tuple[Step, ...], env: Environment, worker: Worker) -> Iterator[Event]:
    """Execute `steps` for one workgroup with the given worker; yields the worker's events."""
    for step in steps:
        match step:
            case Work():
                yield from worker.work(step, env)
            case Let():
                (env[step.place],) = step.value(env)
                yield from walk(step.body, env, worker)
            case Branch():
                yield from walk(step.body if step.condition(env)[0] else step.orelse, env, worker)
            case Loop():
                index, stop = step.bounds(env)
                if worker.accumulate(step, env, index, stop):
                    continue
                while index < stop:
                    env[step.index] = index
                    yield from walk(step.body, env, worker)
                    env[step.index] = index
                    (advance,) = step.step(env)
                    if advance < 1:
                        raise EvaluationError(
                            f"the loop over {step.symbol} steps by {advance}; it must be positive"
                        )
                    index += advance
