"""Storage needs of training: the rate of reading samples, the time of a checkpoint, and how often to save.

Rates are B/s, times are seconds. Measured rates can be used as well.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from busbw.errors import UsageError
from busbw.units import format_flop, format_rate, format_seconds
from busbw.workloads.model_rows import Model, Sample, flop_per_token
from busbw_analysis.report.document import Column, Table, table
from busbw_analysis.training.layout import gigabytes, percent_of

COPY_BYTES_PER_SECOND: Final = 55e9
"""From a GPU to its host over PCIe 5 ×16, as measured on H100 (https://github.com/stas00/ml-engineering)."""
_NARROW_VOCABULARY: Final = 1 << 16


@dataclass(frozen=True, slots=True)
class Rate:
    """B/s of a storage, shared by all its users, and its origin."""

    bytes_per_second: float
    origin: str


@dataclass(frozen=True, slots=True)
class Reading:
    """Samples read by training: ``bytes_per_flop`` of the samples times the FLOP/s that each GPU achieves."""

    what: str
    bytes_per_flop: float
    flop_per_second: float
    gpus: int

    @property
    def per_gpu(self) -> float:
        """B/s of one GPU (Ibrahim et al. 2021, https://doi.org/10.1109/PMBS54543.2021.00007, section 3)."""
        return self.bytes_per_flop * self.flop_per_second

    @property
    def bytes_per_second(self) -> float:
        """B/s of all GPUs."""
        return self.per_gpu * self.gpus

    def share_of(self, bytes_per_second: float) -> float:
        """Share of a storage's read rate; above 1 training waits, and runs at 1 over this share."""
        return self.bytes_per_second / bytes_per_second


def reading_samples(sample: Sample, flop_per_second: float, gpus: int) -> Reading:
    """Reading of samples of a fixed size."""
    return Reading(sample.name, sample.bytes / sample.flop, flop_per_second, gpus)


def reading_tokens(model: Model, sequence: int, flop_per_second: float, gpus: int) -> Reading:
    """Reading of a stream of tokens, with 2 bytes each up to a vocabulary of 65536, else 4."""
    bytes_ = 2 if model.vocabulary <= _NARROW_VOCABULARY else 4
    flop = flop_per_token(model, sequence, causal=True)
    return Reading(f"tokens of {model.name}", bytes_ / flop, flop_per_second, gpus)


def copy_seconds(bytes_: float, gpus: int) -> float:
    """Time to copy all GPUs' parts to their hosts; training can continue while they are written."""
    return bytes_ / gpus / COPY_BYTES_PER_SECOND


def young(cost: float, between_failures: float) -> float:
    """Best computation time between two checkpoints that each stop it for ``cost``: √(2 δ M), for δ far below M.

    Young 1974, https://doi.org/10.1145/361147.361115.
    """
    return math.sqrt(2 * cost * between_failures)


def daly(cost: float, between_failures: float) -> float:
    """The same to a higher order: √(2 δ M) (1 + √(δ/2M)/3 + (δ/2M)/9) − δ, and M from δ = 2 M on.

    Daly 2006, https://doi.org/10.1016/j.future.2004.11.016, equation 37.
    """
    _positive(cost=cost, between_failures=between_failures)
    if cost >= 2 * between_failures:
        return between_failures
    half = cost / (2 * between_failures)
    return young(cost, between_failures) * (1 + math.sqrt(half) / 3 + half / 9) - cost


def lost(cost: float, interval: float, between_failures: float, restart: float) -> float:
    """Share of time without progress: 1 − τ/T for T = M e^(R/M) (e^((τ+δ)/M) − 1).

    T is the time for τ seconds of work if failures occur at random every M seconds and each costs a restart R (Daly
    2006, equation 20).
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
            raise UsageError(f"{name.rstrip('_')} {value:g}: expected a finite number above 0", code="storage")


@dataclass(frozen=True, slots=True)
class Checkpoints:
    """A schedule of checkpoints. All fields after ``written`` are None if the failure rate is unknown.

    stops: seconds that each one stops training.
    written: seconds until it is written.
    young, interval: seconds of work between two, by Young and by Daly.
    lost: share of all time (Daly).
    loosely: its approximation δ/τ + τ/2M + R/M (δ: stops, τ: interval, M: between failures, R: restart).
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
    """The best interval by Daly; an asynchronous checkpoint is written before the next begins."""
    if between_failures is None:
        return Checkpoints(how, stops, written)
    best = max(daly(stops, between_failures), written - stops)
    loosely = stops / best + best / (2 * between_failures) + restart / between_failures
    share = lost(stops, best, between_failures, restart)
    return Checkpoints(how, stops, written, young(stops, between_failures), best, share, loosely)


def storage_headline(reading: Reading, rate: Rate | None, saved: Sequence[Checkpoints], restart: float) -> str:
    """Whether the storage reads fast enough, how long a checkpoint stops training, and how often to save."""
    parts = [f"Training reads {format_rate(reading.bytes_per_second)}"]
    if rate is not None:
        share = reading.share_of(rate.bytes_per_second)
        enough = "enough" if share <= 1 else f"not enough: training needs {share:.3g} times that rate and waits"
        parts[0] += f" of {format_rate(rate.bytes_per_second)}: {enough}"
    if saved:
        stops = " or ".join(f"{format_seconds(each.stops)} ({each.how})" for each in saved)
        parts.append(f"a checkpoint stops it for {stops}")
    if intervals := [format_seconds(each.interval) for each in saved if each.interval is not None]:
        losses = (percent_of(each.lost) for each in saved if each.lost is not None)
        parts.append(f"save every {' or '.join(intervals)}, which loses {' or '.join(losses)} % of all time")
        parts.append(f"with --restart {restart:g} s after each failure")
    return "; ".join(parts)


def reading_table(reading: Reading, rate: Rate | None, unknown: str) -> Table:
    """Read rates, and their share of the storage's rate. ``unknown``: why the storage's rate is not known."""
    columns: tuple[Column[Reading], ...] = (
        Column("what", lambda row: row.what),
        Column("sample", lambda row: row.bytes_per_flop, "{:.3g}".format, "B/FLOP"),
        Column("achieved", lambda row: row.flop_per_second, format_flop),
        Column("a GPU reads", lambda row: row.per_gpu, format_rate),
        Column("GPUs", lambda row: row.gpus, str),
        Column("all read", lambda row: row.bytes_per_second, format_rate),
        Column("share", lambda row: None if rate is None else row.share_of(rate.bytes_per_second), percent_of, "%"),
    )
    return table("", columns, [reading], unknown if rate is None else f"share: of {_rate_words(rate)}")


def _rate_words(rate: Rate) -> str:
    return f"{format_rate(rate.bytes_per_second)} of the storage, {rate.origin}"


_CHECKPOINTS: Final[tuple[Column[Checkpoints], ...]] = (
    Column("what", lambda row: row.how),
    Column("stops", lambda row: row.stops, format_seconds),
    Column("stored after", lambda row: row.written, format_seconds),
    Column("Young", lambda row: row.young, format_seconds),
    Column("interval", lambda row: row.interval, format_seconds),
    Column("lost", lambda row: row.lost, percent_of, "%"),
    Column("roughly", lambda row: row.loosely, percent_of, "%"),
)


def checkpoints_table(
    schedules: Sequence[Checkpoints], bytes_: int, rate: Rate, between_failures: float | None
) -> Table:
    """Time of a checkpoint and, if the failure rate is known, how often to save and the time lost."""
    notes = [
        f"a checkpoint: {gigabytes(bytes_)} at {_rate_words(rate)}",
        "asynchronous: training stops while GPUs copy to their hosts",
    ]
    if between_failures is not None:
        notes += [
            f"interval: work between two checkpoints, by Daly 2006 for a failure every {between_failures / 3600:.3g} h",
            "asynchronous interval: at least until the last one is written",
            "Young: interval by Young 1974, √(2 · stops · time between failures)",
            "lost: share of all time in checkpoints, repeated work and restarts, by Daly",
            "roughly: lost, as stops/interval + interval/(2 · time between failures) + restart/time between failures",
        ]
    return table("", _CHECKPOINTS, schedules, *notes)
