"""The cost models of Gloo, those of messages between two ranks on any backend, and the ops without a model.

α (seconds per message) and β (seconds per byte) come from point-to-point times of the same run, so a row is a
prediction, not a fit. R is the memory copy rate that all ranks of a host share (infinite over a network). ``select``
maps a curve to its algorithm.
"""

import math
from functools import partial
from typing import Final

from busbw.ops import FAMILIES, ON_SOCKETS, OPS
from busbw_analysis.data.unavailable import UNKNOWN_OP, Unavailable
from busbw_analysis.models.costs import GLOO, MPI, CostModel, none
from busbw_analysis.models.textbook import (
    down,
    down_a_tree_at_once,
    one,
    others,
    share,
    twice_the_others,
    twice_the_share,
    twice_up,
    two,
)

_MIB = 1 << 20


def gloo_segments(ranks: int, size_bytes: float) -> int:
    """The number of segments of a buffer in Gloo's ring: at most 1 MiB each, at least two per chunk of a rank.

    Source: gloo/allreduce.cc (``numSegments``), pytorch/gloo commit 70dc360.
    """
    return math.ceil(max(math.ceil(size_bytes / _MIB), 2 * ranks) / ranks) * ranks


def _gloo_ring_rounds(ranks: int, _hosts: int, size_bytes: float) -> float:
    """Both phases of the ring: all segments except those of the own chunk pass, two in flight; two delays per step."""
    segments = gloo_segments(ranks, size_bytes)
    return 4 * math.ceil((segments - segments // ranks) / 2)


def _gloo_reduce_waits(ranks: int, _hosts: int, size_bytes: float) -> float:
    """The ring, which forwards all segments but two, and the gather to the root."""
    return 2 * math.ceil((gloo_segments(ranks, size_bytes) - 2) / 2) + 2 if ranks > 1 else 0


def _ring_reduce_sent(ranks: int, _hosts: int, size_bytes: float) -> float:
    """Gloo's reduce sends all segments but two, more than the required fraction (n−1)/n."""
    segments = gloo_segments(ranks, size_bytes)
    return (segments - 2) / segments if ranks > 1 else 0


_EXECUTED: Final = "executed call by call (tests/shared/gloo_programs.py)"
_TWO_DELAYS: Final = (
    f"{_EXECUTED}, and measured as the slope of small-message time over the delay of emulated links: each step waits "
    "for the receiver's ready notification (gloo/transport/tcp/pair.cc), so it costs two delays"
)
_BROADCAST: Final = (
    f"{_EXECUTED}: all notifications are sent concurrently and cost one delay, then a message is forwarded ⌊lg n⌋ "
    "times; after Gloo's own barrier, from 4 ranks on, the last receiver starts one delay later and sees one delay "
    "less; measured: 2 delays on 2, 3 and 4 ranks; messages of a rank share its link, measured: 1, 2 and 3 S β on these"
)

_gloo = partial(CostModel, family=GLOO)
_ring = partial(
    _gloo,
    rounds=_gloo_ring_rounds,
    sent=twice_the_share,
    moved=twice_the_others,
    added=share,
    in_a_ring=True,
)
_message = partial(CostModel, sent=one, moved=one, in_a_ring=True)
_ring_of_messages = partial(_message, "send_recv", "ring of single messages", moved=lambda n, *_: n)
_both_ways = partial(_message, "pair_bidir", "two opposite messages", moved=two)

MODELS: tuple[CostModel, ...] = (
    _ring(
        "all_reduce",
        "segmented ring",
        formula="4⌈(n−1)k/2⌉ α + max(2(n−1)/n S β, 2(n−1) S / R), k = segments per chunk (2 for S ≤ 2n MiB)",
        source=f"gloo/allreduce.cc, default RING; {_TWO_DELAYS}: 4(n−1)",
    ),
    _ring(
        "reduce_scatter",
        "whole all_reduce, then a slice",
        formula="4⌈(n−1)k/2⌉ α + max(2(n−1)/n S β, 2(n−1) S / R) + (n+1) S / M: twice the bytes of a reduce-scatter",
        source=f"ProcessGroupGloo clones, all-reduces and copies; wire bytes measured: 2(n−1) S; {_TWO_DELAYS}: 4(n−1)",
        copied=lambda n, *_: n + 1 if n > 1 else 0,
    ),
    _gloo(
        "all_gather",
        "ring",
        twice_the_others,
        "2(n−1) α + max((n−1)/n S β, (n−1) S / R) + n S / M",
        "gloo/allgather.cc, each block as two halves in flight; ProcessGroupGloo copies all blocks from a flat buffer; "
        f"{_TWO_DELAYS}: 2(n−1)",
        sent=share,
        moved=others,
        copied=lambda n, *_: n if n > 1 else 0,
        in_a_ring=True,
    ),
    _gloo(
        "all_to_all",
        "spread, all sends and receives posted together",
        two,
        "2 α + max((n−1)/n S β, (n−1) S / R)",
        f"gloo/alltoall.cc; {_TWO_DELAYS}: 2 at any n",
        sent=share,
        moved=others,
    ),
    _gloo(
        "broadcast",
        "binomial tree",
        lambda n, *_: down(n) + 1 if n > 1 else 0,
        "(⌊lg n⌋ + 1) α + max(Σ S β, (n−1) S / R), Σ = Σ over j < ⌊lg n⌋ of ⌊lg(n − 2^j)⌋ − j + 1",
        f"gloo/broadcast.cc; {_BROADCAST}",
        sent=down_a_tree_at_once,
        moved=others,
    ),
    _gloo(
        "reduce",
        "ring reduce-scatter, then linear gather to the root",
        _gloo_reduce_waits,
        "(2⌈(m−2)/2⌉ + 2) α + max(((m−2)/m + (n−1)/n) S β, (n(m−2)/m + (n−1)/n) S / R), m = segments",
        f"gloo/reduce.cc; wire bytes measured; {_TWO_DELAYS}: 4 at n = 2, 8 at n = 4",
        sent=lambda n, *where: _ring_reduce_sent(n, *where) + share(n),
        moved=lambda n, *where: n * _ring_reduce_sent(n, *where) + share(n),
        added=_ring_reduce_sent,
    ),
    *(
        _gloo(
            op,
            "linear at the root",
            two,
            f"2 α + max((n−1)/n S β, (n−1)/n S / R){' + S / M' if flat else ''}",
            f"gloo/{op}.cc; {flat}wire bytes measured: (n−1)/n S; {_TWO_DELAYS}: 2 at any n",
            sent=share,
            moved=share,
            copied=one if flat else none,
        )
        for op, flat in (("gather", "ProcessGroupGloo copies all blocks from a flat buffer; "), ("scatter", ""))
    ),
    _gloo(
        "barrier",
        "dissemination",
        twice_up,
        "2⌈lg n⌉ α",
        f"gloo/barrier.cc; {_TWO_DELAYS}: 2 at n = 2, 4 at n = 4",
    ),
    _ring_of_messages(two, "2 α + max(S β, n S / R)", f"Hockney 1994; {_TWO_DELAYS}: 2 at n = 2, 3 and 4", family=GLOO),
    _ring_of_messages(one, "α + max(S β, n S / R)", "Hockney 1994; no message waits for a notification", family=MPI),
    _message(
        "ping_pong",
        "single message",
        one,
        "α + max(S β, S / R)",
        "Hockney 1994; its notification overlaps the previous message, so it costs one delay",
        family=GLOO,
    ),
    *(
        _message(
            op,
            "single message, answered with one element",
            two,
            "2 α + max(S β, S / R)",
            "Hockney 1994, twice",
            family=GLOO,
        )
        for op in ("pair_uni", "pair_matrix")
    ),
    _both_ways(
        two,
        "2 α + max(S β, 2 S / R)",
        f"Hockney 1994, both directions of a full-duplex link; {_TWO_DELAYS}: 2",
        family=GLOO,
    ),
    _both_ways(
        one,
        "α + max(S β, 2 S / R)",
        "Hockney 1994, both directions of a full-duplex link; no message waits for a notification",
        family=MPI,
    ),
)
"""Every algorithm that a backend is known to run by default, as far as it does not depend on a table."""

_BY_FAMILY: Final = {
    "memory": "it stays in memory and sends no message",
    "storage": "its time depends on the storage, for which there is no model",
    "copies of GPUs": "it is a GPU copy and sends no message",
    "computation": "it computes and sends no message",
    "training": "it runs several collectives during computation; busbw training has their formulas",
}

_REASONS: Final = {
    **{op.name: why for family, why in _BY_FAMILY.items() for op in FAMILIES[family]},
    **dict.fromkeys(ON_SOCKETS, "it is a measured peak rate without a library"),
    "memory_copy": "it is a measured peak rate and sends no message",
    "all_to_all_v": "its time depends on the whole traffic matrix, but a run stores only the sum",
}
MODELLED: Final = frozenset(model.op for model in MODELS)
"""Ops with a cost model."""

UNMODELLED: dict[str, str] = {op: _REASONS.get(op, "it has no known cost model") for op in OPS if op not in MODELLED}
"""Ops without a cost model, and why."""


def unmodelled(op: str) -> Unavailable | None:
    """Why ``op``, which need not be known, has no cost model; None if it has one."""
    if op in MODELLED:
        return None
    return Unavailable("op-not-modelled", UNMODELLED[op]) if op in UNMODELLED else UNKNOWN_OP
