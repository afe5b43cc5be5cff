"""The linear system behind a joint fit: one row for every observed time, one column for every parameter.

T = c0 + rounds · α + sent · β + moved / R + added · γ. Of algorithms that know hosts, rounds and bytes inside a host
have an α and a β of their own; all of a flat one is taken as between hosts. Rows are divided by T, so that errors are
relative, and solved for what is not negative (Lawson and Hanson 1974).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, get_args

import numpy as np
import numpy.typing as npt
from scipy.optimize import nnls

from busbw.ops import MESSAGES
from busbw_analysis.data.grouped import by_key, grouped
from busbw_analysis.data.unavailable import Unavailable
from busbw_analysis.models.choices import Calls
from busbw_analysis.models.costs import CostModel
from busbw_analysis.models.select import candidates

Floats = npt.NDArray[np.float64]

Parameter = Literal["alpha", "beta", "shared", "per_call", "gamma", "inner_alpha", "inner_beta", "card"]
"""α: seconds a round; β: seconds a byte through one direction of a link; ``shared`` is 1/R: seconds a byte of all that
the ranks of one host move together; ``per_call`` is c0, seconds a call; γ: seconds a byte that is added up. Over
several hosts α and β are those between hosts, ``inner_alpha`` and ``inner_beta`` those inside a host of an algorithm
that knows hosts; ``card`` is 1/C: seconds a byte of all that the ranks of a host send to others through one card.
"""

PARAMETERS: Final[tuple[Parameter, ...]] = get_args(Parameter)
Wanted = Sequence[Parameter]

Placement = Literal["one host", "one rank on each host", "several ranks on several hosts"]


@dataclass(frozen=True, slots=True)
class Regime:
    """Where one set of parameters can hold: the way of the bytes, and whether ranks had to share cores."""

    placement: Placement
    oversubscribed: bool

    @classmethod
    def of(cls, ranks: int, hosts: int, *, oversubscribed: bool) -> "Regime":
        """That of so many ranks and hosts."""
        if hosts == 1:
            return cls("one host", oversubscribed)
        return cls("one rank on each host" if ranks == hosts else "several ranks on several hosts", oversubscribed)

    def __str__(self) -> str:
        return f"{self.placement}, more ranks than cores" if self.oversubscribed else self.placement


@dataclass(frozen=True, slots=True)
class Observation:
    """One op at one size on ``ranks`` ranks over ``hosts`` hosts. ``launches`` are the medians of the single launches
    in their order (seconds), ``seconds`` the headline, which is the median of those. ``algorithm`` names the one that
    was run over send/recv; None means the library's own. Launches of one ``launch_set`` that have the same one of
    ``launch_keys`` are the same launch; without keys, those at the same place.
    ``calls`` tells of the MPI library, where it was one.
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
        """Where it was measured."""
        return Regime.of(self.ranks, self.hosts, oversubscribed=self.oversubscribed)

    @property
    def where(self) -> tuple[int, int, int]:
        """Ranks, hosts and bytes, by which an algorithm says what it costs."""
        return self.ranks, self.hosts, self.size_bytes

    @property
    def curve(self) -> "Curve":
        """What has one algorithm: an op of the library, or an op by one algorithm over send/recv."""
        return self.op, self.algorithm


Observed = Sequence[Observation]
Curve = tuple[str, str | None]
Models = Mapping[Curve, CostModel]
"""The algorithm that is taken to be behind each curve."""


def candidates_of(observations: Observed) -> tuple[CostModel, ...]:
    """What may be behind ``observations``, which are of one curve, as of ``select.candidates``."""
    first = observations[0]
    return candidates(first.op, first.cost_models, first.algorithm, _calls_of(observations))


def _calls_of(observations: Observed) -> Calls | None:
    every = {one.calls for one in observations}
    if len(every) > 1:
        why = "they are of several MPI libraries, or of one that was called in several ways"
        return Calls(Unavailable("several-libraries", why))
    return every.pop()


def possible_for(model: CostModel, observations: Observed, wanted: Wanted) -> bool:
    """Whether there is such a thing on all ranks and hosts and at all sizes of ``observations``, and whether what it
    costs is known in ``wanted`` parameters.
    """
    return all(model.possible(*one.where) and known_in(model, wanted, *one.where) for one in observations)


def known_in(model: CostModel, wanted: Wanted, ranks: int, hosts: int, size_bytes: float) -> bool:
    """Whether what a call costs is known in ``wanted`` parameters: of few flat algorithms is it known what all ranks of
    a host send through one card.
    """
    where = (ranks, hosts, size_bytes)
    return "card" not in wanted or model.of_hosts_known(*where) or not model.sent(*where) * size_bytes


def unknown_choices(observations: Observed) -> tuple[str, ...]:
    """For each op that an MPI library ran by an algorithm of its own of which nothing is known, why that is so."""
    of_mpi = [one for one in observations if one.algorithm is None and one.calls and one.op not in MESSAGES]
    said: list[str] = []
    for op, members in grouped(of_mpi, lambda one: one.op).items():
        calls = _calls_of(members)
        found = [calls.choice(op, *one.where) for one in members] if calls else []
        reason = next((one.reason for one in found if isinstance(one, Unavailable)), None)
        said += [f"what {members[0].backend} runs for {op} is not known: {reason}"] if reason else []
    return tuple(said)


def amounts(model: CostModel, ranks: int, hosts: int, size_bytes: float) -> tuple[float, ...]:
    """What each of PARAMETERS is multiplied by in one call, as the first of ``branches``."""
    return branches(model, ranks, hosts, size_bytes)[0]


def branches(model: CostModel, ranks: int, hosts: int, size_bytes: float) -> tuple[tuple[float, ...], ...]:
    """What each of PARAMETERS is multiplied by in one call; that of ``card`` is right where ``known_in`` says so. Of an
    algorithm that is under way inside hosts and between them at once, first between and then inside: the longer counts.
    """
    where = (ranks, hosts, size_bytes)
    rounds, between = model.rounds(*where), model.between(*where) * size_bytes
    moved, added = model.moved(*where) * size_bytes, model.added(*where) * size_bytes
    of_host = between * ranks / hosts if model.two_levels else between
    if not model.overlapped:
        inside = model.inner_rounds(*where), model.inner_sent(*where) * size_bytes
        return ((rounds - inside[0], between, moved, 1.0, added, *inside, of_host),)
    # What goes to other hosts leaves the rank by the same way as what stays.
    return (
        (rounds, between, moved, 1.0, added, 0.0, 0.0, of_host),
        (0.0, 0.0, moved, 1.0, added, rounds, model.sent(*where) * size_bytes, 0.0),
    )


def branches_of(observations: Observed, models: Models) -> Floats:
    """Observations × two branches × PARAMETERS, not yet divided by the times; both are alike where there is one."""
    found = [branches(models[one.curve], *one.where) for one in observations]
    rows = [(one[0], one[-1]) for one in found]
    return np.asarray(rows, dtype=np.float64).reshape(len(rows), 2, len(PARAMETERS))


def longer_of(branched: Floats, coefficients: Floats) -> Floats:
    """Observations × PARAMETERS: of two branches the one that takes longer."""
    longer = (branched @ coefficients).argmax(axis=1)
    return np.asarray(branched[np.arange(len(branched)), longer])


def times_of(observations: Observed) -> Floats:
    """Seconds: the middle of each observation's launches."""
    return np.asarray([middle(np.asarray(one.launches)) for one in observations], dtype=np.float64)


def middle(launches: Floats) -> Floats:
    """The mean of the middle half along the last axis, which up to four launches is their median; NaN is no launch.

    As little moved by a bad launch as the median, and smooth where the median of a resample jumps from one launch to
    another: intervals of that covered the truth in 97 to 99 % of trials, of this in 92 to 97 % (`make bench-fit`).
    """
    ordered = np.sort(launches, axis=-1)
    count = np.count_nonzero(~np.isnan(ordered), axis=-1)[..., None]
    left_out = (count + 1) // 4
    place = np.arange(ordered.shape[-1])
    inner = (place >= left_out) & (place < count - left_out)
    return np.asarray(np.where(inner, ordered, 0.0).sum(axis=-1) / inner.sum(axis=-1))


def solve(rows: Floats, times: Floats, columns: Sequence[int]) -> Floats:
    """The coefficients, none negative, with the least squared relative error; 0 for all that is not in ``columns``."""
    coefficients = np.zeros(rows.shape[1])
    system = rows[:, columns] / times[:, None]
    scale = np.abs(system).max(axis=0)
    scale[scale == 0] = 1.0
    # The triangle of a QR decomposition has the same solution as the system and a handful of rows.
    orthogonal, triangle = np.linalg.qr(system / scale)
    solution, _ = nnls(triangle, orthogonal.T @ np.ones(len(times)))
    coefficients[list(columns)] = solution / scale
    return coefficients


def relative_errors(rows: Floats, times: Floats, coefficients: Floats) -> Floats:
    """|T̂ − T| / T of every row."""
    return np.asarray(np.abs(rows @ coefficients / times - 1))


def resampled_times(observations: Observed, count: int, seed: int) -> Floats:
    """Times (``count`` × observations) from whole launches drawn with replacement, each launch set by itself: what a
    launch has in common stays together. A launch that is drawn and did not measure an observation has no part in it.
    """
    generator = np.random.default_rng(seed)
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
            # All that were drawn are others: what it has stands for it.
            drawn[none] = launches
        times[:, column] = middle(drawn)
    return times


def launch_sets(observations: Observed) -> dict[object, list[object]]:
    """All launches of every launch set, in the order in which they first came."""
    every = by_key((launch_set_of(one), key) for one in observations for key in launch_keys_of(one))
    return {name: list(dict.fromkeys(keys)) for name, keys in every.items()}


def launch_set_of(one: Observation) -> object:
    """What shares its launches with the observation."""
    return one.launch_set or (one.ranks, one.hosts)


def launch_keys_of(one: Observation) -> Sequence[object]:
    """Which launch each time of the observation is from."""
    return one.launch_keys or range(len(one.launches))
