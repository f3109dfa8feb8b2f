"""Architectures of NVIDIA GPUs for code generation; `register` adds one from outside the library.

An `Architecture` has the limits of the hardware and its lowerings, the fastest first. Each lowering
has an emitter, which generates its instructions, and a chooser, which chooses tiles and schedules.
Importing this module loads neither LLVM nor CUDA.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING

from coordgraph import CodegenError
from passes.lowering import MMA_SYNC, WGMMA
from passes.lowering.architectures import (
    Alignment,
    Architecture,
    Lowering,
    Variant,
    Vectors,
    architecture_of,
    names,
    unregister,
)
from passes.lowering.architectures import register as register_entries

if TYPE_CHECKING:
    from codegen.targets.nvptx.sm_80.emit import CudaWalker
    from passes.choosing.choosers import Chooser

__all__ = [
    "Alignment",
    "Architecture",
    "Lowering",
    "Variant",
    "Vectors",
    "architecture_of",
    "emitter_of",
    "names",
    "register",
    "unregister",
]

_EMITTERS: dict[str, str | type[CudaWalker]] = {
    MMA_SYNC.instructions: "codegen.targets.nvptx.sm_80.emit:CudaWalker",
    WGMMA.instructions: "codegen.targets.nvptx.sm_90a.hopper_walker:HopperWalker",
}
"""The emitter class of each lowering, or the class's `module:name`, by the lowering's name."""


def register(
    architecture: Architecture,
    *,
    emitters: Mapping[str, str | type[CudaWalker]] | None = None,
    choosers: Mapping[str, Chooser] | None = None,
) -> None:
    """Add an architecture to `compile(target=…)`, `TARGETS` and the command line.

    Args:
        architecture: the name, the limits of the hardware, and the lowerings, fastest first.
        emitters: for each lowering that the library does not have, by `Lowering.instructions`, the
            class that emits its instructions: a subclass of
            `codegen.targets.nvptx.sm_80.emit.CudaWalker`, or its `module:name` as a string.
        choosers: for each such lowering, by `Lowering.instructions`, the object that chooses its
            tiles and schedules; by default, a fixed rule without a cost model.

    Raises:
        CodegenError: `architecture` is not an `Architecture`; the name is already registered; or
            the instructions of a lowering have no emitter, or have another emitter already.
    """
    if not isinstance(architecture, Architecture):
        raise CodegenError(
            f"{architecture!r} is no Architecture; pass one, as in register(Architecture('sm_86x', "
            "86, 101376, (MMA_SYNC,)))"
        )
    for name, emitter in (emitters or {}).items():
        if _EMITTERS.get(name, emitter) != emitter:
            raise CodegenError(
                f"the instructions {name} have another emitter already; give the lowering another "
                "name in Lowering.instructions"
            )
    known = {**_EMITTERS, **(emitters or {})}
    for lowering in architecture.lowerings:
        if lowering.instructions not in known:
            raise CodegenError(
                f"{architecture.name}: the lowering {lowering.instructions} has no emitter; pass "
                f"emitters={{'{lowering.instructions}': …}}"
            )
    register_entries(architecture)
    _EMITTERS.update(emitters or {})
    if choosers:
        from passes.choosing.choosers import register_choosers

        register_choosers(choosers)


def emitter_of(instructions: str) -> type[CudaWalker]:
    """The class that emits the instructions of a lowering; loading the class imports LLVM.

    Args:
        instructions: the lowering's name, such as `mma.sync`.
    """
    found = _EMITTERS[instructions]
    if isinstance(found, str):
        module, _, name = found.partition(":")
        found = _EMITTERS[instructions] = getattr(import_module(module), name)
    return found
