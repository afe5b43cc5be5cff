"""Which cost model stands behind a curve, and what it says of each size: the algorithm that a backend or an MPI library
runs by default, or the one that was run by hand; and the textbook's beside it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from busbw.ops import MESSAGES
from busbw_analysis.data.series import SeriesKey
from busbw_analysis.data.unavailable import Unavailable
from busbw_analysis.models.choices import Call, Library, choose
from busbw_analysis.models.gloo import MODELS, UNMODELLED, CostModel, Parameters, in_closed_form
from busbw_analysis.models.textbook import rows_of, textbook


@dataclass(frozen=True, slots=True)
class Prediction:
    """What a cost model says for one size: ns per call and B/s, by which algorithm, with parameters from where."""

    size_bytes: int
    time_ns: float
    busbw: float | None
    algorithm: str
    formula: str
    source: str
    parameters: str


def model_for(op: str, backend: str) -> CostModel | Unavailable:
    """The algorithm that ``backend`` runs for ``op`` by default, or why there is none."""
    if op in UNMODELLED:
        return Unavailable("op-not-modelled", UNMODELLED[op])
    rows = [row for row in MODELS if row.op == op]
    own = next((row for row in rows if row.backend == backend), None)
    if own is not None:
        return own
    if backend == "mpi" and op in MESSAGES:
        return rows[0]  # one way, as over any backend
    if backend == "mpi":
        return Unavailable(
            "library-not-told", f"which algorithm MPI runs for {op} depends on the library, the ranks and the size"
        )
    return Unavailable("backend-not-modelled", f"no cost model is known for {op} on {backend}")


def model_chosen(library: Library | Unavailable, call: Call) -> CostModel | Unavailable:
    """The algorithm that an MPI library runs by default for one call, or why it is not known."""
    if call.op in UNMODELLED or call.op in MESSAGES:
        return model_for(call.op, "mpi")
    found = library if isinstance(library, Unavailable) else choose(library, call)
    if isinstance(found, Unavailable):
        return found
    model = in_closed_form(found.row, call.hosts)
    return replace(
        model,
        algorithm=f"{model.algorithm} ({found.name} of {found.library})",
        source=f"{found.source}; sums left out",
    )


def alternatives(op: str, ranks: int, hosts: int = 1, backend: str = "textbook") -> tuple[CostModel, ...]:
    """The textbook algorithms for ``op`` that exist for so many ranks on so many hosts, and for ``backend``."""
    counted = (in_closed_form(row, hosts) for row in rows_of(op, backend) if row.possible(ranks, hosts))
    others = (one for one in MODELS if one.op == op and one.backend == "textbook" and one.possible(ranks))
    return (*counted, *others)


def model_of(
    key: SeriesKey, size_bytes: int | None = None, library: Library | Unavailable | None = None
) -> CostModel | Unavailable:
    """The algorithm behind a curve: the one that was run by hand, otherwise the backend's default. That of an MPI
    library depends on the size and on the ``library``.
    """
    if key.algorithm is None:
        if key.backend == "mpi" and size_bytes is not None and library is not None:
            return model_chosen(library, Call(key.op, len(key.ranks), key.hosts, size_bytes, key.dtype, key.mode))
        return model_for(key.op, key.backend)
    row = textbook(key.op, key.algorithm)
    return (
        Unavailable("algorithm-not-known", f"{key.algorithm} is unknown to this version")
        if row is None
        else in_closed_form(row, key.hosts)
    )


def predict(
    key: SeriesKey,
    bus_factor: float | None,
    sizes_bytes: Sequence[int],
    parameters: Parameters | Unavailable,
    library: Library | Unavailable | None = None,
) -> tuple[Prediction, ...] | Unavailable:
    """What the default algorithm of the key's backend should take at each of ``sizes_bytes``: over MPI the one that
    ``library`` chooses for that size.
    """
    found: list[tuple[int, CostModel]] = []
    for size in sizes_bytes:
        model = model_of(key, size, library)
        if isinstance(model, Unavailable):
            return model
        found.append((size, model))
    ranks = len(key.ranks)
    if ranks < 2:
        return Unavailable("one-rank", "one rank sends nothing")
    if isinstance(parameters, Unavailable):
        return parameters
    return tuple(_prediction(model, ranks, bus_factor, size, parameters) for size, model in found)


def predict_alternatives(
    key: SeriesKey, bus_factor: float | None, size_bytes: int, parameters: Parameters | Unavailable
) -> tuple[Prediction, ...]:
    """What the textbook algorithms would take at ``size_bytes`` with the same α, β and R; empty without them."""
    ranks = len(key.ranks)
    if isinstance(parameters, Unavailable) or ranks < 2:
        return ()
    return tuple(
        _prediction(model, ranks, bus_factor, size_bytes, parameters)
        for model in alternatives(key.op, ranks, key.hosts, key.backend)
    )


def _prediction(
    model: CostModel, ranks: int, bus_factor: float | None, size: int, parameters: Parameters
) -> Prediction:
    seconds = model.seconds(ranks, size, parameters)
    return Prediction(
        size_bytes=size,
        time_ns=seconds * 1e9,
        busbw=size / seconds * bus_factor if size and bus_factor is not None else None,
        algorithm=model.algorithm,
        formula=model.formula,
        source=model.source,
        parameters=parameters.origin,
    )
