"""The kernels with a dynamic tile scheduler that tests/gpu launches."""

from __future__ import annotations

from passes import DataParallel, Rasterize
from tests.gpu.kernels import Spec

__all__ = ["SPECS"]

DYNAMIC = (DataParallel(persistent=True, scheduler="dynamic"),)
HOPPER = (
    Spec(DYNAMIC, (128, 128, 64), "nt", target="sm_90a", cluster=(1, 1, 1)),
    Spec(DYNAMIC, (128, 128, 64), "nn", target="sm_90a", cluster=(2, 1, 1)),
    Spec(DYNAMIC, (256, 256, 64), "nt", target="sm_90a", cluster=(2, 2, 1)),
    Spec(DYNAMIC, (64, 128, 128), "nt", target="sm_90a", cluster=(1, 1, 2)),
    Spec(DYNAMIC, (64, 128, 64), "nt", target="sm_90a", cluster=(1, 1, 1), consumers="pingpong"),
    Spec(DYNAMIC, (128, 128, 64), "tn", target="sm_90a", cluster=(2, 1, 1), consumers="pingpong"),
)
SPECS = (
    Spec(DYNAMIC, (64, 64, 32), "nn", target="sm_80"),
    Spec((Rasterize(width=4), *DYNAMIC), (128, 64, 32), "nt", "f16", target="sm_80"),
    *HOPPER,
)
