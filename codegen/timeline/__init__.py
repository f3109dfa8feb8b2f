"""Measured timelines: what every workgroup of a launch did when, and on which SM."""

from codegen.timeline.decode import decode
from codegen.timeline.timeline import Timeline

__all__ = ["Timeline", "decode"]
