"""Late imports: a package's modules are imported when one of their names is first used (PEP 562).

`import coordgraph` then takes a few milliseconds; sympy and networkx are loaded with the first name
that needs them. A package lists its names twice: under `TYPE_CHECKING` as ordinary imports, for
type checkers and editors, and in a call of `late_names`. `late_module` does the same for a module
of another distribution.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module

__all__ = ["late_module", "late_names"]


def late_names(
    package: str, names: Mapping[str, str], modules: Iterable[str] = ()
) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """Functions `__getattr__` and `__dir__` that import a package's modules at their first use.

    Args:
        package: the `__name__` of the package.
        names: for each name of the package, where it is defined, as `module:attribute`.
        modules: the submodules that are attributes of the package.
    """
    submodules = frozenset(modules)

    def __getattr__(name: str) -> object:
        if name in names:
            module, _, attribute = names[name].partition(":")
            found = getattr(import_module(module), attribute)
        elif name in submodules:
            found = import_module(f"{package}.{name}")
        else:
            raise AttributeError(f"module '{package}' has no attribute '{name}'")
        setattr(sys.modules[package], name, found)
        return found

    def __dir__() -> list[str]:
        return sorted({*vars(sys.modules[package]), *names, *submodules})

    return __getattr__, __dir__


class _LateModule:
    """An object with the attributes of a module; it imports the module when one is first read."""

    def __init__(self, name: str) -> None:
        self.__name__ = name

    def __getattr__(self, name: str) -> object:
        found = getattr(import_module(self.__name__), name)
        setattr(self, name, found)
        return found


def late_module(name: str) -> _LateModule:
    """An object with the attributes of the module `name`, which the first use imports."""
    return _LateModule(name)
