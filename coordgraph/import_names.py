"""Find out whether a file or another distribution hides one of this distribution's packages.

The distribution installs the packages `coordgraph`, `passes` and `codegen`. Python imports the
first package with a name on `sys.path`: a folder `passes` beside a program, or a package `codegen`
of another distribution, is then imported in place of the installed package.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from importlib.machinery import ModuleSpec
from importlib.util import find_spec

__all__ = [
    "NAMES",
    "OVERRULED",
    "claimants",
    "hidden",
    "hiding_file",
    "is_own",
    "package_folder",
    "prefer_own",
    "require",
]

NAMES = ("coordgraph", "passes", "codegen")
"""The packages that the distribution installs."""
HOME = os.path.realpath(os.path.join(os.path.dirname(__file__), os.pardir))
"""The folder that contains the three packages of this distribution."""
OVERRULED: dict[str, str] = {}
"""For each package that a file hid before `prefer_own` was called, the sentence of `hidden`."""
MARK = b"coordgraph"
"""Text that the `__init__.py` of each of this distribution's packages contains.

If another distribution has overwritten such a file with its own package of the same name, the file
lacks this text.
"""


def package_folder(name: str) -> str:
    """The folder of the package `name` of this distribution."""
    return os.path.join(HOME, name)


def hiding_file(name: str) -> str | None:
    """The file that `import name` runs in place of this distribution's package.

    None if the import runs this distribution's package, or finds nothing.
    """
    spec = _spec(name)
    if spec is None:
        return None
    file = spec.origin or next(iter(spec.submodule_search_locations or ()), name)
    return None if is_own(name, file) else file


def is_own(name: str, file: str) -> bool:
    """Whether `file` is the `__init__.py` that this distribution installed for package `name`."""
    if os.path.realpath(os.path.dirname(file)) != package_folder(name):
        return False
    if not file.endswith(".py"):
        return True
    try:
        with open(file, "rb") as source:
            return MARK in source.read()
    except OSError:
        return True  # assume that the file is our own: files in a zip archive cannot be opened


def hidden(names: Iterable[str] = NAMES) -> str | None:
    """A sentence about a file that hides a package of this distribution; None if no file does."""
    for name in names:
        if (file := hiding_file(name)) is not None:
            return _advice(name, file)
    return None


def prefer_own() -> None:
    """Let later imports of this process find this distribution's packages first.

    `coordgraph doctor` can then examine the rest of an installation whose packages are hidden.
    """
    OVERRULED.update({name: reason for name in NAMES if (reason := hidden([name])) is not None})
    sys.path.insert(0, HOME)


def require(*names: str) -> None:
    """Raise an error if a file hides one of the packages `names` of this distribution.

    Raises:
        ImportError: a file hides a package; the message names the file.
    """
    if reason := hidden(names):
        raise ImportError(reason)


def claimants(name: str) -> tuple[str, ...]:
    """The other installed distributions that have a top-level package `name`."""
    # Imported when first needed, because this import would slow down `import coordgraph`.
    from importlib.metadata import packages_distributions

    found = packages_distributions().get(name, ())
    return tuple(sorted({each for each in found if each != "coordgraph"}))


def _spec(name: str) -> ModuleSpec | None:
    try:
        return find_spec(name)
    except ValueError:  # the module is loaded, but its attribute `__spec__` is None
        file = getattr(sys.modules[name], "__file__", None)
        return ModuleSpec(name, None, origin=file) if file else None


def _advice(name: str, file: str) -> str:
    *first, last = NAMES
    found = (
        f"'import {name}' runs {file}, which is not part of coordgraph. The distribution "
        f"coordgraph installs the packages {', '.join(first)} and {last}; its {name} is in "
        f"{package_folder(name)}."
    )
    if others := claimants(name):
        named = " and ".join(f"'{other}'" for other in others)
        return (
            f"{found} The package may be that of {named}: uninstall {named} and reinstall "
            "coordgraph, or install coordgraph in a virtual environment of its own"
        )
    folder = file if os.path.isdir(file) else os.path.dirname(file)
    what = folder if os.path.basename(folder) == name else file
    return f"{found} Rename {what}, or run Python where it is not found first on sys.path"
