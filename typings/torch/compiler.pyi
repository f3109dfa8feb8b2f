from collections.abc import Callable
from typing import Any, TypeVar

_F = TypeVar("_F", bound=Callable[..., Any])

def substitute_in_graph(original_fn: Callable[..., Any]) -> Callable[[_F], _F]: ...
def __getattr__(name: str) -> Any: ...
