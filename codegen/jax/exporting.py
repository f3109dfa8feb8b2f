"""Programs with kernels that `jax.export` exports, for other processes to run."""

from __future__ import annotations

from typing import Any

from codegen.jax.launching import TARGET

__all__ = ["export_checks"]


def export_checks() -> list[Any]:
    """The value to pass as `disabled_checks` to `jax.export.export` for programs with kernels.

    Without it JAX refuses, because it does not know whether the foreign function of the kernels
    stays compatible. A process that runs the exported program must import `codegen.jax` first, of
    the version of coordgraph that exported the program. It builds the kernels, or loads them from
    its cache.

    ```
    exported = jax.export.export(program, disabled_checks=cgj.export_checks())(x, w)
    ```

    Returns:
        A list of `jax.export.DisabledSafetyCheck`.
    """
    from jax import export

    return [export.DisabledSafetyCheck.custom_call(TARGET)]
