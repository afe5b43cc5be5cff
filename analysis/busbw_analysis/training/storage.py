"""What training asks of storage: the rate at which samples are read, the time of a checkpoint, and how often to save.

Rates are bytes per second, times seconds. Measured rates take the same functions.
"""

import math
from dataclasses import dataclass
from typing import Final

from busbw.errors import UsageError
from busbw.workloads.model_rows import Model, Sample, flop_per_token

COPY_BYTES_PER_SECOND: Final = 55e9
"""From a GPU to its host over PCIe 5 ×16, as measured on H100 (https://github.com/stas00/ml-engineering)."""
_NARROW_VOCABULARY: Final = 1 << 16


@dataclass(frozen=True, slots=True)
class Rate:
    """B/s of a storage, for all that use it together, and what it rests on."""

    bytes_per_second: float
    origin: str


@dataclass(frozen=True, slots=True)
class Reading:
    """Bytes a second that one GPU reads while it computes: ``bytes_per_flop`` of the samples times what it achieves."""

    what: str
    bytes_per_flop: float
    flop_per_second: float
    gpus: int

    @property
    def per_gpu(self) -> float:
        """B/s (Ibrahim et al. 2021, https://doi.org/10.1109/PMBS54543.2021.00007, section 3)."""
        return self.bytes_per_flop * self.flop_per_second

    @property
    def bytes_per_second(self) -> float:
        """Of all GPUs."""
        return self.per_gpu * self.gpus

    def share_of(self, bytes_per_second: float) -> float:
        """Share of a storage's read rate that training takes; above 1 it waits, and runs at 1 over this."""
        return self.bytes_per_second / bytes_per_second


def reading_samples(sample: Sample, flop_per_second: float, gpus: int) -> Reading:
    """Of a row of samples."""
    return Reading(sample.name, sample.bytes / sample.flop, flop_per_second, gpus)


def reading_tokens(model: Model, sequence: int, flop_per_second: float, gpus: int) -> Reading:
    """Of a stream of tokens, of 2 bytes up to a vocabulary of 65536, else of 4."""
    bytes_ = 2 if model.vocabulary <= _NARROW_VOCABULARY else 4
    flop = flop_per_token(model, sequence, causal=True)
    return Reading(f"tokens of {model.name}", bytes_ / flop, flop_per_second, gpus)


def write_seconds(bytes_: float, writers: int, writer_rate: float | None, storage_rate: float) -> float:
    """Time in which ``writers`` save ``bytes_`` together: as fast as they are together, or as the storage is."""
    _positive(bytes_=bytes_, writers=writers, writer_rate=writer_rate or 1.0, storage_rate=storage_rate)
    together = math.inf if writer_rate is None else writers * writer_rate
    return bytes_ / min(together, storage_rate)


def copy_seconds(bytes_: float, gpus: int) -> float:
    """Time in which all GPUs copy their parts to their hosts, after which a model may go on while it is written."""
    return bytes_ / gpus / COPY_BYTES_PER_SECOND


def young(cost: float, between_failures: float) -> float:
    """Best time of computation between two checkpoints that each stop it for ``cost``: √(2 δ M) (Young 1974,
    https://doi.org/10.1145/361147.361115), for δ far below M.
    """
    return math.sqrt(2 * cost * between_failures)


def daly(cost: float, between_failures: float) -> float:
    """The same to a higher order: √(2 δ M) (1 + √(δ/2M)/3 + (δ/2M)/9) − δ, and M from δ = 2 M on (Daly 2006,
    https://doi.org/10.1016/j.future.2004.11.016, equation 37).
    """
    _positive(cost=cost, between_failures=between_failures)
    if cost >= 2 * between_failures:
        return between_failures
    half = cost / (2 * between_failures)
    return young(cost, between_failures) * (1 + math.sqrt(half) / 3 + half / 9) - cost


def lost(cost: float, interval: float, between_failures: float, restart: float) -> float:
    """Share of all time that does not go on: 1 − τ/T for T = M e^(R/M) (e^((τ+δ)/M) − 1), what τ seconds of work take
    when failures come by chance every M and cost a restart R (Daly 2006, equation 20).
    """
    _positive(interval=interval, between_failures=between_failures)
    exponent = (restart + interval + cost) / between_failures
    if exponent > 700:
        return 1.0
    takes = between_failures * math.exp(restart / between_failures) * math.expm1((interval + cost) / between_failures)
    return 1 - interval / takes


def _positive(**numbers: float) -> None:
    for name, value in numbers.items():
        if not 0 < value < math.inf:
            raise UsageError(f"{name.rstrip('_')} {value:g}: want a finite number above 0", code="storage")


@dataclass(frozen=True, slots=True)
class Checkpoints:
    """Saving every ``interval`` seconds of work, which each time stops it for ``stops`` seconds and is written after
    ``written``; ``lost`` share of all time (Daly), and ``loosely`` δ/τ + τ/2M + R/M of it. None where nobody says how
    often it fails.
    """

    how: str
    stops: float
    written: float
    young: float | None = None
    interval: float | None = None
    lost: float | None = None
    loosely: float | None = None


def checkpoints(
    stops: float, written: float, between_failures: float | None, restart: float, *, how: str
) -> Checkpoints:
    """At the best interval by Daly; one that goes on while it is written waits at least until it is."""
    if between_failures is None:
        return Checkpoints(how, stops, written)
    best = max(daly(stops, between_failures), written - stops)
    loosely = stops / best + best / (2 * between_failures) + restart / between_failures
    share = lost(stops, best, between_failures, restart)
    return Checkpoints(how, stops, written, young(stops, between_failures), best, share, loosely)
