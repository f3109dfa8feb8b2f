"""Simulation: runs a scheduled graph on a model of a GPU, event by event, without a GPU."""

from typing import TYPE_CHECKING

from coordgraph.late import late_names

if TYPE_CHECKING:
    from passes.simulation.events import Activity, Events
    from passes.simulation.launching import simulate, simulate_plan
    from passes.simulation.machine import MACHINES, Machine
    from passes.simulation.simulation import Simulation
    from passes.simulation.work import Kernel
else:
    __getattr__, __dir__ = late_names(
        __name__,
        {
            "Activity": "passes.simulation.events:Activity",
            "Events": "passes.simulation.events:Events",
            "Kernel": "passes.simulation.work:Kernel",
            "MACHINES": "passes.simulation.machine:MACHINES",
            "Machine": "passes.simulation.machine:Machine",
            "Simulation": "passes.simulation.simulation:Simulation",
            "simulate": "passes.simulation.launching:simulate",
            "simulate_plan": "passes.simulation.launching:simulate_plan",
        },
        modules=(
            "calibrate",
            "engine",
            "events",
            "launching",
            "machine",
            "memory",
            "sharing",
            "simulation",
            "work",
        ),
    )

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
