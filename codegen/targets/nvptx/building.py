"""From a scheduled graph to code on a device, through the cache on disk.

The cache holds PTX. What the driver assembles of it, the driver keeps in a cache of its own (CUDA
Programming Guide, "Just-in-Time Compilation"). A cubin can be had of the driver's linker alone, and
that is other code: made to be linked, without setmaxnreg and with one wgmma after another.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from typing import NamedTuple

import codegen.cache as cache
from codegen.architectures import Alignment, Lowering, Variant, Vectors, architecture_of
from codegen.targets.nvptx.driver import Device
from codegen.targets.nvptx.facts import Facts
from codegen.targets.nvptx.launch.call import Loaded
from codegen.targets.nvptx.launch.function import Spilled
from codegen.targets.nvptx.program import CudaProgram
from coordgraph import CodegenError, KernelGraph, LaunchError, VerifyError
from passes import Pass

__all__ = ["Builder", "Choice"]

FACTS, CODE = "facts.json", "kernel.ptx"


class Choice(NamedTuple):
    """The lowering that serves tensors of an alignment.

    Args:
        instructions: its name, such as `wgmma`.
        family: what multiplies and what copies, such as `wgmma + TMA`.
        notes: why each better lowering of the architecture does not serve them.
    """

    instructions: str
    family: str
    notes: tuple[str, ...]


class Builder:
    """Makes and loads the variants of a kernel.

    Raises:
        CodegenError: the graph cannot be lowered for the architecture, or not by `lowering`.
        VerifyError: the graph is broken.
    """

    def __init__(
        self,
        graph: KernelGraph,
        architecture: str,
        *,
        debug: bool,
        lowering: Pass | None,
        instructions: str | None = None,
    ) -> None:
        self.graph, self.architecture = graph, architecture
        self.debug, self.lowering = debug, lowering
        self.aligned = Alignment(Vectors.widest(graph.gemm))
        """What tensors allow whose rows and addresses are multiples of 16 bytes."""
        self.programs: dict[Variant, CudaProgram] = {}
        """The programs that were made so far."""
        self.generated = False
        """Whether code was generated for a device, so that not all came from the cache."""
        self._refusals: dict[str, str | None] = {}
        """Why lowerings refuse the graph, by their instructions, as far as they were asked."""
        self._entry = architecture_of(architecture)
        self.lowerings = self._entry.lowerings if lowering is None else self._asked_for(lowering)
        """What may lower the graph, the best first; the last does, or the graph is refused."""
        self.instructions = instructions
        """The name of the only lowering that may be used; None for all of `lowerings`."""
        if instructions is not None:
            self.lowerings = (self._only(instructions),)
        self._text: str | None = None
        """The graph's, where code for it may be kept."""
        if cache.cacheable(graph, lowering, *self.lowerings):
            with suppress(VerifyError):  # it holds what cannot be written
                self._text = graph.text()
        # A cached kernel was verified before it was stored.
        if not any(map(self._cached, self._usual)):
            graph.verify()
            self._refuse_early()

    def _refuse_early(self) -> None:
        """Refuse a graph that no lowering takes, and say why each lowering does not.

        Raises:
            CodegenError: the architecture has no code for the graph.
        """
        try:
            self.program(self.widest).lowered  # noqa: B018 - lowers the graph
        except CodegenError as error:
            refused = [(each.family, self.why_not(each)) for each in self.lowerings]
            if len(refused) == 1 or None in dict(refused).values():
                raise
            reasons = "; ".join(f"{family} refuses: {reason}" for family, reason in refused)
            raise CodegenError(f"{self.architecture}: {reasons}") from error

    def _only(self, instructions: str) -> Lowering:
        """The lowering with these instructions.

        Raises:
            CodegenError: the architecture has none, it refuses the graph, or `lowering` gives the
                options of another.
        """
        found = self._entry.lowering(instructions)
        if self.lowering is not None and type(self.lowering) is not found.kind:
            raise CodegenError(
                f"instructions='{instructions}' and lowering={self.lowering} contradict each "
                f"other: give options of {found.kind.__name__}, or leave out one of the two"
            )
        if reason := self.why_not(found):
            raise CodegenError(
                f"{self.architecture}: instructions='{instructions}' was asked for, and "
                f"{found.family} refuses: {reason}"
            )
        return found

    def _asked_for(self, options: Pass) -> tuple[Lowering, ...]:
        """The lowering that these options are for, and those after it.

        Raises:
            CodegenError: the architecture has none, or it refuses the graph.
        """
        found = self._entry.lowerings
        while found and type(options) is not found[0].kind:
            found = found[1:]
        if not found:
            known = ", ".join(each.kind.__name__ for each in self._entry.lowerings)
            raise CodegenError(
                f"{self.architecture} has no lowering {type(options).__name__}; there is {known}"
            )
        asked = getattr(options, "architecture", self.architecture)
        wrong = None if asked == self.architecture else f"it is for {asked}"
        if reason := wrong or self.why_not(found[0]):
            raise CodegenError(f"{self.architecture}: {options} refuses: {reason}")
        return found

    def why_not(self, lowering: Lowering) -> str | None:
        """Why a lowering makes no code of the graph for well-aligned tensors and no C, or None."""
        name = lowering.instructions
        if name not in self._refusals:
            best = lowering.variant(self.aligned, reads_c=False)
            self._refusals[name] = self._program(best).why_not()
        return self._refusals[name]

    def choice(self, alignment: Alignment, *, reads_c: bool) -> Choice:
        """The lowering that serves tensors of an alignment, and why better ones do not."""
        chosen, found = self.variant(alignment, reads_c=reads_c).instructions, list[str]()
        for lowering in self._entry.lowerings:
            if lowering.instructions == chosen:
                return Choice(chosen, lowering.family, tuple(found))
            refusal = self._declined(lowering, alignment, reads_c=reads_c)
            found.append(f"{lowering.instructions}: {refusal}")
        raise AssertionError(chosen)

    def _declined(self, lowering: Lowering, alignment: Alignment, *, reads_c: bool) -> str | None:
        """Why a lowering does not serve tensors of an alignment."""
        if lowering not in self.lowerings:
            if self.instructions is not None:
                return f"instructions='{self.instructions}' was asked for"
            return f"lowering={self.lowering} was asked for"
        if refusal := self.why_not(lowering) or lowering.why_not_aligned(alignment.bytes):
            return refusal
        return self._program(lowering.variant(alignment, reads_c=reads_c)).why_not()

    @property
    def widest(self) -> Variant:
        """The variant for well-aligned tensors and no C."""
        return self.variant(self.aligned, reads_c=False)

    @property
    def _usual(self) -> Iterator[Variant]:
        """The variants for well-aligned tensors, one of which every kernel in the cache has."""
        return (self.variant(self.aligned, reads_c=c) for c in (False, True))

    def variant(self, alignment: Alignment, *, reads_c: bool) -> Variant:
        """The variant of the best lowering that takes tensors that are aligned so.

        Raises:
            LaunchError: `instructions` asks for a lowering that needs a larger alignment.
        """
        *better, last = self.lowerings
        for lowering in better:
            if lowering.why_not_aligned(alignment.bytes) or self.why_not(lowering):
                continue
            found = lowering.variant(alignment, reads_c=reads_c)
            if not reads_c or self._program(found).why_not() is None:
                return found
        if reason := last.why_not_aligned(alignment.bytes):
            raise LaunchError(
                f"{reason}, which {last.family} needs; pass other arrays, or compile without "
                f"instructions='{self.instructions}'"
            )
        return last.variant(alignment, reads_c=reads_c)

    def program(self, variant: Variant) -> CudaProgram:
        """The program of a variant; after loading, the one that was loaded."""
        if variant not in self.programs:
            self.programs[variant] = self._program(variant)
        return self.programs[variant]

    def _program(self, variant: Variant) -> CudaProgram:
        return CudaProgram(
            self.graph,
            self.architecture,
            *variant,
            watchdog=self.debug,
            lowering=self.lowering,
        )

    def load(self, where: Device, variant: Variant) -> Loaded:
        """The variant's code on a device.

        Raises:
            CodegenError: the driver does not take it.
        """
        key = self._key(variant)
        if key is None:
            return self._make(where, variant, key)
        if found := self._load_cached(where, variant):
            return found
        with cache.building(key):
            return self._load_cached(where, variant) or self._make(where, variant, key)

    def _key(self, variant: Variant) -> str | None:
        """Where a variant lies in the cache; None where it must not lie there."""
        if self._text is None:
            return None
        return cache.key_of(
            self._text, str(self._entry), str(variant), str(self.lowering), str(self.debug)
        )

    def _cached(self, variant: Variant) -> tuple[Facts, bytes] | None:
        """What the cache has of a variant, if it can be read."""
        key = self._key(variant)
        files = cache.load(key) if key else None
        try:
            return (Facts.from_json(json.loads(files[FACTS])), files[CODE]) if files else None
        except (KeyError, ValueError):
            return None

    def _load_cached(self, where: Device, variant: Variant) -> Loaded | None:
        found = self._cached(variant)
        if found is None:
            return None
        facts, code = found
        try:
            with where.current():
                loaded = Loaded(facts, code, where)
        except Spilled:  # another driver assembled it without
            return None
        self.programs[variant] = replace(
            self.program(variant), bytes_in_flight=facts.bytes_in_flight
        )
        return loaded

    def _make(self, where: Device, variant: Variant, key: str | None) -> Loaded:
        """Generate the variant's code; where it spills, code with fewer loads under way."""
        self.generated = True
        while True:
            program = self.program(variant)
            facts, code = Facts.of(program), program.ptx.encode()
            try:
                with where.current():
                    loaded = Loaded(facts, code, where)
            except Spilled:
                leaner = program.leaner()
                if leaner is None:
                    raise
                self.programs[variant] = leaner
                continue
            if key is not None:
                cache.store(key, {FACTS: json.dumps(facts.to_json()).encode(), CODE: code})
            return loaded
