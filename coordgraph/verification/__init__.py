"""Named checks that prove, or refute by a counterexample, what a scheduled graph does.

`KernelGraph.check` runs them and returns a `Report`. Each check is one module: `sizes`, `cover`,
`fix_up`, `forward_progress` and `addresses`; `checks` is the registry that they are listed in.
"""

from coordgraph.verification.checks import CHECKS, NamedCheck, check_graph
from coordgraph.verification.launches import Launch
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
