"""JAX functions: matrix products in `jax.jit`, with gradients and `jax.vmap`, without copies.

```
import codegen.jax as cgj

y = jax.jit(lambda x, w: cgj.matmul(x, w, transpose_b=True))(x, w)
```

XLA calls the kernels as foreign functions (XLA FFI), on its own stream and buffers. This package
needs JAX, which the extra `jax` installs; nothing else in `codegen` imports it.
"""

from importlib.util import find_spec

if find_spec("jax") is None:
    raise ModuleNotFoundError(
        "codegen.jax needs JAX, which is not installed; install it, as by "
        "pip install 'coordgraph[jax]', or pip install 'jax[cuda13]' for GPUs",
        name="jax",
    )

from codegen.jax.exporting import export_checks
from codegen.jax.functions import matmul

__all__ = ["export_checks", "matmul"]
