"""PyTorch operators: matrix products with gradients that `torch.compile` keeps in one graph.

```
import codegen.torch as cgt

y = cgt.linear(x, weight, bias)  # as torch.nn.functional.linear
```

The functions call custom operators, `torch.ops.coordgraph.matmul`, `addmm` and `grouped_mm`, which
have gradients, fake kernels, and rules for autocast; all but `grouped_mm` have rules for vmap.
This package needs PyTorch, which the extra `torch` installs; nothing else in `codegen` imports it.
"""

from importlib import import_module
from importlib.util import find_spec

if find_spec("torch") is None:
    raise ModuleNotFoundError(
        "codegen.torch needs PyTorch, which is not installed; install it, as by "
        "pip install 'coordgraph[torch]'",
        name="torch",
    )

from codegen.torch.functions import addmm, bmm, grouped_mm, linear, matmul
from codegen.torch.mode import use_kernels
from codegen.torch.modules import Linear, SwiGLU, replace_linears

import_module("codegen.torch.general")  # lets torch.compile trace codegen.matmul

__all__ = [
    "Linear",
    "SwiGLU",
    "addmm",
    "bmm",
    "grouped_mm",
    "linear",
    "matmul",
    "replace_linears",
    "use_kernels",
]
