"""The interpreter: what a scheduled graph means, with numbers or as a record."""

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
