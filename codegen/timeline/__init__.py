"""Measured timelines: the activities of every workgroup of a launch, with times and SMs."""

from typing import TYPE_CHECKING

from coordgraph.late import late_names

if TYPE_CHECKING:
    from codegen.timeline.decode import decode
    from codegen.timeline.timeline import Timeline
else:
    __getattr__, __dir__ = late_names(
        __name__,
        {
            "Timeline": "codegen.timeline.timeline:Timeline",
            "decode": "codegen.timeline.decode:decode",
        },
        modules=("chrome",),
    )

__all__ = ["Timeline", "decode"]
