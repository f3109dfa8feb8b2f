"""Measured timelines: the activities of every workgroup of a launch, with times and SMs."""

from codegen.timeline.decode import decode
from codegen.timeline.timeline import Timeline

__all__ = ["Timeline", "decode"]
