"""Named checks of a graph: each proves a property for all sizes, or else tests small launches.

`KernelGraph.check` runs these checks and returns a `Report`, with a counterexample for each check
that is refuted. Each check of a scheduled graph is one module: `size_rules`, `cover`, `fix_up`,
`forward_progress` or `addresses`. The checks of a lowered graph, `memory order` and `vectors`, are
the package `memory_order` and the module `vectors`; the module `lowered` lists them. The check
`batch-invariance` runs only if the caller of `KernelGraph.check` names it. The module `checking`
runs the checks.
"""

from coordgraph.verification.checking import CHECKS, PROPERTIES, check_graph
from coordgraph.verification.launch import Launch
from coordgraph.verification.named import NamedCheck
from coordgraph.verification.verdicts import Counterexample, Outcome, Report, Verdict

__all__ = [
    "CHECKS",
    "PROPERTIES",
    "Counterexample",
    "Launch",
    "NamedCheck",
    "Outcome",
    "Report",
    "Verdict",
    "check_graph",
]
