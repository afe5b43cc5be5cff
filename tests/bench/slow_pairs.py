"""How often the right host, direction or pair is called slow, and how often a healthy one: over seeded matrices.

The noise is that of the reference measurements: launches differ by 3 % as a whole and again pair by pair, one pair in
twenty of a launch is slower by a one-sided tail, hosts and pairs differ by 2 % for good. Nothing is asserted.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from busbw_analysis.diagnosis.distances import kinds
from busbw_analysis.diagnosis.pairs import LAUNCHES_FOR_A_PAIR, Outlier, outliers_in

Floats = npt.NDArray[np.float64]

TRIALS = 200
LAUNCH_NOISE = 0.03
LASTING_NOISE = 0.02
TAIL_SHARE = 0.05
TAIL_MEAN = 0.3
SIZE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Truth:
    """What is slow: ``slow(logs, factor)`` adds the logarithm to the cells that it concerns; ``wanted`` is what must
    be found, as (kind, ranks), by the number of ranks and of ranks on each host.
    """

    name: str
    slow: Callable[[Floats, int], None]
    wanted: Callable[[int, int], set[tuple[str, tuple[int, ...]]]]


SLOWER = float(np.log(1.4))


def _nothing(_logs: Floats, _on_host: int) -> None:
    pass


def _host(logs: Floats, on_host: int) -> None:
    mine = np.arange(logs.shape[1]) < on_host
    logs[:, mine[:, None] != mine[None, :]] += SLOWER


def _sender(logs: Floats, _on_host: int) -> None:
    logs[:, 1, :] += SLOWER


def _receiver(logs: Floats, _on_host: int) -> None:
    logs[:, :, 1] += SLOWER


def _pair(logs: Floats, _on_host: int) -> None:
    logs[:, 0, 3] += SLOWER


def _both_directions(logs: Floats, on_host: int) -> None:
    _pair(logs, on_host)
    logs[:, 3, 0] += SLOWER


HEALTHY = Truth("healthy", _nothing, lambda _count, _on_host: set())
TRUTHS = (
    HEALTHY,
    Truth("slow host", _host, lambda _count, on_host: {("host", tuple(range(on_host)))}),
    Truth("slow sender", _sender, lambda _count, _on_host: {("sender", (1,))}),
    Truth("slow receiver", _receiver, lambda _count, _on_host: {("receiver", (1,))}),
    Truth("slow pair", _pair, lambda _count, _on_host: {("pair", (0, 3))}),
    Truth("pair, both ways", _both_directions, lambda _count, _on_host: {("pair", (0, 3))}),
)


def times_ns(truth: Truth, count: int, on_host: int, launches: int, seed: int, noise: float = LAUNCH_NOISE) -> Floats:
    """Launch medians (launches × n × n, ns) of a machine of which ``truth`` holds; NaN on the diagonal."""
    generator = np.random.default_rng(seed)
    shape = (launches, count, count)
    place = np.arange(count) // on_host
    logs = np.log(200e3) + np.where(place[:, None] == place, 0.0, np.log(3.0)) + generator.normal(0, noise, shape)
    logs += generator.normal(0, LAUNCH_NOISE, (launches, 1, 1))
    logs += generator.normal(0, LASTING_NOISE, (count, count)) + generator.normal(0, LASTING_NOISE, (count, 1))
    logs += np.where(generator.random(shape) < TAIL_SHARE, generator.exponential(TAIL_MEAN, shape), 0.0)
    truth.slow(logs, on_host)
    logs[:, np.arange(count), np.arange(count)] = np.nan
    return np.asarray(np.exp(logs))


def outliers_of(truth: Truth, count: int, on_host: int, launches: int, seed: int, noise: float) -> tuple[Outlier, ...]:
    """What the analysis names in one matrix."""
    hosts = tuple(f"n{rank // on_host}" for rank in range(count))
    alike = kinds(tuple(tuple(int(host != other) for other in hosts) for host in hosts))
    times = times_ns(truth, count, on_host, launches, seed, noise)
    return outliers_in(tuple(range(count)), hosts, times, SIZE_BYTES, alike, pairs=True, few=0.25)


def right(truth: Truth, count: int, on_host: int, odd: Iterable[Outlier]) -> bool:
    """Whether everything that is slow was named, and nothing else."""
    wanted = truth.wanted(count, on_host)
    named = {(outlier.kind, outlier.ranks) for outlier in odd}
    return named == wanted or {(kind, tuple(sorted(ranks))) for kind, ranks in named} == wanted


@dataclass(frozen=True, slots=True)
class Outcome:
    """Of how many of ``trials`` matrices everything slow was named, and nothing else."""

    words: str
    healthy: bool
    right: int
    trials: int


def outcomes(trials: int = TRIALS) -> Iterator[Outcome]:
    """Judge ``trials`` seeded matrices of every shape and truth.

    Fewer launches than it takes to judge single pairs are asked for the healthy only.
    """
    for count, on_host in ((4, 1), (8, 1), (8, 2), (16, 4)):
        for launches in (1, 2, 4, 6, 10):
            settings = [(HEALTHY, LAUNCH_NOISE), (HEALTHY, 0.3)]
            settings += [(truth, LAUNCH_NOISE) for truth in TRUTHS[1:]] if launches >= LAUNCHES_FOR_A_PAIR else []
            for truth, noise in settings:
                judged = (outliers_of(truth, count, on_host, launches, seed, noise) for seed in range(trials))
                yield Outcome(
                    words=f"{truth.name}: {count} ranks, {on_host} a host, {launches} launches, noise {noise:.0%}",
                    healthy=truth is HEALTHY,
                    right=sum(right(truth, count, on_host, odd) for odd in judged),
                    trials=trials,
                )
