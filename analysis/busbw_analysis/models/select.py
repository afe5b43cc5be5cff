"""The cost model of a curve: the default algorithm of a backend or MPI library, or the explicit algorithm over
send/recv; the other candidates; and their predictions for each size.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from busbw.errors import AnalysisError
from busbw.ops import MESSAGES, OPS
from busbw.units import format_rate
from busbw_analysis.data.series import SeriesKey
from busbw_analysis.data.unavailable import Unavailable
from busbw_analysis.models.choices import Calls, Choice, Library
from busbw_analysis.models.costs import MPI, CostModel, Parameters
from busbw_analysis.models.gloo import MODELLED, MODELS, unmodelled
from busbw_analysis.models.library_algorithms import OF_LIBRARIES
from busbw_analysis.models.textbook import LIMITS, ROWS, rows_of


@dataclass(frozen=True, slots=True)
class Prediction:
    """The prediction of a cost model for one size, with its algorithm and the origin of its parameters."""

    size_bytes: int
    time_ns: float
    busbw: float | None
    algorithm: str
    formula: str
    source: str
    parameters: str


def model_for(op: str, family: str) -> CostModel | Unavailable:
    """The algorithm that backends of ``family`` run for ``op`` by default, or why there is none."""
    if (reason := unmodelled(op)) is not None:
        return reason
    rows = [row for row in MODELS if row.op == op]
    own = next((row for row in rows if row.family == family), None)
    if own is not None:
        return own
    if family == MPI and op in MESSAGES:
        return rows[0]  # the same on any backend
    if family == MPI:
        return Unavailable(
            "library-not-recorded", f"the algorithm of MPI for {op} depends on the library, the ranks and the size"
        )
    return Unavailable("backend-not-modelled", f"there is no cost model for {op} on {family}")


def model_of(key: SeriesKey, size_bytes: int, library: Library | Unavailable | None) -> CostModel | Unavailable:
    """The algorithm behind a curve: the explicit one over send/recv, otherwise the backend's default, which for MPI
    depends on the size and the ``library``.
    """
    if key.algorithm is not None and key.op in OPS:
        row = ROWS.get((key.op, key.algorithm))
        return row or Unavailable("algorithm-not-known", f"this version does not know {key.algorithm}")
    by_table = key.cost_models == MPI and key.op not in MESSAGES and key.op in MODELLED
    if by_table and library is not None:
        chosen = Calls(library, key.dtype, key.mode).choice(key.op, len(key.ranks), key.hosts, size_bytes)
        return chosen.model if isinstance(chosen, Choice) else chosen
    return model_for(key.op, key.cost_models)


def models_of(
    key: SeriesKey, sizes_bytes: Sequence[int], library: Library | Unavailable | None
) -> tuple[CostModel, ...] | Unavailable:
    """The algorithm behind each size of a curve (``model_of``), or why one is unknown."""
    models: list[CostModel] = []
    for size in sizes_bytes:
        model = model_of(key, size, library)
        if isinstance(model, Unavailable):
            return model
        models.append(model)
    return tuple(models) if len(key.ranks) > 1 else Unavailable("one-rank", "one rank sends nothing")


def alternatives(op: str, ranks: int, hosts: int, family: str) -> tuple[CostModel, ...]:
    """The textbook algorithms for ``op`` that exist for these ranks, hosts and ``family``."""
    rows = (*rows_of(op, family), *(row for row in LIMITS if row.op == op))
    return tuple(row for row in rows if row.possible(ranks, hosts, 0))


def candidates(op: str, family: str, algorithm: str | None = None, calls: Calls | None = None) -> tuple[CostModel, ...]:
    """The algorithms that may be behind a time of ``op``.

    With ``algorithm``, only that explicit algorithm. Otherwise first the known algorithm of ``family`` (``ring
    (gloo)``; for MPI, the choice of the library of ``calls`` by its table), then all of the textbook, and for MPI those
    of its libraries. A message between two ranks has one candidate. Raises AnalysisError if no cost is known.
    """
    if algorithm is not None:
        named = tuple(row for row in _known(op, family) if row.algorithm == algorithm)
        if not named:
            names = ", ".join(algorithms(op, family)) or "none"
            raise AnalysisError(f"the cost of {op} by {algorithm!r} is unknown; known for {op}: {names}")
        return named
    own = [row for row in MODELS if row.op == op and row.family == family]
    if op in MESSAGES:
        # A message has the same cost model on every backend.
        own = own or [row for row in [model_for(op, MPI)] if isinstance(row, CostModel)]
    else:
        own = [replace(row, algorithm=f"{row.algorithm} ({family})") for row in own]
        if calls is not None and not isinstance(calls.library, Unavailable):
            own.append(_by_table(op, family, calls, calls.library))
    rows = (*own, *_rows(op, family), *(row for row in LIMITS if row.op == op))
    if not rows:
        message = f"{op} on {family} has no known cost, neither for its own algorithm nor for one of the textbook"
        raise AnalysisError(message)
    return rows


def _rows(op: str, family: str) -> tuple[CostModel, ...]:
    """The rows that may be behind ``op``: for NCCL also in-network algorithms, for MPI also those of its libraries."""
    return (*rows_of(op, family), *(row for row in OF_LIBRARIES if row.op == op and family == MPI))


def _known(op: str, family: str) -> tuple[CostModel, ...]:
    """The rows that can be requested by name: on any backend also in-network algorithms."""
    return tuple(dict.fromkeys((*_rows(op, family), *rows_of(op))))


def algorithms(op: str, family: str) -> tuple[str, ...]:
    """The names of all algorithms with a known cost."""
    return tuple(row.algorithm for row in _known(op, family))


def _by_table(op: str, family: str, calls: Calls, library: Library) -> CostModel:
    """The cost of the algorithm that ``library`` selects by its table for each call."""

    def of_call(ranks: int, hosts: int, size_bytes: float) -> CostModel:
        chosen = calls.choice(op, ranks, hosts, size_bytes)
        if isinstance(chosen, Unavailable):
            raise AnalysisError(chosen.reason)
        return chosen.model

    return CostModel(
        op,
        f"choice of {library.called}",
        lambda *where: of_call(*where).rounds(*where),
        "that of the algorithm in its table for these ranks and bytes",
        library.source,
        family=family,
        sent=lambda *where: of_call(*where).sent(*where),
        added=lambda *where: of_call(*where).added(*where),
        moved=lambda *where: of_call(*where).moved(*where),
        possible=lambda *where: isinstance(calls.choice(op, *where), Choice),
        of_call=of_call,
    )


def predict(
    key: SeriesKey,
    bus_factor: float | None,
    sizes_bytes: Sequence[int],
    models: Sequence[CostModel] | Unavailable,
    parameters: Parameters | Unavailable,
) -> tuple[Prediction, ...] | Unavailable:
    """The predictions of the algorithm behind each of ``sizes_bytes`` (``models_of``)."""
    if isinstance(models, Unavailable):
        return models
    if isinstance(parameters, Unavailable):
        return parameters
    return tuple(
        _prediction(model, key, bus_factor, size, parameters) for size, model in zip(sizes_bytes, models, strict=True)
    )


def predict_alternatives(
    key: SeriesKey, bus_factor: float | None, size_bytes: int, parameters: Parameters | Unavailable
) -> tuple[Prediction, ...]:
    """The predictions of the textbook algorithms at ``size_bytes`` with the same α, β and R; empty without these."""
    ranks = len(key.ranks)
    if isinstance(parameters, Unavailable) or ranks < 2:
        return ()
    return tuple(
        _prediction(model, key, bus_factor, size_bytes, parameters)
        for model in alternatives(key.op, ranks, key.hosts, key.cost_models)
    )


def _prediction(
    model: CostModel, key: SeriesKey, bus_factor: float | None, size: int, parameters: Parameters
) -> Prediction:
    where = (len(key.ranks), key.hosts, size)
    seconds, copies = parameters.seconds(model, *where), parameters.copy_bytes_per_second
    copying = "" if copies is None or not model.copied(*where) else f"; M {format_rate(copies)}, from memory_copy"
    ignored = "; reduction ignored" if OPS[key.op].reduces else ""
    left_out = f"{ignored}{'; inside hosts as between them' if model.two_levels else ''}"
    return Prediction(
        size_bytes=size,
        time_ns=seconds * 1e9,
        busbw=size / seconds * bus_factor if size and bus_factor is not None else None,
        algorithm=model.label,
        formula=model.formula,
        source=model.source + (left_out if model.family == "textbook" else ""),
        parameters=parameters.origin + copying,
    )
