"""GPU models that a caller may name although this machine does not have them.

The numbers of SMs and the compute capabilities are those of NVIDIA's architecture white papers and
data sheets.
"""

from __future__ import annotations

from typing import NamedTuple

from passes.choosing.device_names import matching, short_name

__all__ = ["KNOWN_GPUS", "KnownGpu", "matching", "short_name"]


class KnownGpu(NamedTuple):
    """A GPU model.

    Args:
        name: the name of the model, as the driver reports it.
        capability: compute capability times ten: 90 for 9.0.
        processors: number of SMs.
        others: other names of the model that a caller may give.
    """

    name: str
    capability: int
    processors: int
    others: tuple[str, ...] = ()


KNOWN_GPUS = (
    KnownGpu("NVIDIA A100-SXM4-80GB", 80, 108),
    KnownGpu("NVIDIA A100 80GB PCIe", 80, 108),
    KnownGpu("NVIDIA A30", 80, 56),
    KnownGpu("NVIDIA A10", 86, 72),
    KnownGpu("NVIDIA A40", 86, 84),
    KnownGpu("NVIDIA RTX A6000", 86, 84),
    KnownGpu("NVIDIA GeForce RTX 3090", 86, 82),
    KnownGpu("NVIDIA L4", 89, 58),
    KnownGpu("NVIDIA L40", 89, 142),
    KnownGpu("NVIDIA L40S", 89, 142),
    KnownGpu("NVIDIA GeForce RTX 4090", 89, 128),
    KnownGpu("NVIDIA H100 80GB HBM3", 90, 132, ("H100 SXM5",)),
    KnownGpu("NVIDIA H100 PCIe", 90, 114),
    KnownGpu("NVIDIA H100 NVL", 90, 132),
    KnownGpu("NVIDIA H200", 90, 132, ("H200 SXM5", "H200 141GB")),
    KnownGpu("NVIDIA GH200 480GB", 90, 132),
    KnownGpu("NVIDIA B200", 100, 148),
    KnownGpu("NVIDIA GeForce RTX 5090", 120, 170),
)
"""GPU models. If a short name fits several models, it means the first, which is the most common."""
