"""Interface between the instrument and a device: an asynchronous stream of work, with events in it.

A device executes work later, in order. Only its own clock, read by events between the operations, shows when each of
them ran; the host only knows when it submitted them and when it waited for the end. The Protocol contains only what
timing needs, so that a fake device with its own clock can implement it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

REASONS = {
    1 << 1: "clocks set by the operator",
    1 << 2: "power limit",
    1 << 3: "hardware slowdown",
    1 << 4: "clock synchronised with its group",
    1 << 5: "temperature, by the driver",
    1 << 6: "temperature, by the hardware",
    1 << 7: "external power brake",
    1 << 8: "display clock",
    1 << 9: "board limit",
    1 << 10: "reliability limit",
}
"""Reasons for a reduced clock, by the bits of nvmlClocksEventReasons (NVML reference, group "Clocks Event Reasons").
Bit 0, idle, is left out: an idle GPU is not throttled.
"""


@dataclass(frozen=True, slots=True)
class DeviceConditions:
    """State of a device; None: unknown.

    index: number on the host.
    mhz, memory_mhz: clocks of processor and memory.
    reasons: bits of ``REASONS`` for throttling now (0: none).
    celsius: temperature of the processor.
    joules: energy since the driver was loaded.
    limited_ns: bit of ``REASONS`` → time since the driver was loaded in which it reduced the clock.
    counts: name in ``counters.COUNTERS`` → count since the driver was loaded; of ``xid`` by number, since the start.
    """

    index: int
    mhz: float | None
    reasons: int = 0
    memory_mhz: float | None = None
    celsius: float | None = None
    joules: float | None = None
    limited_ns: Mapping[int, int] = field(default_factory=dict)
    counts: Mapping[tuple[str, int | None], int] = field(default_factory=dict)


def reasons_in_words(bits: int) -> tuple[str, ...]:
    """Descriptions of the bits of ``REASONS`` that are set in ``bits``; unknown bits are left out."""
    return tuple(words for bit, words in REASONS.items() if bits & bit)


class Mark(Protocol):
    """An event in a device's stream: it occurs when all work submitted before it is done."""

    def record(self) -> None:
        """Submit the event after all work submitted so far. It may be submitted again after it was read."""

    def passed(self) -> bool:
        """Whether the event has occurred; never waits."""

    def wait(self) -> None:
        """Wait until the event has occurred."""

    def ns_since(self, earlier: "Mark") -> int:
        """Nanoseconds of the device's clock from ``earlier`` to this event; both must have occurred."""


class Device(Protocol):
    """The device of one rank. All methods except ``synchronise`` submit work and return before it is done.

    A device error may be raised by any later call; it is one of the exceptions in the backend's ``raises``.
    """

    name: str
    cache_bytes: int
    tick_ns: int
    """Resolution of its marks."""
    address: str | None
    """PCI address in the kernel's format (``0000:1b:00.0``); None: unknown."""

    uncapturable: str | None
    """Why ``capture``, and thus ``compute``, would fail from now on; None if nothing is known to prevent it."""

    def mark(self) -> Mark:
        """A new event, prepared so that recording it costs as little as possible."""

    def synchronise(self) -> None:
        """Wait until the device has done all submitted work, on every stream."""

    def hold(self, ns: int) -> None:
        """Block the current stream for about ``ns`` ns: work submitted meanwhile then runs without gaps."""

    def flush(self) -> None:
        """Evict the device's cache by writing a larger buffer."""

    def capture(self, calls: Sequence[Callable[[], object]]) -> Callable[[], object]:
        """Capture ``calls``, in order, as one graph; return a function that submits the graph.

        Each call must have been made before. The graph uses the buffers that the calls are bound to.
        """

    def together(self, first: Callable[[], object], *others: Callable[[], object]) -> Callable[[], object]:
        """Return a function that submits each call to a stream of its own, to run concurrently: after all earlier work,
        and before all later work.
        """

    def on_other(self, name: str, call: Callable[[], object]) -> Callable[[], object]:
        """Return a function that submits ``call``, which runs on device ``name``, in order with this device's stream:
        after all earlier work, and before all later work.
        """

    def free_bytes(self) -> int:
        """Bytes of the device's memory that no process uses now."""

    def used_bytes(self) -> int:
        """Bytes of all tensors of this process on the device now."""

    def peak_bytes(self, call: Callable[[], object]) -> int:
        """Peak bytes of all tensors of this process on the device while ``call`` runs."""

    def compute(self, units: int) -> None:
        """Submit ``units`` units of computation to the current stream; a unit is always the same amount of work."""

    def conditions(self) -> DeviceConditions | None:
        """State of the device; None if unknown."""
