"""The linear system of a joint fit: one row for every observed time, one column for every parameter.

T = c0 + rounds · α + sent · β + moved / R + added · γ. Hierarchical algorithms have a separate α and β for rounds and
bytes inside a host; a flat algorithm counts entirely as between hosts. Rows are divided by T, so that errors are
relative, and solved by non-negative least squares (Lawson and Hanson 1974).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, get_args

import numpy as np
import numpy.typing as npt

from busbw.ops import MESSAGES
from busbw_analysis.data.grouped import by_key, grouped
from busbw_analysis.data.unavailable import Unavailable
from busbw_analysis.models.choices import Calls
from busbw_analysis.models.costs import CostModel
from busbw_analysis.models.select import candidates

Floats = npt.NDArray[np.float64]

Parameter = Literal["alpha", "beta", "shared", "per_call", "gamma", "inner_alpha", "inner_beta", "card"]
"""The parameters of a joint fit.

``alpha``: α, seconds per round; over several hosts, between hosts.
``beta``: β, seconds per byte through one direction of a link; over several hosts, between hosts.
``shared``: 1/R, seconds per byte of all that the ranks of one host move together.
``per_call``: c0, seconds per call.
``gamma``: γ, seconds per reduced byte.
``inner_alpha``, ``inner_beta``: α and β inside a host, for hierarchical algorithms.
``card``: 1/C, seconds per byte of all that the ranks of a host send to other hosts through one card.
"""

PARAMETERS: Final[tuple[Parameter, ...]] = get_args(Parameter)
Wanted = Sequence[Parameter]

Placement = Literal["one host", "one rank on each host", "several ranks on several hosts"]


@dataclass(frozen=True, slots=True)
class Regime:
    """Conditions under which one set of parameters can hold: the placement, and whether ranks share cores."""

    placement: Placement
    oversubscribed: bool

    @classmethod
    def of(cls, ranks: int, hosts: int, *, oversubscribed: bool) -> "Regime":
        """The regime of ``ranks`` ranks on ``hosts`` hosts."""
        if hosts == 1:
            return cls("one host", oversubscribed)
        return cls("one rank on each host" if ranks == hosts else "several ranks on several hosts", oversubscribed)

    def __str__(self) -> str:
        return f"{self.placement}, more ranks than cores" if self.oversubscribed else self.placement


@dataclass(frozen=True, slots=True)
class Observation:
    """One op at one size on ``ranks`` ranks over ``hosts`` hosts.

    ``seconds``: the reported time, the median of ``launches``.
    ``launches``: the median of each launch, in order (seconds).
    ``algorithm``: the explicit algorithm over send/recv; None for the library's own.
    ``launch_set``, ``launch_keys``: equal keys in one set are the same launch; without keys, equal positions are.
    ``calls``: how the MPI library was called; None without MPI.
    """

    op: str
    backend: str
    cost_models: str
    ranks: int
    hosts: int
    size_bytes: int
    seconds: float
    launches: tuple[float, ...]
    algorithm: str | None = None
    oversubscribed: bool = False
    launch_set: str = ""
    launch_keys: tuple[tuple[int, int], ...] = ()
    calls: Calls | None = None

    @property
    def regime(self) -> Regime:
        """The regime in which it was measured."""
        return Regime.of(self.ranks, self.hosts, oversubscribed=self.oversubscribed)

    @property
    def where(self) -> tuple[int, int, int]:
        """Ranks, hosts and bytes: the arguments of a cost model."""
        return self.ranks, self.hosts, self.size_bytes

    @property
    def curve(self) -> "Curve":
        """Everything that has one algorithm: an op of the library, or an op with an explicit algorithm."""
        return self.op, self.algorithm


Observed = Sequence[Observation]
Curve = tuple[str, str | None]
Models = Mapping[Curve, CostModel]
"""The cost model assumed for each curve."""


def candidates_of(observations: Observed) -> tuple[CostModel, ...]:
    """The algorithms that may be behind ``observations`` of one curve (``select.candidates``)."""
    first = observations[0]
    return candidates(first.op, first.cost_models, first.algorithm, _calls_of(observations))


def _calls_of(observations: Observed) -> Calls | None:
    every = {one.calls for one in observations}
    if len(every) > 1:
        why = "the measurements use several MPI libraries, or one library in several ways"
        return Calls(Unavailable("several-libraries", why))
    return every.pop()


def possible_for(model: CostModel, observations: Observed, wanted: Wanted) -> bool:
    """Whether the algorithm exists for all ``observations`` and its cost is known in the ``wanted`` parameters."""
    return all(model.possible(*one.where) and known_in(model, wanted, *one.where) for one in observations)


def known_in(model: CostModel, wanted: Wanted, ranks: int, hosts: int, size_bytes: float) -> bool:
    """Whether the cost of a call is known in the ``wanted`` parameters: for most flat algorithms it is unknown how much
    all ranks of a host send through one card.
    """
    where = (ranks, hosts, size_bytes)
    return "card" not in wanted or model.of_hosts_known(*where) or not model.sent(*where) * size_bytes


def unknown_choices(observations: Observed) -> tuple[str, ...]:
    """For each op whose algorithm in the MPI library is unknown, the reason."""
    of_mpi = [one for one in observations if one.algorithm is None and one.calls and one.op not in MESSAGES]
    notes: list[str] = []
    for op, members in grouped(of_mpi, lambda one: one.op).items():
        calls = _calls_of(members)
        found = [calls.choice(op, *one.where) for one in members] if calls else []
        reason = next((one.reason for one in found if isinstance(one, Unavailable)), None)
        notes += [f"the algorithm of {members[0].backend} for {op} is unknown: {reason}"] if reason else []
    return tuple(notes)


def amounts(model: CostModel, ranks: int, hosts: int, size_bytes: float) -> tuple[float, ...]:
    """The factor of each of PARAMETERS in one call: the first of ``branches``."""
    return branches(model, ranks, hosts, size_bytes)[0]


def branches(model: CostModel, ranks: int, hosts: int, size_bytes: float) -> tuple[tuple[float, ...], ...]:
    """The factor of each of PARAMETERS in one call; that of ``card`` is valid if ``known_in`` holds.

    An algorithm that communicates inside and between hosts at the same time has two branches, first between hosts and
    then inside; the call takes the longer one.
    """
    where = (ranks, hosts, size_bytes)
    rounds, between = model.rounds(*where), model.between(*where) * size_bytes
    moved, added = model.moved(*where) * size_bytes, model.added(*where) * size_bytes
    of_host = between * ranks / hosts if model.two_levels else between
    if not model.overlapped:
        inside = model.inner_rounds(*where), model.inner_sent(*where) * size_bytes
        return ((rounds - inside[0], between, moved, 1.0, added, *inside, of_host),)
    # Bytes to other hosts leave the rank through the same link as bytes that stay.
    return (
        (rounds, between, moved, 1.0, added, 0.0, 0.0, of_host),
        (0.0, 0.0, moved, 1.0, added, rounds, model.sent(*where) * size_bytes, 0.0),
    )


def branches_of(observations: Observed, models: Models) -> Floats:
    """Observations × two branches × PARAMETERS, not divided by the times; a single branch appears twice."""
    found = [branches(models[one.curve], *one.where) for one in observations]
    rows = [(one[0], one[-1]) for one in found]
    return np.asarray(rows, dtype=np.float64).reshape(len(rows), 2, len(PARAMETERS))


def longer_of(branched: Floats, coefficients: Floats) -> Floats:
    """Observations × PARAMETERS: the longer of the two branches."""
    longer = (branched @ coefficients).argmax(axis=1)
    return np.asarray(branched[np.arange(len(branched)), longer])


def times_of(observations: Observed) -> Floats:
    """Seconds: the interquartile mean of each observation's launches."""
    return np.asarray([middle(np.asarray(one.launches)) for one in observations], dtype=np.float64)


def middle(launches: Floats) -> Floats:
    """The interquartile mean along the last axis, ignoring NaN; up to four launches it is their median.

    It is as robust to a bad launch as the median, but smooth, while the median of a resample jumps between launches.
    Intervals from medians covered the truth in 97 to 99 % of trials, from this in 92 to 97 % (`make bench-fit`).
    """
    ordered = np.sort(launches, axis=-1)
    count = np.count_nonzero(~np.isnan(ordered), axis=-1)[..., None]
    left_out = (count + 1) // 4
    place = np.arange(ordered.shape[-1])
    inner = (place >= left_out) & (place < count - left_out)
    return np.asarray(np.where(inner, ordered, 0.0).sum(axis=-1) / inner.sum(axis=-1))


def solve(rows: Floats, times: Floats, columns: Sequence[int]) -> Floats:
    """Non-negative coefficients with the least squared relative error; 0 for columns that are not in ``columns``."""
    coefficients = np.zeros(rows.shape[1])
    system = rows[:, columns] / times[:, None]
    scale = np.abs(system).max(axis=0)
    scale[scale == 0] = 1.0
    # The triangular factor of a QR decomposition has the same solution and far fewer rows.
    orthogonal, triangle = np.linalg.qr(system / scale)
    from scipy.optimize import nnls  # noqa: PLC0415 - takes long to load, and only joint fits need it

    solution, _ = nnls(triangle, orthogonal.T @ np.ones(len(times)))
    coefficients[list(columns)] = solution / scale
    return coefficients


def relative_errors(rows: Floats, times: Floats, coefficients: Floats) -> Floats:
    """|T̂ − T| / T of every row."""
    return np.asarray(np.abs(rows @ coefficients / times - 1))


def resampled_times(observations: Observed, count: int) -> Floats:
    """Times (``count`` × observations) from whole launches drawn with replacement within each launch set.

    All observations of a launch stay together. A drawn launch that lacks an observation does not contribute to it.
    """
    generator = np.random.default_rng(0)
    sets = {name: {key: place for place, key in enumerate(keys)} for name, keys in launch_sets(observations).items()}
    draws = {name: generator.integers(0, len(keys), size=(count, len(keys))) for name, keys in sets.items()}
    times = np.empty((count, len(observations)))
    for column, one in enumerate(observations):
        keys = sets[launch_set_of(one)]
        launches = np.full(len(keys), np.nan)
        launches[[keys[key] for key in launch_keys_of(one)]] = one.launches
        drawn = launches[draws[launch_set_of(one)]]
        none = np.isnan(drawn).all(axis=1)
        if none.any():
            # No drawn launch has this observation, so all of its launches are used.
            drawn[none] = launches
        times[:, column] = middle(drawn)
    return times


def launch_sets(observations: Observed) -> dict[object, list[object]]:
    """All launches of every launch set, in order of first appearance."""
    every = by_key((launch_set_of(one), key) for one in observations for key in launch_keys_of(one))
    return {name: list(dict.fromkeys(keys)) for name, keys in every.items()}


def launch_set_of(one: Observation) -> object:
    """The launch set of the observation."""
    return one.launch_set or (one.ranks, one.hosts)


def launch_keys_of(one: Observation) -> Sequence[object]:
    """The launch of each time of the observation."""
    return one.launch_keys or range(len(one.launches))
