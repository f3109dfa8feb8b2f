"""The interpreter: run a scheduled graph on numpy arrays, or trace what each workgroup does."""

from coordgraph.errors import Deadlock
from coordgraph.interpreter.events import Event, Point
from coordgraph.interpreter.recording import trace
from coordgraph.interpreter.run import Result, interpret
from coordgraph.interpreter.schedulers import SCHEDULERS, Scheduler
from coordgraph.interpreter.tracing import Segment, Trace

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
