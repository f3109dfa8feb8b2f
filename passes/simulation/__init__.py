"""Simulation: runs a scheduled graph on a model of a GPU, event by event, without a GPU."""

from passes.simulation.events import Activity, Events
from passes.simulation.launching import simulate, simulate_plan
from passes.simulation.machine import MACHINES, Machine
from passes.simulation.simulation import Simulation
from passes.simulation.work import Kernel

__all__ = [
    "MACHINES",
    "Activity",
    "Events",
    "Kernel",
    "Machine",
    "Simulation",
    "simulate",
    "simulate_plan",
]
