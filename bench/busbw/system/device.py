"""The seam between the instrument and a device that computes beside the host: a stream of work, and marks in it.

A device is handed work and does it later, in order. What it does when can be known from its own clock alone, by marks
that stand between the pieces of work; the host only knows when it handed them over and when it waited for the end.
The Protocol holds no more than timing needs, so that a fake with a clock of its own fits behind it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

REASONS = {
    1 << 1: "clocks set by the operator",
    1 << 2: "power limit",
    1 << 3: "hardware slowdown",
    1 << 4: "kept at the clock of its group",
    1 << 5: "temperature, by the driver",
    1 << 6: "temperature, by the hardware",
    1 << 7: "power brake, from outside",
    1 << 8: "clock of the display",
    1 << 9: "limit of the board",
    1 << 10: "limit for reliability",
}
"""Why a GPU does not run as fast as it could, by the bits of nvmlClocksEventReasons (NVML reference, group "Clocks
Event Reasons"). Bit 0, idle, is left out: a GPU that has nothing to do is not held back.
"""


@dataclass(frozen=True, slots=True)
class DeviceConditions:
    """A device at one moment: its number in the host, the clock of its processors in MHz (None: not told) and the bits
    of ``REASONS`` for which it is held back (0: for none).
    """

    index: int
    mhz: float | None
    reasons: int = 0


def reasons_in_words(bits: int) -> tuple[str, ...]:
    """The bits of ``REASONS`` that are set in ``bits``, in words; those that it does not know are left out."""
    return tuple(words for bit, words in REASONS.items() if bits & bit)


class Mark(Protocol):
    """A moment in the work of a device: when everything that was handed over before it has been done."""

    def record(self) -> None:
        """Put the mark behind everything that was handed over until now. It may be put again, once it was read."""

    def passed(self) -> bool:
        """Whether the device has come to it; never waits."""

    def ns_since(self, earlier: "Mark") -> int:
        """Nanoseconds of the device's clock between ``earlier`` and this mark, both put and waited for."""


class Device(Protocol):
    """The device of one rank. Everything but ``synchronise`` hands over work and returns before it is done.

    What goes wrong on the device may be raised by any later call; it is one of what the backend ``raises``.
    """

    name: str
    cache_bytes: int
    address: str | None
    """Its place on PCI as the kernel writes it (``0000:1b:00.0``); None where nobody tells."""

    uncapturable: str | None
    """Why ``capture``, and with it ``compute``, would fail from now on; None while nothing is known to prevent it."""

    def mark(self) -> Mark:
        """A new mark, prepared so far that putting it costs nothing that could be done before."""

    def synchronise(self) -> None:
        """Wait until the device has done everything that was handed over, on every stream."""

    def hold(self, ns: int) -> None:
        """Keep the current stream busy for about ``ns`` ns: what is handed over meanwhile then runs without gaps."""

    def flush(self) -> None:
        """Drive everything out of the device's cache, by writing a buffer that is larger."""

    def capture(self, calls: Sequence[Callable[[], object]]) -> Callable[[], object]:
        """``calls``, one after the other, as one graph; what is returned hands the whole graph over again.

        Each of them must have been called before. The graph uses the buffers that the calls are bound to.
        """

    def together(self, one: Callable[[], object], other: Callable[[], object]) -> Callable[[], object]:
        """What hands ``one`` and ``other`` over to run at once, on two streams: neither before what was handed over
        earlier is done, and nothing that is handed over later before both are.
        """

    def on_other(self, name: str, call: Callable[[], object]) -> Callable[[], object]:
        """What hands over ``call``, whose work is that of the device ``name``, in the order of this one's stream: not
        before what was handed over earlier is done, and nothing that is handed over later before it is.
        """

    def peak_bytes(self, call: Callable[[], object]) -> int:
        """The most bytes that all tensors of this process hold on the device while ``call`` runs there."""

    def compute(self, units: int) -> None:
        """``units`` units of computation on the current stream, the same amount at each call."""

    def conditions(self) -> DeviceConditions | None:
        """How the device stands; None where nobody tells."""
