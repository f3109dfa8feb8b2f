"""Named checks of a scheduled graph: proofs for all sizes, small launches, counterexamples.

`KernelGraph.check` runs them and returns a `Report`. Each check is one module: `size_rules`,
`cover`, `fix_up`, `forward_progress` or `addresses`; `checking` lists and runs them.
"""

from coordgraph.verification.checking import CHECKS, check_graph
from coordgraph.verification.launch import Launch
from coordgraph.verification.named import NamedCheck
from coordgraph.verification.verdicts import Counterexample, Outcome, Report, Verdict

__all__ = [
    "CHECKS",
    "Counterexample",
    "Launch",
    "NamedCheck",
    "Outcome",
    "Report",
    "Verdict",
    "check_graph",
]
