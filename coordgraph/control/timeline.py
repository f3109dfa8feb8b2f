"""Operations that record when a workgroup begins its activities: `Begin`, `Stamp`, `Timed`.

`Begin` marks, in a graph of any level, where a workgroup begins an activity; an activity ends where
the next one begins. `Begin` computes nothing. `Stamp` is the lowered form: one thread writes a
record of `RECORD_WORDS` 32-bit words to a tensor in device memory. The coordinate graph gives the
record's address, and the output tile and the k tiles that the record names.

Words of a record: the clock (2 words, low first), a code (`code_of`), the stalled clock cycles, and
four numbers, which depend on the record's form:

- `tile`: number of the matrix product, m and n (the position of the output tile, counted in unit
  tiles, see `Begin`; -1 for padding), 0;
- `range`: number of the first k tile, number of k tiles, 0, 0;
- `whole`: the global timer in nanoseconds (2 words, low first), the number of the processor, the
  number of records so far;
- `plain`: zeros.
"""

from __future__ import annotations

from dataclasses import dataclass

from sympy import Expr, Integer, sympify

from coordgraph.control.operations import Body, Operation

__all__ = [
    "ACTIVITIES",
    "END",
    "FORMS",
    "RECORD_WORDS",
    "ROLES",
    "Begin",
    "Stamp",
    "Timed",
    "code_of",
    "decoded",
]

ZERO = Integer(0)
END = "end"
"""Activity name in the last record of each role of threads, written when the workgroup ends."""
ACTIVITIES = (
    "start",
    "multiply",
    "send",
    "wait",
    "receive",
    "finish",
    "drain",
    "turn",
    "load",
    END,
)
"""Names of the activities of a workgroup, as in `passes.simulation.events.Activity`. A timeline
record holds the index of a name in this tuple."""
ROLES = ("", "consumer", "producer")
"""Names of the roles of a workgroup's threads: a producer loads operands, a consumer multiplies. ''
means that all threads do the same."""
FORMS = ("plain", "tile", "range", "whole")
"""Names of the layouts of the last four words of a timeline record (one recorded activity)."""
RECORD_WORDS = 8
"""Size of a timeline record (one recorded activity), in 32-bit words."""


def code_of(activity: str, role: str, form: str) -> int:
    """Pack a timeline record's activity, role and layout into a word: 8 bits each, lowest first."""
    return ACTIVITIES.index(activity) | ROLES.index(role) << 8 | FORMS.index(form) << 16


def decoded(code: int) -> tuple[str, str, str]:
    """Unpack a timeline record's code word into the names of its activity, role and layout."""
    return ACTIVITIES[code & 255], ROLES[code >> 8 & 255], FORMS[code >> 16 & 255]


@dataclass(frozen=True)
class Begin(Operation):
    """Mark that the workgroup begins an activity, which ends where the workgroup's next one begins.

    Args:
        activity: the name of the activity, one of `ACTIVITIES`.
        tile: the dimensions whose indices are the number of the output tile: product (in graphs of
            several products), m and n; () if the activity belongs to no output tile.
        span: how many unit tiles the output tile covers in m and in n (`Tilings.span`). A unit tile
            is the largest tile that divides all shapes of output tiles in the graph.
        first: the dimension whose index is the number of the activity's first k tile; '' for none.
        count: how many k tiles the activity sums.
    """

    activity: str
    tile: tuple[str, ...] = ()
    span: tuple[int, int] = (1, 1)
    first: str = ""
    count: Expr = ZERO

    ROLES = ("tile", "first")

    def __post_init__(self) -> None:
        object.__setattr__(self, "count", sympify(self.count))


@dataclass(frozen=True)
class Stamp(Operation):
    """Write the record of an activity's begin to device memory; one thread executes the operation.

    Args:
        destination: the dimension of memory whose index locates the record's first word.
        activity, tile, span, first, count: the name of the activity, its output tile, how many unit
            tiles the output tile covers, its first k tile and its number of k tiles, as in `Begin`.
        role: the role of the thread, one of `ROLES`.
        stalled: clock cycles for which threads of this role have waited so far for data or for free
            pipeline stages.
        whole: whether the record holds the global timer, the number of the processor (an SM, or a
            thread of a CPU) and `count`, which is then the number of records of the role so far.
    """

    destination: str
    activity: str
    tile: tuple[str, ...] = ()
    span: tuple[int, int] = (1, 1)
    first: str = ""
    count: Expr = ZERO
    role: str = ""
    stalled: Expr = ZERO
    whole: bool = False

    ROLES = ("destination", "tile", "first")

    def __post_init__(self) -> None:
        for name in ("count", "stalled"):
            object.__setattr__(self, name, sympify(getattr(self, name)))

    @property
    def form(self) -> str:
        """Name of the layout of the record's last four words, one of `FORMS`."""
        if self.whole:
            return "whole"
        return "tile" if self.tile else "range" if self.first else "plain"


@dataclass(frozen=True)
class Timed(Operation):
    """Execute the body and add the clock cycles that its waits for mbarriers take to a counter.

    A wait takes 0 cycles if the phase of the mbarrier has completed when the wait begins.

    Args:
        dim: the dimension whose index is the counter.
        body: the operations, among them the waits (`WaitBarrier`).
    """

    dim: str
    body: Body = ()

    BODIES = ("body",)
    ROLES = ("dim",)
