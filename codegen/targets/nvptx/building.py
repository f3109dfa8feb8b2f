"""`Builder`: compiles a scheduled graph, loads it on a GPU, and uses the on-disk cache.

The on-disk cache stores PTX. The driver assembles PTX, and caches the result itself (CUDA
Programming Guide, "Just-in-Time Compilation"). The cache does not store cubins: only the driver's
linker returns cubins, and the linker's code is relocatable and therefore slower: relocatable code
has no setmaxnreg, and waits for each wgmma before the next wgmma is issued.
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
from codegen.targets.nvptx.launch.loaded_function import Spilled
from codegen.targets.nvptx.program import CudaProgram
from codegen.verified import ensure_verified
from coordgraph import CodegenError, KernelGraph, LaunchError, VerifyError
from coordgraph.collection import collection_paused
from coordgraph.kept_results import forget_proofs
from passes import Pass

__all__ = ["Builder", "Choice"]

FACTS, CODE = "facts.json", "kernel.ptx"
"""The names of the two files of a cache entry: a program's `Facts` as JSON, and its PTX."""


class Choice(NamedTuple):
    """Which lowering is used for tensors of one alignment, and why faster lowerings are not used.

    Args:
        instructions: the name of the lowering, such as `wgmma`.
        family: the instructions that multiply and copy, such as `wgmma + TMA`.
        notes: for each faster lowering of the architecture, the reason why it is not used.
    """

    instructions: str
    family: str
    notes: tuple[str, ...]


class Builder:
    """Compiles and loads the programs (variants) of one kernel.

    Args:
        graph: a scheduled graph.
        architecture: the architecture to compile for, such as `sm_90a`.
        debug: whether kernels trap, instead of hanging, when a wait takes too long.
        lowering: the lowering pass with options; None means the architecture's default.
        instructions: the name of the only lowering that may be used; None for all.
        timeline: how many timeline records each role of a workgroup (the producer, or a consumer)
            keeps; 0 for a kernel without a timeline.
        verify: whether to check the graph before code is generated for it, even if only passes of
            this library made it.

    Raises:
        CodegenError: the architecture's lowerings, or `lowering`, refuse the graph.
        VerifyError: the graph is malformed, or a check refutes it.
    """

    def __init__(
        self,
        graph: KernelGraph,
        architecture: str,
        *,
        debug: bool,
        lowering: Pass | None,
        instructions: str | None = None,
        timeline: int = 0,
        verify: bool = False,
    ) -> None:
        self.graph, self.architecture = graph, architecture
        self.debug, self.lowering, self.timeline = debug, lowering, timeline
        self.aligned = Alignment(Vectors.widest(graph.gemm))
        """The alignment of tensors whose rows and addresses are all multiples of 16 bytes."""
        self.programs: dict[Variant, CudaProgram] = {}
        """The programs that have been compiled so far, by variant."""
        self.generated = False
        """Whether some code was generated for a device, rather than read from the cache on disk."""
        self._refusals: dict[str, str | None] = {}
        """For each lowering tried so far, by name: the reason why it refuses the graph, or None."""
        self._entry = architecture_of(architecture)
        self.lowerings = self._entry.lowerings if lowering is None else self._allowed(lowering)
        """The lowerings that may be used; the one with the fastest kernels is first."""
        self.instructions = instructions
        """The name of the only lowering that may be used; None for all of `lowerings`."""
        if instructions is not None:
            self.lowerings = (self._only(instructions),)
        self._text: str | None = None
        """The graph as text, for cache keys; None if its kernels must not be cached on disk.

        Kernels are not cached if the graph or a lowering pass has a class from outside this
        library, or if the graph has no text form.
        """
        if cache.cacheable(graph, lowering, *self.lowerings):
            with suppress(VerifyError):  # a graph that cannot be written as text is not cached
                self._text = graph.text()
        # A cached kernel was checked before it was stored, unless its caller had turned checks off.
        if not any(map(self._cached, self._usual)):
            with collection_paused():
                graph.verify()
                self._refuse_early()
                if verify:
                    ensure_verified(graph, always=True)

    def _refuse_early(self) -> None:
        """Raise an error if all lowerings refuse the graph.

        Raises:
            CodegenError: all lowerings refuse the graph; the message has the reason of each.
        """
        try:
            self.program(self.widest).lowered  # noqa: B018 - lowers the graph
        except CodegenError as error:
            refused = [(each.family, self.why_not(each)) for each in self.lowerings]
            if len(refused) == 1 or None in dict(refused).values():
                raise
            reasons = "; ".join(f"{family} refuses: {reason}" for family, reason in refused)
            raise CodegenError(
                f"no kernel for {self.architecture} can be compiled from this graph: {reasons}"
            ) from error

    def _only(self, instructions: str) -> Lowering:
        """The lowering named `instructions`, such as `wgmma`.

        Raises:
            CodegenError: the architecture has no such lowering, the lowering refuses the graph, or
                the caller also passed options of another lowering.
        """
        found = self._entry.lowering(instructions)
        if self.lowering is not None and type(self.lowering) is not found.kind:
            raise CodegenError(
                f"instructions='{instructions}' and lowering={self.lowering} contradict each "
                f"other; give options of {found.kind.__name__}, or leave out one of the two"
            )
        if reason := self.why_not(found):
            refused = f"{found.family} refuses: {reason}"
            raise CodegenError(
                f"{self.architecture}: instructions='{instructions}' cannot be used, because "
                f"{'; '.join([refused, *self._instead_of(found)])}"
            )
        return found

    def _instead_of(self, refusing: Lowering) -> list[str]:
        """Whether another lowering accepts the graph that `refusing` refuses, as parts of an error.

        If none does, leaving `instructions` out is no remedy, so the reasons of all are given.
        """
        others = [each for each in self._entry.lowerings if each is not refusing]
        reasons = {each.family: self.why_not(each) for each in others}
        for family, reason in reasons.items():
            if reason is None:
                return [f"or leave instructions out, and the kernel multiplies by {family}"]
        return [f"{family} refuses too: {reason}" for family, reason in reasons.items()]

    def _allowed(self, options: Pass) -> tuple[Lowering, ...]:
        """The lowerings that may be used if the caller passes options for one of them.

        The first item of the result is the lowering to which the options belong. The architecture's
        more general lowerings follow.

        Raises:
            CodegenError: the architecture has no lowering for these options, or the lowering
                refuses the graph.
        """
        found = self._entry.lowerings
        while found and type(options) is not found[0].kind:
            found = found[1:]
        if not found:
            known = ", ".join(each.kind.__name__ for each in self._entry.lowerings)
            raise CodegenError(
                f"{self.architecture} has no lowering {type(options).__name__}; choose one of: "
                f"{known}"
            )
        wanted = getattr(options, "architecture", self.architecture)
        wrong = None if wanted == self.architecture else f"it is for {wanted}"
        if reason := wrong or self.why_not(found[0]):
            raise CodegenError(
                f"{self.architecture}: {options} refuses the graph: {reason}; choose another "
                "lowering, or leave lowering out"
            )
        return found

    def why_not(self, lowering: Lowering) -> str | None:
        """Why a lowering refuses the graph for 16-byte aligned tensors; None if it does not."""
        name = lowering.instructions
        if name not in self._refusals:
            best = lowering.variant(self.aligned, reads_c=False)
            self._refusals[name] = self._program(best).why_not()
        return self._refusals[name]

    def choice(self, alignment: Alignment, *, reads_c: bool) -> Choice:
        """The lowering for tensors of this alignment, and why faster lowerings are not used."""
        chosen, found = self.variant(alignment, reads_c=reads_c).instructions, list[str]()
        for lowering in self._entry.lowerings:
            if lowering.instructions == chosen:
                return Choice(chosen, lowering.family, tuple(found))
            refusal = self._declined(lowering, alignment, reads_c=reads_c)
            found.append(f"{lowering.instructions}: {refusal}")
        raise AssertionError(
            f"{self.architecture} has no lowering with the instructions {chosen}, which the "
            "variant of the kernel uses; report this as a defect"
        )

    def _declined(self, lowering: Lowering, alignment: Alignment, *, reads_c: bool) -> str | None:
        """Why `lowering` is not used for tensors of this alignment; None if it could be used."""
        if lowering not in self.lowerings:
            if self.instructions is not None:
                return f"the caller passed instructions='{self.instructions}'"
            return f"the caller passed lowering={self.lowering}"
        if refusal := self.why_not(lowering) or lowering.why_not_aligned(alignment.bytes):
            return refusal
        return self._program(lowering.variant(alignment, reads_c=reads_c)).why_not()

    @property
    def widest(self) -> Variant:
        """The variant for tensors with 16-byte aligned rows that does not read C."""
        return self.variant(self.aligned, reads_c=False)

    @property
    def _usual(self) -> Iterator[Variant]:
        """Two variants for tensors with 16-byte aligned rows: without C, then with C."""
        return (self.variant(self.aligned, reads_c=c) for c in (False, True))

    def variant(self, alignment: Alignment, *, reads_c: bool) -> Variant:
        """The variant of the fastest lowering that accepts tensors of this alignment.

        Raises:
            LaunchError: the caller allows only a lowering that needs a larger alignment.
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
        """The program of a variant. `load` may replace the program by one with fewer registers."""
        if variant not in self.programs:
            self.programs[variant] = self._program(variant)
        return self.programs[variant]

    def _program(self, variant: Variant) -> CudaProgram:
        """A new program of a variant; the first use of the program's code compiles it."""
        return CudaProgram(
            self.graph,
            self.architecture,
            *variant,
            watchdog=self.debug,
            lowering=self.lowering,
            timeline=self.timeline,
        )

    def load(self, where: Device, variant: Variant) -> Loaded:
        """Load the program of a variant on a GPU, with PTX from the cache on disk if stored there.

        Raises:
            CodegenError: the driver cannot assemble the program, or registers spill.
        """
        key = self._key(variant)
        if key is None:
            return self._make(where, variant, key)
        if found := self._load_cached(where, variant):
            return found
        with cache.building(key):
            return self._load_cached(where, variant) or self._make(where, variant, key)

    def is_cached(self, variant: Variant) -> bool:
        """Whether the cache on disk has a variant's PTX, so that `load` need not compile it."""
        return self._cached(variant) is not None

    def _key(self, variant: Variant) -> str | None:
        """The cache key of a variant's PTX; None if the graph's kernels must not be cached."""
        if self._text is None:
            return None
        options = self.lowering, self.debug, self.timeline
        return cache.key_of(self._text, str(self._entry), str(variant), *map(str, options))

    def _cached(self, variant: Variant) -> tuple[Facts, bytes] | None:
        """The `Facts` and the PTX of a variant in the cache on disk; None without a valid entry."""
        key = self._key(variant)
        files = cache.load(key) if key else None
        try:
            return (Facts.from_json(json.loads(files[FACTS])), files[CODE]) if files else None
        except (KeyError, ValueError):
            return None

    def _load_cached(self, where: Device, variant: Variant) -> Loaded | None:
        """Load a variant's PTX from the cache on disk; None if it is missing or registers spill."""
        found = self._cached(variant)
        if found is None:
            return None
        facts, code = found
        try:
            with where.current():
                loaded = Loaded(facts, code, where)
        except Spilled:
            # The driver version that stored this PTX spilled no registers, but this driver does.
            return None
        self.programs[variant] = replace(
            self.program(variant), bytes_in_flight=facts.bytes_in_flight
        )
        return loaded

    def _make(self, where: Device, variant: Variant, key: str | None) -> Loaded:
        """Compile and load a variant.

        If the driver spills registers, the variant is compiled again with half as many bytes of
        operands that the epilogue loads in advance, until nothing is spilled.

        Args:
            where: the GPU.
            variant: the variant to compile: access widths, lowering, and whether it reads C.
            key: the cache key under which the PTX is stored; None stores nothing.
        """
        self.generated = True
        while True:
            program = self.program(variant)
            with collection_paused():
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
            self.programs[variant] = program.settled()
            forget_proofs(self.graph)
            return loaded
