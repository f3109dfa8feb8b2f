# Tests and benchmarks for a GPU use torch; it need not be installed to check their types.

from typing import Any

def __getattr__(name: str) -> Any: ...
