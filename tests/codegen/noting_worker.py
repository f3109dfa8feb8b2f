"""A compile worker that compiles nothing: it writes each plan to a file in the cache folder.

It refuses plans whose tiles have REFUSED_COLUMNS columns, ends at plans whose tiles have
ENDING_ROWS rows, and has no memory to load kernels whose tiles have FAILING_ROWS rows.
"""

from __future__ import annotations

import os
import tempfile
from typing import Any

from codegen.cache import cache_directory
from codegen.call import build, compile_workers
from codegen.targets.nvptx import driver
from coordgraph import CodegenError, LaunchError
from passes.choosing import Plan

REFUSED_COLUMNS, ENDING_ROWS, FAILING_ROWS = 256, 96, 80


class Noted:
    def __init__(self, plan: Plan) -> None:
        self.plan = plan

    def preload(self, where: object, *, reads_c: bool) -> None:
        if self.plan.tile[0] == ENDING_ROWS:
            os._exit(1)
        if self.plan.tile[0] == FAILING_ROWS:
            raise LaunchError("no memory")


def note(plan: Plan, request: Any) -> Noted:
    print("this is no answer")
    descriptor, _ = tempfile.mkstemp(prefix="noted", dir=cache_directory())
    with os.fdopen(descriptor, "w") as file:
        file.write(str(plan))
    if plan.tile[1] == REFUSED_COLUMNS:
        raise CodegenError("registers spill")
    return Noted(plan)


if __name__ == "__main__":
    build.kernel_of = note  # pyright: ignore[reportAttributeAccessIssue]
    driver.device = lambda ordinal: None  # pyright: ignore[reportAttributeAccessIssue]
    compile_workers.main()
