"""What theory promises: the cost of every algorithm that the backends are known to run, as one literal table; those of
the textbooks are in ``textbook``. Which of them a curve runs is said in ``curve_models``.

T = messages · α + max(rank bytes · β, total bytes / R_host). α (seconds per message) and β (seconds per byte) come from
point-to-point times of the same run, so that a row is a prediction and not a fit; R_host is the rate at which the host
copies memory, which all ranks on it share (infinite over a network).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal

from busbw_analysis.models.counts import down, down_a_tree_at_once, none, up
from busbw_analysis.models.textbook import LIMITS, Textbook

_MIB = 1 << 20
_GLOO: Final = "gloo"

Amount = Callable[[int, float], float]
"""n ranks and S bytes → messages or bytes."""


@dataclass(frozen=True, slots=True)
class CostModel:
    """One algorithm for one op. ``messages`` is the number of message times in a row, ``rank_bytes`` what the busiest
    rank sends or receives one after the other, ``total_bytes`` what all ranks send. ``added_bytes`` is what the busiest
    rank adds up; it is no part of ``seconds``, for only a joint fit knows γ. ``backend`` is the backend that runs it by
    default, or ``textbook`` for one that is there to be compared with. ``at_once`` is how many messages the busiest
    rank has in one message time, as of ``Textbook.at_once``.
    """

    op: str
    backend: Literal["gloo", "mpi", "textbook"]
    algorithm: str
    messages: Amount
    rank_bytes: Amount
    total_bytes: Amount
    formula: str
    source: str
    possible: Callable[[int], bool] = lambda ranks: ranks > 1
    added_bytes: Amount = lambda _ranks, _size: 0.0
    at_once: Callable[[int], float] = lambda _ranks: 1.0

    def seconds(self, ranks: int, size_bytes: float, parameters: "Parameters") -> float:
        """Time of one call on ``ranks`` ranks with S = ``size_bytes``."""
        moving = self.rank_bytes(ranks, size_bytes) * parameters.beta_seconds_per_byte
        if parameters.host_bytes_per_second is not None:
            moving = max(moving, self.total_bytes(ranks, size_bytes) / parameters.host_bytes_per_second)
        return self.messages(ranks, size_bytes) * parameters.alpha_seconds + moving


@dataclass(frozen=True, slots=True)
class Parameters:
    """What a model is fed with, and ``origin``: where it was measured, in words."""

    alpha_seconds: float
    beta_seconds_per_byte: float
    host_bytes_per_second: float | None
    origin: str


def gloo_segments(ranks: int, size_bytes: float) -> int:
    """Into how many segments Gloo's ring cuts a buffer: at most 1 MiB each, at least two for every rank's chunk.

    Source: gloo/allreduce.cc (``numSegments``), pytorch/gloo commit 70dc360.
    """
    return math.ceil(max(math.ceil(size_bytes / _MIB), 2 * ranks) / ranks) * ranks


def _gloo_ring_waits(ranks: int, size_bytes: float) -> int:
    """Waits in a row of one half of the ring: all segments but the own chunk's pass, two in flight."""
    segments = gloo_segments(ranks, size_bytes)
    return math.ceil((segments - segments // ranks) / 2)


def _two(ranks: int, _size_bytes: float) -> float:
    """Where all are under way at once: the receiver's note, and the message."""
    return 2 if ranks > 1 else 0


def _gloo_reduce_waits(ranks: int, size_bytes: float) -> float:
    """The ring, in which all segments but two are passed on, and the way to the root."""
    return 2 * math.ceil((gloo_segments(ranks, size_bytes) - 2) / 2) + 2 if ranks > 1 else 0


def _others(ranks: int, size_bytes: float) -> float:
    return (ranks - 1) / ranks * size_bytes


def _ring_reduce_sent(ranks: int, size_bytes: float) -> float:
    """Gloo's reduce sends all segments but two, more than the (n−1)/n of them that are needed."""
    segments = gloo_segments(ranks, size_bytes)
    return (segments - 2) / segments * size_bytes if ranks > 1 else 0


_PROPER = {
    "4-ary-tree": "4-ary tree",
    "bruck": "Bruck",
    "nvls": "NVLS",
    "pat": "PAT",
    "rabenseifner": "Rabenseifner",
    "reduce-scatter-all-gather": "reduce-scatter, then all-gather",
    "sharp": "SHARP",
}


def in_closed_form(row: Textbook, hosts: int) -> CostModel:
    """A row of the textbook as a cost model, on so many hosts."""
    return CostModel(
        op=row.op,
        backend="textbook",
        algorithm=_PROPER.get(row.algorithm, row.algorithm.replace("-", " ")),
        messages=lambda n, _s: row.rounds(n, hosts),
        rank_bytes=lambda n, s: row.sent(n, hosts) * s,
        total_bytes=lambda n, s: row.moved(n, hosts) * s,
        formula=row.formula,
        source=f"{row.source}; sums left out{'' if row.inner_sent is none else ', inside hosts as between them'}",
        possible=lambda n: row.possible(n, hosts),
        added_bytes=lambda n, s: row.added(n, hosts) * s,
        at_once=lambda n: row.at_once(n, hosts),
    )


_EXECUTED: Final = "executed call by call (tests/shared/gloo_programs.py)"
_TWO_DELAYS: Final = (
    f"{_EXECUTED}, and counted as the slope of small-message time over the delay of emulated links: each step waits "
    "for the receiver's ready note (gloo/transport/tcp/pair.cc), so it costs two delays"
)
_BROADCAST: Final = (
    f"{_EXECUTED}: all notes are sent at once, so they cost one delay, and then a message is passed on ⌊lg n⌋ times; "
    "after a barrier of Gloo's own, from 4 ranks on, who hears last begins a delay later and sees one less, as was "
    "measured: 2 for 2, 3 and 4 ranks; messages of a rank share its link, as was measured: 1, 2 and 3 S β for these"
)

MODELS: tuple[CostModel, ...] = (
    CostModel(
        op="all_reduce",
        backend=_GLOO,
        algorithm="segmented ring",
        messages=lambda n, s: 4 * _gloo_ring_waits(n, s),
        rank_bytes=lambda n, s: 2 * _others(n, s),
        total_bytes=lambda n, s: 2 * (n - 1) * s,
        formula="4⌈(n−1)k/2⌉ α + max(2(n−1)/n S β, 2(n−1) S / R), k = segments per chunk (2 up to 2n MiB)",
        source=f"gloo/allreduce.cc, default RING; {_TWO_DELAYS}: 4(n−1)",
        added_bytes=_others,
    ),
    CostModel(
        op="reduce_scatter",
        backend=_GLOO,
        algorithm="whole all_reduce, then a slice",
        messages=lambda n, s: 4 * _gloo_ring_waits(n, s),
        rank_bytes=lambda n, s: 2 * _others(n, s),
        total_bytes=lambda n, s: 2 * (n - 1) * s,
        formula="4⌈(n−1)k/2⌉ α + max(2(n−1)/n S β, 2(n−1) S / R): twice the bytes of a reduce-scatter",
        source=f"ProcessGroupGloo clones, all-reduces and slices; wire bytes measured: 2(n−1) S; {_TWO_DELAYS}: 4(n−1)",
        added_bytes=_others,
    ),
    CostModel(
        op="all_gather",
        backend=_GLOO,
        algorithm="ring",
        messages=lambda n, _s: 2 * (n - 1),
        rank_bytes=_others,
        total_bytes=lambda n, s: (n - 1) * s,
        formula="2(n−1) α + max((n−1)/n S β, (n−1) S / R)",
        source=f"gloo/allgather.cc, blocks in two halves in flight; {_TWO_DELAYS}: 2(n−1)",
    ),
    CostModel(
        op="all_to_all",
        backend=_GLOO,
        algorithm="spread, all sends and receives posted at once",
        messages=_two,
        rank_bytes=_others,
        total_bytes=lambda n, s: (n - 1) * s,
        formula="2 α + max((n−1)/n S β, (n−1) S / R)",
        source=f"gloo/alltoall.cc; {_TWO_DELAYS}: 2 at any n",
    ),
    CostModel(
        op="broadcast",
        backend=_GLOO,
        algorithm="binomial tree",
        messages=lambda n, _s: down(n) + 1 if n > 1 else 0,
        rank_bytes=lambda n, s: down_a_tree_at_once(n) * s,
        total_bytes=lambda n, s: (n - 1) * s,
        formula="(⌊lg n⌋ + 1) α + max(Σ S β, (n−1) S / R), Σ = Σ over j < ⌊lg n⌋ of ⌊lg(n − 2^j)⌋ − j + 1",
        source=f"gloo/broadcast.cc; {_BROADCAST}",
    ),
    CostModel(
        op="reduce",
        backend=_GLOO,
        algorithm="ring reduce-scatter, then linear gather to the root",
        messages=_gloo_reduce_waits,
        rank_bytes=lambda n, s: _ring_reduce_sent(n, s) + _others(n, s),
        total_bytes=lambda n, s: n * _ring_reduce_sent(n, s) + _others(n, s),
        formula="(2⌈(m−2)/2⌉ + 2) α + max(((m−2)/m + (n−1)/n) S β, (n(m−2)/m + (n−1)/n) S / R), m = segments",
        source=f"gloo/reduce.cc; wire bytes measured; {_TWO_DELAYS}: 4 at n = 2, 8 at n = 4",
        added_bytes=_ring_reduce_sent,
    ),
    CostModel(
        op="gather",
        backend=_GLOO,
        algorithm="linear at the root",
        messages=_two,
        rank_bytes=_others,
        total_bytes=_others,
        formula="2 α + max((n−1)/n S β, (n−1)/n S / R)",
        source=f"gloo/gather.cc; wire bytes measured: (n−1)/n S; {_TWO_DELAYS}: 2 at any n",
    ),
    CostModel(
        op="scatter",
        backend=_GLOO,
        algorithm="linear at the root",
        messages=_two,
        rank_bytes=_others,
        total_bytes=_others,
        formula="2 α + max((n−1)/n S β, (n−1)/n S / R)",
        source=f"gloo/scatter.cc; wire bytes measured: (n−1)/n S; {_TWO_DELAYS}: 2 at any n",
    ),
    CostModel(
        op="barrier",
        backend=_GLOO,
        algorithm="dissemination",
        messages=lambda n, _s: 2 * up(n),
        rank_bytes=lambda _n, _s: 0.0,
        total_bytes=lambda _n, _s: 0.0,
        formula="2⌈lg n⌉ α",
        source=f"gloo/barrier.cc; {_TWO_DELAYS}: 2 at n = 2, 4 at n = 4",
    ),
    CostModel(
        op="send_recv",
        backend=_GLOO,
        algorithm="ring of single messages",
        messages=_two,
        rank_bytes=lambda _n, s: s,
        total_bytes=lambda n, s: n * s,
        formula="2 α + max(S β, n S / R)",
        source=f"Hockney 1994; {_TWO_DELAYS}: 2 at n = 2, 3 and 4",
    ),
    CostModel(
        op="send_recv",
        backend="mpi",
        algorithm="ring of single messages",
        messages=lambda _n, _s: 1,
        rank_bytes=lambda _n, s: s,
        total_bytes=lambda n, s: n * s,
        formula="α + max(S β, n S / R)",
        source="Hockney 1994; no message waits to be asked for",
    ),
    CostModel(
        op="ping_pong",
        backend=_GLOO,
        algorithm="single message",
        messages=lambda _n, _s: 1,
        rank_bytes=lambda _n, s: s,
        total_bytes=lambda _n, s: s,
        formula="α + max(S β, S / R)",
        source="Hockney 1994; it was asked for while the other one was under way, and so costs one delay",
    ),
    CostModel(
        op="pair_uni",
        backend=_GLOO,
        algorithm="single message, answered with one element",
        messages=lambda _n, _s: 2,
        rank_bytes=lambda _n, s: s,
        total_bytes=lambda _n, s: s,
        formula="2 α + max(S β, S / R)",
        source="Hockney 1994, twice",
    ),
    CostModel(
        op="pair_matrix",
        backend=_GLOO,
        algorithm="single message, answered with one element",
        messages=lambda _n, _s: 2,
        rank_bytes=lambda _n, s: s,
        total_bytes=lambda _n, s: s,
        formula="2 α + max(S β, S / R)",
        source="Hockney 1994, twice",
    ),
    CostModel(
        op="pair_bidir",
        backend=_GLOO,
        algorithm="two messages that pass each other",
        messages=_two,
        rank_bytes=lambda _n, s: s,
        total_bytes=lambda _n, s: 2 * s,
        formula="2 α + max(S β, 2 S / R)",
        source=f"Hockney 1994, both directions of a full-duplex link; {_TWO_DELAYS}: 2",
    ),
    CostModel(
        op="pair_bidir",
        backend="mpi",
        algorithm="two messages that pass each other",
        messages=lambda _n, _s: 1,
        rank_bytes=lambda _n, s: s,
        total_bytes=lambda _n, s: 2 * s,
        formula="α + max(S β, 2 S / R)",
        source="Hockney 1994, both directions of a full-duplex link; no message waits to be asked for",
    ),
    *(in_closed_form(row, 1) for row in LIMITS),
)
"""Every algorithm that is modelled. Costs in n ranks and S bytes, S as in docs/method.md."""

UNMODELLED: dict[str, str] = {
    **dict.fromkeys(
        (
            *("host_to_device", "device_to_host", "host_and_device"),
            *("peer_copy", "peer_copy_both", "peer_copy_driver", "peer_copy_staged"),
        ),
        "it is a copy of a GPU's own; no message is sent",
    ),
    "all_to_all_v": "its time depends on the whole traffic matrix, of which a run keeps only the sum",
    "memory_copy": "it is a measured peak; no message is sent",
    "tcp_stream": "it is a measured peak; no library is at work",
    **dict.fromkeys(
        ("stream_copy", "stream_scale", "stream_add", "stream_triad", "memory_read", "memory_write", "memory_touch"),
        "it stays in memory; no message is sent",
    ),
    **dict.fromkeys(
        ("storage_write", "storage_read", "checkpoint_save"), "its time is that of storage, of which no model is known"
    ),
    **dict.fromkeys(("matmul", "attention", "attention_unfused"), "it computes; no message is sent"),
}
"""Ops without a row, and why."""
