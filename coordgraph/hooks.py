"""Hooks: methods of graph classes, implemented in modules that import these classes.

`KernelGraph.text()` needs the printer, and the printer needs `KernelGraph`. Python would run such
an import cycle only with imports inside functions. A hook breaks the cycle: the graph's module
declares a hook with the name of the printer's module, the printer's module implements the hook, and
the hook's first call imports the printer's module.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Generic, ParamSpec, TypeVar

__all__ = ["Hook"]

P = ParamSpec("P")
R = TypeVar("R")


class Hook(Generic[P, R]):
    """A function that is declared in one module and implemented in another.

    Decorate the implementation with the hook's method `implement`, and call the hook like a
    function.

    Args:
        name: how error messages name the hook, such as `KernelGraph.text`.
        module: the module with the implementation; the hook's first call imports this module.
    """

    def __init__(self, name: str, module: str) -> None:
        self.name, self.module = name, module
        self._function: Callable[P, R] | None = None

    def implement(self, function: Callable[P, R]) -> Callable[P, R]:
        """Register `function` as the hook's only implementation."""
        if self._function is not None:
            raise RuntimeError(
                f"the hook '{self.name}' is already implemented by {self._function}; implement a "
                "hook once"
            )
        self._function = function
        return function

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the hook's implementation.

        Raises:
            RuntimeError: the module that should implement the hook does not.
        """
        if self._function is None:
            import_module(self.module)
        if self._function is None:
            raise RuntimeError(
                f"the hook '{self.name}' has no implementation in {self.module}; decorate one "
                "there with `implement`"
            )
        return self._function(*args, **kwargs)
