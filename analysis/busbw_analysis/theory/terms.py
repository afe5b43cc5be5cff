"""What one algorithm contributes to a time: rounds and bytes of any op, ready to be multiplied by α, β, γ and 1/R."""

from collections.abc import Callable
from dataclasses import dataclass

from busbw.errors import AnalysisError
from busbw_analysis.theory.models import MODELS, CostModel
from busbw_analysis.theory.textbook import TEXTBOOK, Textbook

Amount = Callable[[int, int, float], float]
"""n ranks, k hosts and S bytes → rounds or bytes."""


@dataclass(frozen=True, slots=True)
class Term:
    """One op by one algorithm: how many rounds it takes, the bytes that its busiest rank sends and adds up, and those
    that all ranks send together. ``possible(n, k)``: whether there is such a thing on n ranks and k hosts. ``backend``
    is one that is known to run it, or ``textbook``.
    """

    op: str
    backend: str
    algorithm: str
    rounds: Amount
    sent_bytes: Amount
    added_bytes: Amount
    moved_bytes: Amount
    possible: Callable[[int, int], bool]
    formula: str
    source: str


def candidates(op: str, backend: str, algorithm: str | None = None) -> tuple[Term, ...]:
    """The algorithms that may be behind a time of ``op``: the one named ``algorithm`` where it was measured by hand,
    else what ``backend`` is known to run (``ring (gloo)``), first, and then all of the textbook.

    A message between two ranks has one term. Raises AnalysisError for an op or an algorithm of which no cost is known.
    """
    if algorithm is not None:
        named = tuple(_counted(row) for row in TEXTBOOK if (row.op, row.algorithm) == (op, algorithm))
        if not named:
            known = ", ".join(row.algorithm for row in TEXTBOOK if row.op == op) or "none"
            message = f"no cost is known of {op} by {algorithm!r}; known for {op}: {known}"
            raise AnalysisError(message)
        return named
    own = [
        _modelled(row, row.algorithm if op in _MESSAGES else f"{row.algorithm} ({backend})")
        for row in MODELS
        if row.op == op and row.backend == backend
    ]
    counted = [_counted(row) for row in TEXTBOOK if row.op == op]
    others = [_modelled(row, row.algorithm) for row in MODELS if row.op == op and row.backend == "textbook"]
    # A message is a message on every backend, so what is known of it for one serves for all.
    messages = [_modelled(row, row.algorithm) for row in MODELS if row.op == op and op in _MESSAGES and not own]
    found = (*own, *messages, *counted, *others)
    if not found:
        message = f"no cost is known of {op} on {backend}, neither of its own algorithm nor of one of the textbook"
        raise AnalysisError(message)
    return found


_MESSAGES = frozenset({"ping_pong", "pair_uni", "pair_bidir", "send_recv"})


def _counted(row: Textbook) -> Term:
    return Term(
        op=row.op,
        backend="textbook",
        algorithm=row.algorithm,
        rounds=lambda n, k, _s: row.rounds(n, k),
        sent_bytes=lambda n, k, s: row.sent(n, k) * s,
        added_bytes=lambda n, k, s: row.added(n, k) * s,
        moved_bytes=lambda n, k, s: row.moved(n, k) * s,
        possible=row.possible,
        formula=row.formula,
        source=row.source,
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
        possible=lambda n, _k: row.possible(n),
        formula=row.formula,
        source=row.source,
    )
