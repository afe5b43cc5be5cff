"""What one algorithm contributes to a time: rounds and bytes of any op, ready to be multiplied by α, β, γ and 1/R."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from busbw.errors import AnalysisError
from busbw.ops import MESSAGES
from busbw_analysis.data.unavailable import Unavailable
from busbw_analysis.models.choices import Calls, Choice, Library
from busbw_analysis.models.counts import none
from busbw_analysis.models.gloo import MODELS, CostModel
from busbw_analysis.models.library_rows import OF_LIBRARIES
from busbw_analysis.models.select import model_for
from busbw_analysis.models.textbook import Textbook, rows_of

Amount = Callable[[int, int, float], float]
"""n ranks, k hosts and S bytes → rounds or bytes."""


RINGS: Final = frozenset(
    {
        *(("all_reduce", name) for name in ("ring", "segmented-ring", "segmented ring")),
        *(("all_gather", "ring"), ("reduce_scatter", "ring"), ("reduce_scatter", "whole all_reduce, then a slice")),
    }
)
"""Ops and flat algorithms, of the textbook and of Gloo, that are one ring through ranks on hosts in their order: in
every round one rank of each host sends to another host, as much as any.
"""

INSIDE_AS_BETWEEN: Final = (
    "some rounds and bytes may stay inside a host and are taken as between hosts: an upper bound where each rank has a "
    "card of its own, and none where the ranks of a host share one"
)
"""What is to be said of a flat algorithm that is no ring, where hosts have several ranks."""


@dataclass(frozen=True, slots=True)
class Levels:
    """How a call of an algorithm that knows hosts is spread over them: the rounds and the bytes of a rank that are
    waited for inside its host, the bytes that it sends to other hosts, and those that all ranks of its host send there.
    ``overlapped``: both are under way at once, and the longer counts, all rounds inside or all rounds between.
    """

    inner_rounds: float
    inner_bytes: float
    between_bytes: float
    host_bytes: float
    overlapped: bool = False


@dataclass(frozen=True, slots=True)
class Term:
    """One op by one algorithm: how many rounds it takes, the bytes that its busiest rank sends and adds up, and those
    that all ranks send together. ``possible(n, k, S)``: whether there is such a thing on n ranks and k hosts at that
    size. ``backend`` is one that is known to run it, or ``textbook``. ``of_call(n, k, S)`` are name and formula of what
    is run for one call, where that is no matter of the term alone; it and the amounts raise AnalysisError for one of
    which no cost is known. ``levels(n, k, S)`` is there for an algorithm that knows hosts; of a flat one all rounds
    and bytes are taken as between hosts, where there are several, and ``in_a_ring(n, k, S)`` says whether they are.
    Where they are not and hosts have several ranks each, some may stay inside, and what the ranks of a host send to
    others together is not known. ``at_once(n, k, S)`` is how many messages the busiest rank has in a round, as of
    ``Textbook.at_once``.
    """

    op: str
    backend: str
    algorithm: str
    rounds: Amount
    sent_bytes: Amount
    added_bytes: Amount
    moved_bytes: Amount
    possible: Callable[[int, int, float], bool]
    formula: str
    source: str
    of_call: Callable[[int, int, float], tuple[str, str]] | None = None
    levels: Callable[[int, int, float], Levels] | None = None
    in_a_ring: Callable[[int, int, float], bool] = lambda _ranks, _hosts, _size: False
    at_once: Amount = lambda _ranks, _hosts, _size: 1.0

    def of_hosts_known(self, ranks: int, hosts: int, size_bytes: float) -> bool:
        """Whether it is known of a call what stays on each host and what its ranks send to others together."""
        return hosts in {1, ranks} or self.levels is not None or self.in_a_ring(ranks, hosts, size_bytes)

    @property
    def by_table(self) -> str | None:
        """Where the table is from that says what is run for each call; None where one algorithm is."""
        return None if self.of_call is None else self.source

    def named(self, ranks: int, hosts: int, size_bytes: float) -> tuple[str, str]:
        """The algorithm and the formula of one call."""
        return (self.algorithm, self.formula) if self.of_call is None else self.of_call(ranks, hosts, size_bytes)


def candidates(op: str, backend: str, algorithm: str | None = None, calls: Calls | None = None) -> tuple[Term, ...]:
    """The algorithms that may be behind a time of ``op``: the one named ``algorithm`` where it was measured by hand,
    else what ``backend`` is known to run (``ring (gloo)``; over MPI what the library of ``calls`` chooses by its
    table), first, and then all of the textbook, over MPI also those that only its libraries have.

    A message between two ranks has one term. Raises AnalysisError for an op or an algorithm of which no cost is known.
    """
    if algorithm is not None:
        named = tuple(_counted(row) for row in _known(op, backend) if row.algorithm == algorithm)
        if not named:
            known = ", ".join(algorithms(op, backend)) or "none"
            message = f"no cost is known of {op} by {algorithm!r}; known for {op}: {known}"
            raise AnalysisError(message)
        return named
    own = [
        _modelled(row, row.algorithm if op in MESSAGES else f"{row.algorithm} ({backend})")
        for row in MODELS
        if row.op == op and row.backend == backend
    ]
    if calls is not None and not isinstance(calls.library, Unavailable) and op not in MESSAGES:
        own.append(_chosen(op, backend, calls, calls.library))
    counted = [_counted(row) for row in _rows(op, backend)]
    others = [_modelled(row, row.algorithm) for row in MODELS if row.op == op and row.backend == "textbook"]
    # A message is a message on every backend, so what is known of it for one serves for all.
    usual = model_for(op, "mpi") if op in MESSAGES and not own else None
    messages = [_modelled(usual, usual.algorithm)] if isinstance(usual, CostModel) else []
    found = (*own, *messages, *counted, *others)
    if not found:
        message = f"no cost is known of {op} on {backend}, neither of its own algorithm nor of one of the textbook"
        raise AnalysisError(message)
    return found


def _rows(op: str, backend: str) -> tuple[Textbook, ...]:
    """What may be behind ``op``: over NCCL also what a switch adds up, over MPI what its libraries alone have."""
    return (*rows_of(op, backend), *(row for row in OF_LIBRARIES if row.op == op and backend == "mpi"))


def _known(op: str, backend: str) -> tuple[Textbook, ...]:
    """What can be asked for by name: over any backend, what a switch would make of it."""
    return tuple(dict.fromkeys((*_rows(op, backend), *rows_of(op))))


def algorithms(op: str, backend: str) -> tuple[str, ...]:
    """The names of those of which a cost is known, whoever runs them."""
    return tuple(row.algorithm for row in _known(op, backend))


def _counted(row: Textbook) -> Term:
    return Term(
        op=row.op,
        backend="textbook",
        algorithm=row.algorithm,
        rounds=lambda n, k, _s: row.rounds(n, k),
        sent_bytes=lambda n, k, s: row.sent(n, k) * s,
        added_bytes=lambda n, k, s: row.added(n, k) * s,
        moved_bytes=lambda n, k, s: row.moved(n, k) * s,
        possible=lambda n, k, _s: row.possible(n, k),
        formula=row.formula,
        source=row.source,
        levels=None if row.inner_sent is none else lambda n, k, s: _levels(row, n, k, s),
        in_a_ring=lambda _n, _k, _s: (row.op, row.algorithm) in RINGS,
        at_once=lambda n, k, _s: row.at_once(n, k),
    )


def _levels(row: Textbook, ranks: int, hosts: int, size_bytes: float) -> Levels:
    """Of levels that are under way at once, every round and what goes to other hosts counts inside, too: that leaves
    the rank by the same way as what stays.
    """
    between = row.between(ranks, hosts) * size_bytes
    rounds, sent = (row.rounds, row.sent) if row.overlapped else (row.inner_rounds, row.inner_sent)
    return Levels(
        inner_rounds=rounds(ranks, hosts),
        inner_bytes=sent(ranks, hosts) * size_bytes,
        between_bytes=between,
        host_bytes=between * ranks / hosts,
        overlapped=row.overlapped,
    )


def _modelled(row: CostModel, algorithm: str) -> Term:
    return Term(
        op=row.op,
        backend=row.backend,
        algorithm=algorithm,
        rounds=lambda n, _k, s: row.messages(n, s),
        sent_bytes=lambda n, _k, s: row.rank_bytes(n, s),
        added_bytes=lambda n, _k, s: row.added_bytes(n, s),
        moved_bytes=lambda n, _k, s: row.total_bytes(n, s),
        possible=lambda n, _k, _s: row.possible(n),
        formula=row.formula,
        source=row.source,
        in_a_ring=lambda _n, _k, _s: row.op in MESSAGES or (row.op, row.algorithm) in RINGS,
        at_once=lambda n, _k, _s: row.at_once(n),
    )


def _chosen(op: str, backend: str, calls: Calls, library: Library) -> Term:
    """Whatever ``library`` takes by its table for each number of ranks and each size."""

    def choice(ranks: int, hosts: int, size_bytes: float) -> Choice:
        found = calls.choice(op, ranks, hosts, size_bytes)
        if isinstance(found, Unavailable):
            raise AnalysisError(found.reason)
        return found

    def named(ranks: int, hosts: int, size_bytes: float) -> tuple[str, str]:
        found = choice(ranks, hosts, size_bytes)
        return f"{found.row.algorithm} ({found.name} of {found.library})", found.row.formula

    return Term(
        op=op,
        backend=backend,
        algorithm=f"choice of {library.called}",
        rounds=lambda n, k, s: choice(n, k, s).row.rounds(n, k),
        sent_bytes=lambda n, k, s: choice(n, k, s).row.sent(n, k) * s,
        added_bytes=lambda n, k, s: choice(n, k, s).row.added(n, k) * s,
        moved_bytes=lambda n, k, s: choice(n, k, s).row.moved(n, k) * s,
        possible=lambda n, k, s: isinstance(calls.choice(op, n, k, s), Choice),
        formula="that of the algorithm in its table for so many ranks and bytes",
        source=library.source,
        of_call=named,
        in_a_ring=lambda n, k, s: (op, choice(n, k, s).row.algorithm) in RINGS,
        at_once=lambda n, k, s: choice(n, k, s).row.at_once(n, k),
    )
