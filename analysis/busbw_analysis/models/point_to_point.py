"""What one message costs, by the models in use: Hockney, LogGP and LogGPS, PLogP, max-rate, eager and rendezvous.

Each model says ``seconds``; what one can be fitted from is in ``message_fits``. m is the size of a message in bytes.
Where two models are the same function of m for one message (Hockney and LogGP), no measurement of single messages
tells them apart.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from busbw.errors import AnalysisError


def _refuse_negative(model: str, **values: float) -> None:
    for name, value in values.items():
        if not (math.isfinite(value) and value >= 0):
            message = f"{model}: {name} is {value}; it is a finite number that is not negative"
            raise AnalysisError(message)


def _refuse_message(size_bytes: float, messages: int = 1) -> None:
    if not size_bytes >= 0 or messages < 1:
        message = f"{messages} messages of {size_bytes} B are none; want at least 1 of 0 B or more"
        raise AnalysisError(message)


@dataclass(frozen=True, slots=True)
class Hockney:
    """T = α + m β. Source: Hockney 1994."""

    alpha_seconds: float
    beta_seconds_per_byte: float

    def __post_init__(self) -> None:
        """Raise AnalysisError for what cannot be."""
        _refuse_negative("Hockney", alpha=self.alpha_seconds, beta=self.beta_seconds_per_byte)

    def seconds(self, size_bytes: float) -> float:
        """Time of a message of ``size_bytes``."""
        _refuse_message(size_bytes)
        return self.alpha_seconds + size_bytes * self.beta_seconds_per_byte


@dataclass(frozen=True, slots=True)
class LogGP:
    """L on the wire, o of a processor for each end of a message, at least g between two messages and G for a further
    byte: T = L + 2o + (m−1) G. Source: Alexandrov et al. 1995; Culler et al. 1993 for L, o and g.
    """

    latency_seconds: float
    overhead_seconds: float
    gap_seconds: float
    gap_per_byte_seconds: float

    def __post_init__(self) -> None:
        """Raise AnalysisError for what cannot be."""
        _refuse_negative(
            "LogGP",
            L=self.latency_seconds,
            o=self.overhead_seconds,
            g=self.gap_seconds,
            G=self.gap_per_byte_seconds,
        )

    def seconds(self, size_bytes: float, messages: int = 1) -> float:
        """Until the last of ``messages`` messages of ``size_bytes`` to one rank is there: each further one costs
        max(g, o) and its own bytes.
        """
        _refuse_message(size_bytes, messages)
        bytes_after_the_first = max(size_bytes - 1, 0) * messages
        return (
            self.latency_seconds
            + 2 * self.overhead_seconds
            + bytes_after_the_first * self.gap_per_byte_seconds
            + (messages - 1) * max(self.gap_seconds, self.overhead_seconds)
        )


@dataclass(frozen=True, slots=True)
class LogGPS:
    """``LogGP`` with the handshake of a long message: above ``threshold_bytes`` the sender asks and waits for the word
    before the bytes go, which is a small message there and one back, 2L + 4o. Source: Ino et al. 2001.
    """

    short: LogGP
    threshold_bytes: int

    @property
    def handshake_seconds(self) -> float:
        """What a message above the threshold waits for."""
        return 2 * (self.short.latency_seconds + 2 * self.short.overhead_seconds)

    def seconds(self, size_bytes: float) -> float:
        """Time of a message of ``size_bytes``."""
        return self.short.seconds(size_bytes) + (self.handshake_seconds if size_bytes > self.threshold_bytes else 0)


@dataclass(frozen=True, slots=True)
class EagerRendezvous:
    """One line for messages that are sent at once and one for those that wait for the receiver's word, with a jump up
    between ``last_eager_bytes`` and ``first_rendezvous_bytes``. Two lines and no continuity: long messages may well
    have the smaller β, because they are copied once less.
    """

    eager: Hockney
    rendezvous: Hockney
    last_eager_bytes: int
    first_rendezvous_bytes: int

    def __post_init__(self) -> None:
        """Raise AnalysisError for what cannot be."""
        if not 0 <= self.last_eager_bytes < self.first_rendezvous_bytes:
            message = (
                f"eager up to {self.last_eager_bytes} B and rendezvous from {self.first_rendezvous_bytes} B on is no "
                "threshold; the first has to be smaller"
            )
            raise AnalysisError(message)

    @property
    def threshold_bytes(self) -> float:
        """The geometric middle of the two sizes between which the protocol changes."""
        return math.sqrt(max(self.last_eager_bytes, 1) * self.first_rendezvous_bytes)

    @property
    def jump_seconds(self) -> float:
        """How much longer a message at the threshold takes by rendezvous."""
        return self.rendezvous.seconds(self.threshold_bytes) - self.eager.seconds(self.threshold_bytes)

    def seconds(self, size_bytes: float) -> float:
        """Time of a message of ``size_bytes``."""
        return (self.eager if size_bytes < self.threshold_bytes else self.rendezvous).seconds(size_bytes)


@dataclass(frozen=True, slots=True)
class PLogP:
    """L and tables of g(m), o_s(m) and o_r(m), straight lines between the sizes: T = L + g(m), and each further message
    another g(m). The last line goes on above the largest size. Source: Kielmann et al. 2000.

    ``send_overheads`` and ``receive_overheads`` are None where they were not measured. Where L was not measured apart,
    it is 0 and g(m) holds it.
    """

    latency_seconds: float
    sizes_bytes: tuple[int, ...]
    gaps_seconds: tuple[float, ...]
    send_overheads_seconds: tuple[float, ...] | None = None
    receive_overheads_seconds: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        """Raise AnalysisError for a table that is none."""
        _refuse_negative("PLogP", L=self.latency_seconds)
        if len(self.sizes_bytes) < 2 or any(one >= two for one, two in pairwise(self.sizes_bytes)):
            message = f"PLogP: sizes {self.sizes_bytes} are no table; it needs at least 2, ascending, each once"
            raise AnalysisError(message)
        for name, row in (
            ("g", self.gaps_seconds),
            ("o_s", self.send_overheads_seconds),
            ("o_r", self.receive_overheads_seconds),
        ):
            if row is not None and len(row) != len(self.sizes_bytes):
                message = f"PLogP: {len(row)} values of {name}(m) for {len(self.sizes_bytes)} sizes; want one for each"
                raise AnalysisError(message)
            for value in row or ():
                _refuse_negative("PLogP", **{name: value})

    def seconds(self, size_bytes: float, messages: int = 1) -> float:
        """Until the last of ``messages`` messages of ``size_bytes`` to one rank is there."""
        _refuse_message(size_bytes, messages)
        return self.latency_seconds + messages * self._at(self.gaps_seconds, size_bytes)

    def send_overhead(self, size_bytes: float) -> float:
        """How long the sender's processor is busy. Raises AnalysisError where it was not measured."""
        return self._overhead("o_s(m)", self.send_overheads_seconds, size_bytes)

    def receive_overhead(self, size_bytes: float) -> float:
        """How long the receiver's processor is busy. Raises AnalysisError where it was not measured."""
        return self._overhead("o_r(m)", self.receive_overheads_seconds, size_bytes)

    def _overhead(self, name: str, row: Sequence[float] | None, size_bytes: float) -> float:
        if row is None:
            message = f"PLogP: {name} was not measured; it takes the time of the call that posts a message, alone"
            raise AnalysisError(message)
        return self._at(row, size_bytes)

    def _at(self, row: Sequence[float], size_bytes: float) -> float:
        if size_bytes <= self.sizes_bytes[0]:
            return row[0]
        last = len(self.sizes_bytes) - 1
        high = next((index for index in range(1, last) if size_bytes <= self.sizes_bytes[index]), last)
        one, two = self.sizes_bytes[high - 1], self.sizes_bytes[high]
        slope = (row[high] - row[high - 1]) / (two - one)
        if size_bytes > two:
            slope = max(slope, 0.0)  # beyond the table, time does not fall
            return row[high] + slope * (size_bytes - two)
        return row[high - 1] + slope * (size_bytes - one)


@dataclass(frozen=True, slots=True)
class MaxRate:
    """k pairs of ranks send at once through what they share, a network card or the memory of a host:
    T = α + k m / min(R_N, k R_b). Source: Gropp, Olson and Samfass 2016.

    ``shared_rate`` (R_N, B/s) is infinite where it was never reached.
    """

    alpha_seconds: float
    pair_rate: float
    shared_rate: float

    def __post_init__(self) -> None:
        """Raise AnalysisError for what cannot be."""
        _refuse_negative("max-rate", alpha=self.alpha_seconds)
        if not (self.pair_rate > 0 and self.shared_rate > 0):
            message = f"max-rate: R_b {self.pair_rate} and R_N {self.shared_rate} B/s; both are above 0"
            raise AnalysisError(message)

    @property
    def full_at(self) -> float:
        """How many pairs fill what they share."""
        return self.shared_rate / self.pair_rate

    def seconds(self, size_bytes: float, pairs: int = 1) -> float:
        """Time of one message of each of ``pairs`` pairs."""
        _refuse_message(size_bytes, pairs)
        return self.alpha_seconds + pairs * size_bytes / min(self.shared_rate, pairs * self.pair_rate)
