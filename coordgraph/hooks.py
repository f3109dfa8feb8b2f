"""Hooks: methods of graphs that are implemented in modules which import those graphs.

`KernelGraph.text()` needs the printer, and the printer needs `KernelGraph`. Python would run such
an import cycle only with imports inside functions. A hook breaks it: the graph's module declares
one and calls it, the printer's module implements it, and `coordgraph/__init__.py` imports both.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, ParamSpec, TypeVar

__all__ = ["Hook"]

P = ParamSpec("P")
R = TypeVar("R")


class Hook(Generic[P, R]):
    """A function that is declared in one module and implemented in another.

    Decorate the implementation with `implement`; call the hook like the function.

    Args:
        name: how error messages name the hook, such as `KernelGraph.text`.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._function: Callable[P, R] | None = None

    def implement(self, function: Callable[P, R]) -> Callable[P, R]:
        """Register `function` as the one implementation of the hook."""
        if self._function is not None:
            raise RuntimeError(
                f"the hook '{self.name}' is already implemented by {self._function}; implement a "
                "hook once"
            )
        self._function = function
        return function

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the implementation; RuntimeError if no module has registered one."""
        if self._function is None:
            raise RuntimeError(
                f"the hook '{self.name}' has no implementation yet; `import coordgraph` registers "
                "all implementations"
            )
        return self._function(*args, **kwargs)
