"""The option `background`: whether a call waits for the compiler.

The option is the argument `background` of a call or, if that is None, a setting of the process: the
environment variable `COORDGRAPH_BACKGROUND`, or a block of `background_builds`.
"""

from __future__ import annotations

import os
import threading
from types import TracebackType

from coordgraph import CodegenError

__all__ = ["background_builds", "setting"]

VARIABLE = "COORDGRAPH_BACKGROUND"
"""The environment variable that decides whether kernels are built in the background, for calls with
`background=None` outside `background_builds`: 1 for yes, 0 or '' for no."""
ANSWERS = {"": False, "0": False, "1": True}


class background_builds:
    """Build kernels in the background during a block of code, in all threads of the process.

    ```
    with codegen.background_builds():
        y = model(x)
    ```

    A call of `matmul` or `grouped_matmul` for which the cost model prefers a plan whose kernel is
    not built is then served at once by the best plan whose kernel this process has loaded for such
    a problem. The preferred kernel is compiled meanwhile by another process, and is used by the
    calls after that. If no loaded kernel serves, the call waits for the compiler. Calls with
    `background=False`, `tune=True` or `plan` are never served by another plan's kernel: they wait
    for the compiler.

    Two plans may add in different orders, so the last bits of a result may change when the
    preferred kernel is built.
    """

    open = 0
    """Number of `with` blocks of `background_builds` that are being run, by all threads."""
    _lock = threading.Lock()

    def __enter__(self) -> background_builds:
        self._count(1)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._count(-1)

    @staticmethod
    def _count(change: int) -> None:
        with background_builds._lock:
            background_builds.open += change


class _Setting:
    """The default of the option `background` in this process."""

    @property
    def on(self) -> bool:
        """Whether calls with `background=None` may use another kernel until the best one is built.

        Raises:
            CodegenError: the environment variable has another value than '', `0` and `1`.
        """
        if background_builds.open:
            return True
        text = os.environ.get(VARIABLE, "")
        if text not in ANSWERS:
            raise CodegenError(
                f"{VARIABLE} = {text!r} is neither 0 nor 1; set it to 1 to build kernels in the "
                "background, or to 0"
            )
        return ANSWERS[text]


setting = _Setting()
