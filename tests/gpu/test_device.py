from __future__ import annotations

from tests.support.gpu import Gpu


def test_the_device_is_one_the_targets_know(gpu: Gpu):
    assert gpu.name
    assert gpu.capability >= (8, 0)
    assert gpu.workgroup_slots > 0
