"""Trees of ranks, and reductions up and broadcasts down them, in one piece or in pipelined segments."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from busbw.ops.schedules import Round, Slots, Transfer, same


def distances(ranks: int) -> list[int]:
    """1, 2, 4, … below ``ranks``: ⌈lg n⌉ distances."""
    return [1 << level for level in range((ranks - 1).bit_length())]


@dataclass(frozen=True, slots=True)
class Edge:
    """Rank ``child`` is a child of rank ``parent``, ``depth`` edges below the root."""

    child: int
    parent: int
    depth: int


Tree = tuple[Edge, ...]


def filled(ranks: int, children: int) -> Tree:
    """A tree filled level by level, with up to ``children`` children per rank; with one, each rank is the child of the
    previous one.
    """
    return _hung([(rank - 1) // children for rank in range(1, ranks)], range(ranks))


def twins(members: Sequence[int], above: Sequence[int] = ()) -> tuple[Tree, Tree]:
    """Two binary trees of the same members, ⌈lg n⌉ deep: a rank with children in one is a leaf in the other, so that
    every rank sends and receives at once (Sanders et al. 2009). With an odd number, one member has one child in both.

    In the first tree the even places have children; place 0 is the root with one child. The second tree is the mirror
    image, or, if even places would have children again, shifted by one place (numbered as in NCCL's
    src/graph/trees.cc). ``above``: one more rank above both roots (none: empty).
    """
    ranks = len(members)
    parents = [_parent_of(place, ranks) for place in range(1, ranks)]
    other = [*reversed(members)] if ranks % 2 == 0 else [*members[1:], *members[:1]]
    if above:
        parents = [0, *(parent + 1 for parent in parents)]
    return _hung(parents, [*above, *members]), _hung(parents, [*above, *other])


def _parent_of(place: int, ranks: int) -> int:
    """Move the lowest bit of ``place`` up by one; drop it at the right edge, where no such place exists."""
    lowest = place & -place
    without = place ^ lowest
    return without | lowest << 1 if without | lowest << 1 < ranks else without


def _hung(parents: Sequence[int], members: Sequence[int]) -> Tree:
    """The tree in which place p + 1 is a child of place ``parents[p]``, with ``members`` in these places."""
    depths = {0: 0}

    def depth(place: int) -> int:
        if place not in depths:
            depths[place] = depth(parents[place - 1]) + 1
        return depths[place]

    return tuple(Edge(members[place], members[parent], depth(place)) for place, parent in enumerate(parents, start=1))


def in_segments(trees: Sequence[Tree], segments: int, *, adds: bool) -> Iterator[Round]:
    """Each tree carries its share of the blocks in ``segments`` pipelined segments. ``adds``: it reduces them to its
    root, starting at the deepest leaves; otherwise the root broadcasts them.
    """
    deepest = max((edge.depth for tree in trees for edge in tree), default=0)

    def message(edge: Edge, slot: int) -> Transfer:
        source, to = (edge.child, edge.parent) if adds else (edge.parent, edge.child)
        return same(source, to, (slot,), adds=adds)

    for turn in range(deepest - 1 + segments if deepest else 0):
        yield tuple(
            message(edge, number * segments + segment)
            for number, tree in enumerate(trees)
            for edge in tree
            if 0 <= (segment := turn - (deepest - edge.depth if adds else edge.depth - 1)) < segments
        )


def up_the_binomial_tree(ranks: int, *, gathers: bool = False) -> Iterator[Round]:
    """To rank 0, one child after the other: reduce everything, or gather the blocks of the ranks below."""
    for step in distances(ranks):
        yield tuple(
            same(rank, rank - step, _below(rank, step, ranks) if gathers else (0,), adds=not gathers)
            for rank in range(step, ranks, 2 * step)
        )


def down_the_binomial_tree(ranks: int, *, scatters: bool = False) -> Iterator[Round]:
    """From rank 0 to all others, one child after the other: broadcast everything, or scatter the blocks of the ranks
    below.
    """
    for step in reversed(distances(ranks)):
        yield tuple(
            same(rank - step, rank, _below(rank, step, ranks) if scatters else (0,))
            for rank in range(step, ranks, 2 * step)
        )


def _below(rank: int, step: int, ranks: int) -> Slots:
    return tuple(range(rank, min(rank + step, ranks)))
