"""A process that multiplies on the GPU at the same time as others.

The arguments of `python -m tests.gpu.process_client` are a folder, the name of this process, and
the number of processes. When all have written a file of their name in the folder, all begin. The
process prints a JSON object: for each kernel that it has built, whether its code came from the
cache on disk.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

__all__ = ["LAUNCHES", "PLANS", "SIZES"]

SIZES = (520, 392, 2056), (1024, 512, 256)
PLANS = None, "128x128x64 stream-k", "128x128x64 stream-k{owner=last}"
"""Plans of the calls; None lets the cost model choose. Workgroups of the others wait for each
other, and with the default owner a launch is cooperative."""
LAUNCHES = 30
"""Number of launches of each size and plan."""
LONGEST = 120.0
"""Longest time, in seconds, that a process waits until the other processes have started."""


def main(folder: Path, name: str, count: int) -> None:
    import torch

    import codegen
    from codegen.call import build
    from codegen.targets.nvptx import CudaKernel

    draw: Any = {"device": "cuda", "generator": torch.Generator("cuda").manual_seed(0)}
    problems: list[tuple[Any, Any, Any]] = []
    for m, n, k in SIZES:
        a = torch.randint(-1, 2, (m, k), **draw).bfloat16()
        b = torch.randint(-1, 2, (k, n), **draw).bfloat16()
        problems.append((a, b, (a.float() @ b.float()).bfloat16()))
    torch.cuda.synchronize()
    (folder / name).touch()
    end = time.monotonic() + LONGEST
    while len(list(folder.iterdir())) < count:
        if time.monotonic() > end:
            sys.exit("the other processes have not begun")
        time.sleep(0.001)
    wrong = torch.zeros((), dtype=torch.int64, device="cuda")
    for plan in PLANS:
        for a, b, right in problems:
            out = torch.empty_like(right)
            for _ in range(LAUNCHES):
                out.fill_(float("nan"))
                codegen.matmul(a, b, out=out, plan=plan)
                wrong += (out != right).sum()
    if int(wrong):
        sys.exit(f"{int(wrong)} elements are wrong")
    kernels = ((key[0], kernel) for key, kernel in build._kernels.items())
    print(json.dumps({p: made.from_cache for p, made in kernels if isinstance(made, CudaKernel)}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
