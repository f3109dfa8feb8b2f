# A contender of the benchmarks; it need not be installed to check their types.

from typing import Any

def __getattr__(name: str) -> Any: ...
