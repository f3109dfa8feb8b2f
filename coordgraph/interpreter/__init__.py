"""The interpreter: run a scheduled graph on numpy arrays, or trace what each workgroup does."""

from typing import TYPE_CHECKING

from coordgraph.late import late_names

if TYPE_CHECKING:
    from coordgraph.errors import Deadlock
    from coordgraph.interpreter.events import Event, Point
    from coordgraph.interpreter.recording import trace
    from coordgraph.interpreter.run import Result, interpret
    from coordgraph.interpreter.schedulers import SCHEDULERS, Scheduler
    from coordgraph.interpreter.tracing import Segment, Trace
else:
    __getattr__, __dir__ = late_names(
        __name__,
        {
            "Deadlock": "coordgraph.errors:Deadlock",
            "Event": "coordgraph.interpreter.events:Event",
            "Point": "coordgraph.interpreter.events:Point",
            "Result": "coordgraph.interpreter.run:Result",
            "SCHEDULERS": "coordgraph.interpreter.schedulers:SCHEDULERS",
            "Scheduler": "coordgraph.interpreter.schedulers:Scheduler",
            "Segment": "coordgraph.interpreter.tracing:Segment",
            "Trace": "coordgraph.interpreter.tracing:Trace",
            "interpret": "coordgraph.interpreter.run:interpret",
            "trace": "coordgraph.interpreter.recording:trace",
        },
        modules=(
            "accumulators",
            "arguments",
            "events",
            "faults",
            "formulas",
            "indices",
            "lockstep",
            "machine",
            "program",
            "recording",
            "run",
            "schedulers",
            "tracing",
            "walking",
        ),
    )

__all__ = [
    "SCHEDULERS",
    "Deadlock",
    "Event",
    "Point",
    "Result",
    "Scheduler",
    "Segment",
    "Trace",
    "interpret",
    "trace",
]
