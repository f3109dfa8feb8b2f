"""Reduce-scatter on Hopper: a share of a tile is one 16-byte access of every consumer thread."""

from __future__ import annotations

from collections.abc import Callable

from coordgraph.control.lowered import AccumulateFragment
from coordgraph.control.operations import Body, Epilogue, Operation, StoreTile
from coordgraph.coordinates.edges import Flatten, PassThrough
from coordgraph.coordinates.graph import CoordinateEditor
from coordgraph.gemm import SUM, GemmProblem
from passes.kit.reduce_scatter import SHARE, cut_otherwise
from passes.lowering.control import Accumulator, at
from passes.lowering.share_lowering import ScatterLowering
from passes.lowering.sm_90a.division import Division
from passes.lowering.sm_90a.partials import tie_memory
from passes.lowering.sm_90a.warpgroups import VECTOR, Pieces

__all__ = ["scatter"]


def scatter(
    c: CoordinateEditor,
    gemm: GemmProblem,
    division: Division,
    epilogue: Callable[[Accumulator, Epilogue], Body],
    width: int,
    main_loops: int,
) -> ScatterLowering:
    """Cut a tile into shares for reduce-scatter.

    The edge `Flatten` numbers the shares by `acc.m`, `acc.p` and `acc.n`, the coordinates of a
    thread's accumulator registers. A share has four registers of every thread, which `acc.half` and
    `acc.pair` number. One 16-byte access moves the four, so a share of partial sums is contiguous
    in memory.

    Args:
        c: the coordinate graph under construction, with the accumulator's coordinates.
        gemm: the matrix product: element types, extents, layouts and epilogue.
        division: how a macro tile is divided over workgroups and warpgroups.
        epilogue: a function that lowers an epilogue for the registers of an accumulator.
        width: number of elements of D that one access may store.
        main_loops: the number of main loops of the kernel.
    """
    pieces = Pieces(c, division)
    tie_memory(pieces)
    own, name = division.tiling.own, division.tiling.accumulator
    cut_otherwise(c, c[pieces.vector].fixed_size)
    c.connect(Flatten((own("acc.m"), own("acc.p"), own("acc.n")), SHARE))
    c.connect(PassThrough(pieces.vector, SHARE))
    # `no_sums` refuses an epilogue if the sums of one element of D are not adjacent registers, so
    # all sums of an element are in the same share.
    part = own("acc.pair") if SUM in c else ""
    share = Accumulator(c, (own("acc.half"),), own("acc.pair"), name, division.barrier, part)

    def after(op: Operation) -> Operation | Body:
        match op:
            case Epilogue():
                return epilogue(share, op)
            case StoreTile():
                return (share.store_output(gemm, op.tensor, width),)
            case _:
                return op

    return ScatterLowering(
        c,
        share,
        at({pieces.element: 0}, AccumulateFragment(name, "partials", (), VECTOR)),
        division.member,
        division.workitems,
        division.barrier,
        pieces.store("partials"),
        after,
        main_loops,
    )
