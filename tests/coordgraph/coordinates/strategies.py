"""Random edges with sizes that fit them: one Hypothesis strategy for every kind of edge."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate, pairwise
from math import prod

from hypothesis import strategies as st
from sympy import Integer

from coordgraph import CoordinateGraph
from coordgraph.coordinates.dimensions import Linear
from coordgraph.coordinates.edges import (
    Balance,
    Bands,
    Concatenate,
    Curve,
    Deal,
    Diagonal,
    Edge,
    Flatten,
    Gather,
    Interleave,
    Join,
    PassThrough,
    Permute,
    Ragged,
    Share,
    Split,
    Sunder,
    Swizzle,
    Tile,
)
from coordgraph.coordinates.laws import Trial

Case = tuple[Edge, tuple[int, ...], tuple[int, ...]]
"""Type: an edge, the sizes of its upstream and of its downstream dimensions."""

STRATEGIES: dict[str, Callable[[], st.SearchStrategy[Case]]] = {}
extents = st.integers(1, 6)


def strategy(kind: type[Edge]) -> Callable[[Callable[..., Case]], None]:
    """A decorator that registers the strategy for a kind of edge."""

    def register(make: Callable[..., Case]) -> None:
        STRATEGIES[kind.__name__] = st.composite(make)

    return register


def names(side: str, count: int) -> tuple[str, ...]:
    return tuple(f"{side}{i}" for i in range(count))


@strategy(PassThrough)
def pass_through(draw: st.DrawFn) -> Case:
    size = draw(extents)
    return PassThrough("u0", "d0"), (size,), (size,)


@strategy(Flatten)
def flatten(draw: st.DrawFn) -> Case:
    sizes = tuple(draw(st.lists(extents, min_size=1, max_size=4)))
    return Flatten(names("u", len(sizes)), "d0"), sizes, (prod(sizes),)


@strategy(Bands)
def bands(draw: st.DrawFn) -> Case:
    rows, columns = draw(st.integers(1, 12)), draw(extents)
    edge = Bands(names("u", 2), "d0", width=draw(extents), snake=draw(st.booleans()))
    return edge, (rows, columns), (rows * columns,)


@strategy(Curve)
def curve(draw: st.DrawFn) -> Case:
    sizes = draw(st.integers(1, 20)), draw(st.integers(1, 20))
    function = draw(st.sampled_from(Curve.FUNCTIONS))
    edge = Curve(names("u", 2), names("d", 2), function=function, side=2 ** draw(st.integers(1, 4)))
    return edge, sizes, sizes


@strategy(Deal)
def deal(draw: st.DrawFn) -> Case:
    size = draw(st.integers(1, 40))
    return Deal("u0", "d0", groups=draw(st.integers(1, 9))), (size,), (size,)


@strategy(Tile)
def tile(draw: st.DrawFn) -> Case:
    inner = draw(st.lists(extents, max_size=3))
    whole = draw(st.integers(1, 40))
    covers = -(-whole // prod(inner)) + draw(st.integers(0, 1))
    return Tile("u0", names("d", 1 + len(inner))), (whole,), (covers, *inner)


@strategy(Balance)
def balance(draw: st.DrawFn) -> Case:
    whole, shares = draw(st.integers(1, 40)), draw(st.integers(1, 9))
    longest = -(-whole // shares) + draw(st.integers(0, 1))
    return Balance("u0", names("d", 2)), (whole,), (shares, longest)


@strategy(Share)
def share(draw: st.DrawFn) -> Case:
    depth, length = draw(st.integers(1, 6)), draw(st.integers(1, 8))
    before = draw(st.integers(0, depth - 1))
    behind = draw(st.integers(0, depth - 1 - before))
    edge = Share("u0", names("d", 3), *map(Integer, (length, depth, before, behind)))
    whole = depth * draw(st.integers(1, 3))
    covers = -(-whole // length) + draw(st.integers(0, 1))
    return edge, (whole,), (covers, whole, length + before + behind + draw(st.integers(0, 1)))


@strategy(Interleave)
def interleave(draw: st.DrawFn) -> Case:
    sizes = draw(st.integers(1, 6)), draw(st.integers(1, 12))
    share = Integer(draw(st.integers(1, 30)))
    return Interleave(names("u", 2), names("d", 2), share), sizes, sizes


def nested(draw: st.DrawFn) -> tuple[list[int], list[int]]:
    """(sizes, strides) of a `Split`, such that no two index tuples have the same offset.

    The strides may leave gaps, and come in any order.
    """
    sizes = draw(st.lists(extents, min_size=1, max_size=4))
    strides: list[int] = []
    reach = 0
    for size in sizes:
        strides.append(reach + draw(st.integers(1, 3)))
        reach += (size - 1) * strides[-1]
    order = draw(st.permutations(range(len(sizes))))
    return [sizes[i] for i in order], [strides[i] for i in order]


def last_index(sizes: list[int], strides: list[int]) -> int:
    return sum((size - 1) * stride for size, stride in zip(sizes, strides, strict=True))


@strategy(Split)
def split(draw: st.DrawFn) -> Case:
    sizes, strides = nested(draw)
    edge = Split("u0", names("d", len(sizes)), tuple(map(Integer, strides)))
    return edge, (last_index(sizes, strides) + 1,), tuple(sizes)


@strategy(Join)
def join(draw: st.DrawFn) -> Case:
    sizes, strides = nested(draw)
    edge = Join(names("u", len(sizes)), "d0", tuple(map(Integer, strides)))
    return edge, tuple(sizes), (last_index(sizes, strides) + 1,)


@strategy(Sunder)
def sunder(draw: st.DrawFn) -> Case:
    sizes = tuple(draw(st.lists(st.integers(0, 6), min_size=1, max_size=4).filter(sum)))
    edge = Sunder("u0", names("d", len(sizes) + 1))
    return edge, (sum(sizes),), (*sizes, len(sizes))


@strategy(Swizzle)
def swizzle(draw: st.DrawFn) -> Case:
    function = draw(st.sampled_from(Swizzle.FUNCTIONS))
    others = draw(st.lists(extents, min_size=function != "reflect", max_size=2))
    modulus = 2 ** draw(st.integers(0, 2))
    last = draw(extents) * (modulus if function == "xor" else 1)
    sizes = (*others, last)
    options = {"divisor": draw(st.integers(1, 3)), "modulus": modulus} if function == "xor" else {}
    edge = Swizzle(names("u", len(sizes)), names("d", len(sizes)), function=function, **options)
    return edge, sizes, sizes


def table_of(edge: Edge) -> dict[str, tuple[int, ...]]:
    """The entries of the tables that an edge reads, parsed from the tables' names."""
    found = [
        x for value in edge.details.values() for x in (value if type(value) is tuple else (value,))
    ]
    names = [x for x in found if isinstance(x, str) and x.startswith("table_")]
    return {name: tuple(map(int, name.split("_")[1:])) for name in names}


def named(entries: list[int]) -> str:
    """The name of a table with the given entries, such as `table_0_2_5`."""
    return "_".join(["table", *map(str, entries)])


@st.composite
def borders(draw: st.DrawFn) -> list[int]:
    """Non-decreasing positions where the parts of an edge such as `Concatenate` begin and end."""
    sizes = draw(st.lists(st.integers(0, 5), min_size=1, max_size=5).filter(any))
    return [sum(sizes[:i]) for i in range(len(sizes) + 1)]


@strategy(Permute)
def permute(draw: st.DrawFn) -> Case:
    order = draw(extents.flatmap(lambda size: st.permutations(range(size))))
    inverse = [order.index(place) for place in range(len(order))]
    edge = Permute("u0", "d0", named(order), named(inverse))
    return edge, (len(order),), (len(order),)


@strategy(Gather)
def gather(draw: st.DrawFn) -> Case:
    whole = draw(extents)
    entries = draw(st.lists(st.integers(0, whole - 1), min_size=1, max_size=8))
    return Gather("u0", "d0", named(entries)), (whole,), (len(entries),)


@strategy(Ragged)
def ragged(draw: st.DrawFn) -> Case:
    entries = draw(borders())
    sizes = [after - before for before, after in pairwise(entries)]
    padded = max(sizes) + draw(st.integers(0, 2))
    edge = Ragged("u0", names("d", 2), named(entries))
    return edge, (entries[-1],), (len(sizes), padded)


@strategy(Concatenate)
def concatenate(draw: st.DrawFn) -> Case:
    entries = draw(borders())
    sizes = [after - before for before, after in pairwise(entries)]
    between = tuple(draw(st.lists(st.integers(1, 3), max_size=2)))
    above = names("u", 2 + len(between))
    if draw(st.booleans()):
        edge = Concatenate(above, "d0", named(entries))
        return edge, (len(sizes), *between, max(sizes)), (prod(between) * entries[-1],)
    # Each concatenated part has its own extents in all upstream dimensions but the part's number.
    shapes = [[draw(extents) for _ in above[1:]] for _ in sizes]
    along = list(zip(*shapes, strict=True))
    starts = sums(map(prod, shapes))
    edge = Concatenate(above, "d0", named(starts), tuple(named(sums(own)) for own in along))
    return edge, (len(sizes), *map(max, along)), (starts[-1],)


def sums(sizes: Iterable[int]) -> list[int]:
    """The first index of each of several consecutive parts, and the end of the last."""
    return [0, *accumulate(sizes)]


@strategy(Diagonal)
def diagonal(draw: st.DrawFn) -> Case:
    step = draw(st.integers(1, 3))
    shapes = draw(st.lists(st.tuples(extents, extents), min_size=1, max_size=4))
    rows, columns = (sums(own) for own in zip(*shapes, strict=True))
    starts = sums(row * -(-column // step) * step for row, column in shapes)
    edge = Diagonal("u0", names("d", 3), *map(named, (starts, rows, columns)), step)
    return edge, (starts[-1],), (len(shapes), rows[-1], columns[-1])


def trial_of(case: Case) -> Trial:
    """The edge with its sizes and tables, for tests that `reverse` and `forward` are inverse.

    A `Concatenate` is tested only at upstream indices that lie inside a part.
    """
    edge, above, below = case
    tables = table_of(edge)
    if not isinstance(edge, Concatenate):
        return Trial(edge, above, below, tables)
    borders = [tables[name] for name in edge.extents or (edge.table,)]

    def inside(u: Sequence[int]) -> bool:
        segment, *own = u
        last = own[len(own) - len(borders) :]
        return all(i < t[segment + 1] - t[segment] for i, t in zip(last, borders, strict=True))

    return Trial(edge, above, below, tables, inside)


def graph_of(case: Case) -> CoordinateGraph:
    """A graph with one edge; its dimensions are named u0, u1, … and d0, d1, …."""
    edge, above, below = case
    with CoordinateGraph().edit() as e:
        for name, size in zip((*edge.upstream, *edge.downstream), (*above, *below), strict=True):
            e.add(Linear(name, Integer(size)))
        e.connect(edge)
    return e.graph
