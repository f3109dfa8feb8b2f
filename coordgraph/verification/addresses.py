"""The check `bounds`: indices stay inside tensors, workspace and tables; no index overflows."""

from __future__ import annotations

from coordgraph.verification.evidence import Evidence
from coordgraph.verification.index_proofs import IndexProofs
from coordgraph.verification.index_widths import too_wide, widths
from coordgraph.verification.named import SHOWN, Finding, enumerated, named_check
from coordgraph.verification.verdicts import Counterexample, Outcome

__all__ = ["bounds"]


SLOTS = tuple(f" of {tensor}" for tensor in ("partials", "flags"))
"""Suffixes of the texts that `IndexProofs.accesses` yields for accesses to two tensors of the
workspace, `partials` (partial sums) and `flags`, such as `SendPartial of partials`."""


@named_check(
    "bounds",
    "No index leaves its tensor, its workspace or its table, and every index fits the 32 or 64 "
    "bits in which kernels compute it.",
)
def bounds(evidence: Evidence) -> Finding:
    """The check `bounds`: prove that every index is inside its memory and does not overflow.

    If an index has no proof, the interpreter runs some small launches and checks their indices.
    """
    found = [*evidence.counterexamples("bounds")]
    graph, program = evidence.graph, evidence.program
    proofs = IndexProofs(graph, program, evidence.limits.questions)
    values = [*widths(graph, program, proofs)]
    wide = [width for width in values if not width.proved]
    found += map(Counterexample, proofs.without_index())
    found += [example for width in wide if (example := too_wide(graph, width)) is not None]
    if found:
        first: dict[str, Counterexample] = {}
        for example in found:
            first.setdefault(example.problem, example)
        return Finding(Outcome.REFUTED, _method(found), "", tuple(first.values())[:SHOWN])
    accesses = [*proofs.reads(), *proofs.accesses()]
    unproved = [what for what, proved in accesses if not proved]
    if not unproved and not wide:
        return Finding(
            Outcome.PROVED, "interval proof", f"{len(accesses)} accesses, {len(values)} widths"
        )
    proved = len(accesses) - len(unproved)
    # If no launch is small enough to run, traces replace runs only if every access without a proof
    # is to `partials` or `flags`: a trace records the indices of workspace slots, and no other
    # indices.
    slots = all(what.endswith(SLOTS) for what in unproved)
    launches = evidence.run_launches or (evidence.traced_launches if slots else ())
    checked = enumerated(launches, f"{proved} of {len(accesses)} accesses proved; all", ())
    return checked._replace(method=f"interval proof, {checked.method}") if proved else checked


def _method(found: list[Counterexample]) -> str:
    """`interval proof` or `enumeration`: the method that found the counterexamples.

    The method is `interval proof` if no counterexample names a workgroup: such counterexamples
    follow from the ranges of sizes. Else the method is `enumeration`: small launches were run.
    """
    return "interval proof" if all(not example.workgroups for example in found) else "enumeration"
