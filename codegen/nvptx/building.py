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

from codegen import cache
from codegen.nvptx.driver import Device
from codegen.nvptx.facts import Facts
from codegen.nvptx.launch import Spilled
from codegen.nvptx.plan import Loaded
from codegen.nvptx.program import WIDEST, WIDEST_STORE, CudaProgram, Vectors
from coordgraph import CodegenError, KernelGraph, VerifyError
from passes.lowering import LowerToHopper

__all__ = ["Builder", "Variant"]

FACTS, CODE = "facts.json", "kernel.ptx"


class Variant(NamedTuple):
    """Which code of a kernel: how far tensors are aligned decides, and whether C is read."""

    vectors: Vectors
    boxes: bool
    reads_c: bool = True


class Builder:
    """Makes and loads the variants of a kernel.

    Raises:
        CodegenError: the graph cannot be lowered for the architecture, or not by `lowering`.
        VerifyError: the graph is broken.
    """

    def __init__(
        self, graph: KernelGraph, architecture: str, *, debug: bool, lowering: LowerToHopper | None
    ) -> None:
        self.graph, self.architecture = graph, architecture
        self.debug, self.lowering = debug, lowering
        self.programs: dict[Variant, CudaProgram] = {}
        """The programs that were made so far."""
        reason = self._why_no_boxes()
        if lowering is not None and reason is not None:
            raise CodegenError(f"{architecture}: {lowering} refuses: {reason}")
        self.boxes = reason is None
        """Whether there is code that brings well-aligned tensors by the copy engine."""
        self._text: str | None = None
        """The graph's, where code for it may be kept."""
        if cache.cacheable(graph, lowering):
            with suppress(VerifyError):  # it holds what cannot be written
                self._text = graph.text()
        # Who is in the cache was checked before it came there.
        if not any(map(self._cached, self._usual)):
            graph.verify()
            self.program(self.widest).lowered  # noqa: B018 - refuse now, not later

    @property
    def widest(self) -> Variant:
        """The variant for well-aligned tensors and no C."""
        return self.variant(WIDEST, aligned=True, reads_c=False)

    @property
    def _usual(self) -> Iterator[Variant]:
        """The variants for well-aligned tensors, one of which every kernel in the cache has."""
        return (self.variant(WIDEST, aligned=True, reads_c=c) for c in (False, True))

    def variant(self, vectors: Vectors, *, aligned: bool, reads_c: bool) -> Variant:
        """The fastest variant for tensors that may be moved so; `aligned`: A and B by boxes."""
        if self.boxes and aligned:
            by_boxes = Variant(Vectors(WIDEST.a, WIDEST.b, vectors.d), boxes=True, reads_c=reads_c)
            if not reads_c or self._program(by_boxes).why_not() is None:
                return by_boxes
        return Variant(vectors._replace(d=min(vectors.d, WIDEST_STORE)), boxes=False)

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

    def _why_no_boxes(self) -> str | None:
        """Why no code of this graph can use the copy engine, or None."""
        lowering = self.lowering
        if lowering is not None and not isinstance(lowering, LowerToHopper):
            return "only a LowerToHopper lowers for the copy engine"
        if lowering is not None and lowering.architecture != self.architecture:
            return f"it is for {lowering.architecture}"
        return self._program(Variant(WIDEST, boxes=True, reads_c=False)).why_not()

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
            self._text, self.architecture, str(variant), str(self.lowering), str(self.debug)
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
