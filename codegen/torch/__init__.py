"""PyTorch operators: matrix products with gradients that `torch.compile` keeps in one graph.

```
import codegen.torch as cgt

y = cgt.linear(x, weight, bias)  # as torch.nn.functional.linear
```

The functions call custom operators, such as `torch.ops.coordgraph.matmul`, which have gradients and
tangents (`codegen.torch.derivatives`), fake kernels, and rules for autocast and vmap. There are
three exceptions: `scaled_mm` has no gradient and no rule for vmap, and autocast casts no tensor of
it; `cross_entropy` has no tangent and no second derivative; and the operators that `linear` calls
for an activation have no rule for vmap, so that PyTorch calls them once for each index.
Calls in eager mode on plain tensors give the same results without PyTorch's dispatcher
(`codegen.torch.direct`), and calls that repeat an earlier one only launch a kernel
(`codegen.torch.repeats`).
This package needs PyTorch, which the extra `torch` installs; nothing else in `codegen` imports it.
"""

from importlib import import_module
from importlib.util import find_spec
from typing import Any

if find_spec("torch") is None:
    raise ModuleNotFoundError(
        "codegen.torch needs PyTorch, which is not installed; install it, as by "
        "pip install 'coordgraph[torch]'",
        name="torch",
    )

from codegen.torch.cross_entropy import cross_entropy
from codegen.torch.functions import addmm, bmm, grouped_mm, linear, matmul
from codegen.torch.gated import gated, swiglu
from codegen.torch.mode import use_kernels
from codegen.torch.modules import GeGLU, Linear, ReGLU, SwiGLU, replace_linears
from codegen.torch.scaled import scaled_mm

import_module("codegen.torch.flops")  # makes PyTorch count operations of the operators
import_module("codegen.torch.general")  # makes torch.compile trace calls of codegen.matmul
import_module("codegen.torch.sharding")  # lets DTensor divide products among devices

__all__ = [
    "GeGLU",
    "Linear",
    "ReGLU",
    "SwiGLU",
    "addmm",
    "bmm",
    "cross_entropy",
    "gated",
    "grouped_mm",
    "linear",
    "matmul",
    "replace_linears",
    "scaled_mm",
    "swiglu",
    "use_kernels",
]

# `torch.fx.symbolic_trace` records calls of these functions; it does not trace inside them.
for _name in __all__:
    if _name.islower() and _name not in ("replace_linears", "use_kernels"):
        import_module("torch.fx").wrap(_name)


def __getattr__(name: str) -> Any:
    """Raise AttributeError; for `scaled_grouped_mm`, say what to use instead."""
    if name == "scaled_grouped_mm":
        raise AttributeError(
            "codegen.torch has no scaled_grouped_mm; use torch.nn.functional.scaled_grouped_mm, "
            "scaled_mm for each group, or codegen.grouped_matmul with an epilogue that scales"
        )
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
