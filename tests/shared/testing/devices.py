"""A device that is not there: a stream that does its work in order, on a clock that is told the time.

Handing work over costs the host some nanoseconds; the device does it afterwards, one piece after the other. Whatever a
real device would let pass in silence is refused here: reading a mark that was not waited for, finishing with something
that was posted and never waited for, and data are not there before the device has been waited for.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from busbw.errors import BackendError
from busbw.system.device import DeviceConditions, Mark

Work = Callable[[int], int]
"""When the stream comes to it, ns → when it has done it, ns."""


@dataclass(frozen=True, slots=True)
class DeviceScript:
    """How a fake device behaves; all times in ns.

    ``launch_ns`` is what handing one piece of work over takes the host, ``replay_ns`` handing over a graph, ``wait_ns``
    noticing that the device is done. A unit of computation takes ``unit_ns``, and ``slowed`` times that beside a
    communication; a flush takes ``flush_ns``. What is posted begins at once, or only when it is waited for
    (``lazy``), as with a library that makes no progress on its own. ``clock_ns`` is the step of its own clock,
    ``peak_bytes`` what it says that its tensors held, ``free_bytes`` what nobody uses of its memory.
    """

    launch_ns: int = 4_000
    replay_ns: int = 6_000
    wait_ns: int = 0
    unit_ns: int = 100
    slowed: float = 1.0
    lazy: bool = False
    flush_ns: int = 20_000
    cache_bytes: int = 1 << 20
    clock_ns: int = 1
    peak_bytes: int = 0
    free_bytes: int = 80 << 30
    conditions: DeviceConditions | None = None
    address: str | None = None


@dataclass(slots=True)
class Communication:
    """What was posted on a stream of its own, and when it will have been done, ns."""

    ends_ns: int


class FakeMark:
    """A mark in the stream of a ``FakeDevice``."""

    def __init__(self, device: "FakeDevice") -> None:
        self._device = device
        self.at_ns: int | None = None
        self.put_after = 0

    def record(self) -> None:
        """Behind everything that was handed over; takes the host no time."""
        self.at_ns = self._device.comes_ns()
        self.put_after = self._device.waits

    def passed(self) -> bool:
        """By the host's clock."""
        return self.at_ns is not None and self.at_ns <= self._device.now()

    def wait(self) -> None:
        """The stream has nothing behind it, so this is waiting for the device."""
        self._device.synchronise()

    def ns_since(self, earlier: Mark) -> int:
        """Raises BackendError when nobody waited for one of the two."""
        moments = []
        for mark in (earlier, self):
            if not isinstance(mark, FakeMark) or mark.at_ns is None:
                message = "a mark was read that was never put"
                raise BackendError(message)
            if mark.put_after == self._device.waits:
                message = "a mark was read before the device was waited for"
                raise BackendError(message)
            moments.append(mark.at_ns // self._device.script.clock_ns * self._device.script.clock_ns)
        return moments[1] - moments[0]


class FakeDevice:
    """One device with a stream, and a second one for what is posted. ``now`` and ``set_now`` are the host's clock.

    ``log`` says in order what was handed over (``flush``, ``hold``, ``compute``, ``call``, ``post``, ``replay``)
    and when the host waited (``wait``); ``waits`` counts the latter.
    """

    name = "fake:0"

    def __init__(self, script: DeviceScript, now: Callable[[], int], set_now: Callable[[int], None]) -> None:
        self.script = script
        self.now = now
        self.cache_bytes = script.cache_bytes
        self.tick_ns = script.clock_ns
        self.address = script.address
        self.uncapturable: str | None = None
        self.waits = 1
        self.log: list[str] = []
        self._set_now = set_now
        self._ends_ns = 0
        self._posted: list[Communication] = []
        self._posted_end_ns = 0
        self._capturing: list[Work] | None = None
        self._arriving: list[Callable[[], object]] = []

    def comes_ns(self) -> int:
        """When the stream comes to what is handed over now."""
        return max(self.now(), self._ends_ns)

    def mark(self) -> Mark:
        """A new mark."""
        return FakeMark(self)

    def synchronise(self) -> None:
        """The host's clock moves to when everything is done, and the data arrive. Raises BackendError when something
        was posted that nobody waited for.
        """
        if self._posted:
            message = f"{len(self._posted)} operations were posted that nobody waited for"
            raise BackendError(message)
        self.log.append("wait")
        self._set_now(max(self.comes_ns(), self._posted_end_ns) + self.script.wait_ns)
        self.waits += 1
        arriving, self._arriving = self._arriving, []
        for arrive in arriving:
            arrive()

    def hold(self, ns: int) -> None:
        """Work that takes ``ns``."""
        self.hand_over("hold", lambda begins: begins + ns)

    def flush(self) -> None:
        """Work that takes as long as the script says."""
        self.hand_over("flush", lambda begins: begins + self.script.flush_ns)

    def capture(self, calls: Sequence[Callable[[], object]]) -> Callable[[], object]:
        """What ``calls`` hand over, noted instead of done; replaying it costs the host once. Raises BackendError where
        the device is ``uncapturable``.
        """
        if self.uncapturable is not None:
            raise BackendError(self.uncapturable)
        noted = self._noted(calls)

        def replay() -> None:
            self._spend(self.script.replay_ns)
            self.log.append("replay")
            self._ends_ns = noted(self.comes_ns())

        return replay

    def together(self, *calls: Callable[[], object]) -> Callable[[], object]:
        """What they hand over begins at once and is done when the longest is; it costs the host once."""

        def all_at_once() -> None:
            noted = [self._noted([call]) for call in calls]
            self.hand_over("together", lambda begins: max(work(begins) for work in noted))

        return all_at_once

    def on_other(self, name: str, call: Callable[[], object]) -> Callable[[], object]:
        """In turn, which is all that can be seen of another device here."""

        def in_turn() -> None:
            noted = self._noted([call])
            self.hand_over(f"on {name}", noted)

        return in_turn

    def _noted(self, calls: Sequence[Callable[[], object]]) -> Work:
        """All that ``calls`` hand over, one after the other, as one piece of work."""
        noted: list[Work] = []
        before, self._capturing = self._capturing, noted
        try:
            for call in calls:
                call()
        finally:
            self._capturing = before

        def done(begins: int) -> int:
            for work in noted:
                begins = work(begins)
            return begins

        return done

    def free_bytes(self) -> int:
        """What the script says."""
        return self.script.free_bytes

    def used_bytes(self) -> int:
        """Nothing: the peak is that of a step alone."""
        return 0

    def peak_bytes(self, call: Callable[[], object]) -> int:
        """What the script says."""
        call()
        self.synchronise()
        return self.script.peak_bytes

    def compute(self, units: int) -> None:
        """Work that takes ``units`` times what the script says, more so while something posted is under way."""

        def done(begins: int) -> int:
            pace = self.script.slowed if any(posted.ends_ns > begins for posted in self._posted) else 1.0
            return begins + round(units * self.script.unit_ns * pace)

        self.hand_over("compute", done)

    def conditions(self) -> DeviceConditions | None:
        """What the script says."""
        return self.script.conditions

    def hand_over(self, name: str, work: Work) -> None:
        """Do ``work`` when the stream comes to it, or note it while calls are captured."""
        if self._capturing is not None:
            self._capturing.append(work)
            return
        self._spend(self.script.launch_ns)
        self.log.append(name)
        self._ends_ns = work(self.comes_ns())

    def post(self, work: Work, post_ns: int) -> Callable[[], None]:
        """Do ``work`` on the other stream, once this one has come to where it is now; the returned makes it wait."""
        self._spend(post_ns)
        self.log.append("post")
        communication = Communication(0)
        self._posted.append(communication)

        def begin() -> None:
            communication.ends_ns = self._posted_end_ns = work(max(self.comes_ns(), self._posted_end_ns))

        if not self.script.lazy:
            begin()

        def wait() -> None:
            if self.script.lazy:
                begin()
            self._posted.remove(communication)
            self._ends_ns = max(self.comes_ns(), communication.ends_ns)

        return wait

    def arrives(self, arrive: Callable[[], object]) -> None:
        """Do ``arrive``, which moves data, when the host has waited for the device."""
        self._arriving.append(arrive)

    def _spend(self, ns: int) -> None:
        self._set_now(self.now() + ns)
