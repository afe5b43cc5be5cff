"""Ranks without processes: a clock that is told the time, and a world of threads that really moves the data.

``FakeWorld`` plays P ranks as threads of one process. Every call moves its data by a reference implementation that is
written from the meaning of the operation, not from the layouts of ``busbw.ops``, so that the two can be held against
each other. Time is scripted: it passes only on the clocks of the ranks, by as many nanoseconds as the script says, so
everything that is measured is known beforehand.
"""

import itertools
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal, TypeVar

import numpy as np
import torch

from busbw.backends.base import BackendRow, Bound, Operation, Vector, Wait
from busbw.backends.patterns import TORCH_DTYPES
from busbw.errors import BackendError, BusbwError
from busbw.measure.loops import ComputeLoad
from busbw.ops import OPS
from busbw.ops.base import Op, Share
from busbw.ops.groups import Ranks
from busbw.runs.plan import Timing
from busbw.runs.records import BackendTraits, Case
from busbw.system.device import Device, DeviceConditions
from testing.devices import DeviceScript, FakeDevice
from testing.reference import MEANINGS, Exchange, meaning
from testing.thread_barrier import Meeting

T = TypeVar("T")

Durations = Callable[[int, int, Case], int]
"""Rank, number of the call since its buffers were bound, case → ns. May raise BackendError: the call then fails."""

Lateness = Callable[[int, int], int]
"""Rank, number of the barrier → ns that the rank leaves it after the others."""

QUICK = Timing(
    blocks=1,
    min_samples=6,
    least_samples=6,
    max_samples=200,
    min_seconds=0.0,
    max_seconds=1.0,
    launch_warmup_seconds=0.0,
    warmup_seconds=0.0,
    warmup_calls=2,
)
"""Timing rules that are done after a few samples."""


class FakeClock:
    """A clock that stands still until it is moved: ``ns`` is the time it shows and may be set to anything.

    Each read takes ``read_cost_ns``, as reads of real clocks do.
    """

    def __init__(self, ns: int = 1_000_000_000, *, read_cost_ns: int = 0) -> None:
        self.ns = ns
        self.read_cost_ns = read_cost_ns

    def now_ns(self) -> int:
        """The time shown, once the read is paid for."""
        self.ns += self.read_cost_ns
        return self.ns

    def advance(self, ns: int) -> None:
        """Let ``ns`` nanoseconds pass; a negative number is a broken clock."""
        self.ns += ns


# --- ranks as threads ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Sent:
    data: torch.Tensor
    entered_ns: int


@dataclass(frozen=True, slots=True)
class _Message:
    values: tuple[int, ...]
    arrives_ns: float


def _one_microsecond(_rank: int, _index: int, _case: Case) -> int:
    return 1_000


def _in_time(_rank: int, _number: int) -> int:
    return 0


def _five_microseconds(_source: int, _to: int, _number: int) -> int:
    return 5_000


def _able(_op: Op, _case: Case) -> str | None:
    return None


@dataclass(frozen=True, slots=True)
class Script:
    """How a fake world behaves. ``durations`` and ``lateness``: see there. A barrier takes ``barrier_ns``.

    In a synchronising operation a rank leaves its duration after the last rank has entered, in every other one after
    its own entry. ``offsets_ns[r]`` is what the clock of rank r is ahead by, ``drifts_ppm[r]`` how many millionths it
    runs faster. A message takes ``latency_ns(from, to, number)``. Posting an operation takes ``post_ns``, and what was
    posted is finished when it would have been had it been called. With a ``device`` each rank has one, which operations
    are handed over to. ``refuse`` answers for ``Backend.refuse``.
    """

    durations: Durations = _one_microsecond
    lateness: Lateness = _in_time
    barrier_ns: int = 100
    offsets_ns: tuple[int, ...] = ()
    drifts_ppm: tuple[float, ...] = ()
    latency_ns: Callable[[int, int, int], int] = _five_microseconds
    post_ns: int = 200
    read_cost_ns: int = 0
    device: DeviceScript | None = None
    refuse: Callable[[Op, Case], str | None] = _able


class FakeWorld:
    """``size`` ranks as threads of this process, ``backends[r]`` for rank r with a clock of its own.

    Nobody waits longer than ``timeout_seconds`` for another rank, and not at all for one that is gone.
    """

    def __init__(self, size: int, script: Script | None = None, *, timeout_seconds: float = 30.0) -> None:
        self.size = size
        self.script = script or Script()
        everyone = tuple(range(size))
        self._timeout_seconds = timeout_seconds
        self._changed = threading.Condition()
        self._gone: dict[int, None] = {}
        self._last_words: dict[int, str] = {}
        self._groups: dict[Ranks, Meeting[_Sent]] = {}
        self._messages: dict[tuple[int, int], deque[_Message]] = {}
        self.barriers: Meeting[int] = Meeting(everyone, self._gone, self._changed, timeout_seconds)
        self.reductions: Meeting[Vector] = Meeting(everyone, self._gone, self._changed, timeout_seconds)
        self.texts: Meeting[str] = Meeting(everyone, self._gone, self._changed, timeout_seconds)
        self.backends = tuple(FakeBackend(self, rank) for rank in everyone)

    def run(self, work: Callable[["FakeBackend"], T]) -> list[T | BusbwError]:
        """Let every rank do ``work`` at once; what each returned, or the BusbwError that it raised, by rank.

        Raises any other exception that a rank raised, once all have ended.
        """
        results: dict[int, T | BusbwError] = {}
        bugs: list[Exception] = []

        def be_rank(backend: FakeBackend) -> None:
            try:
                results[backend.rank] = work(backend)
            except BusbwError as error:
                results[backend.rank] = error
            except Exception as error:  # noqa: BLE001 - raised again in the thread of the caller
                bugs.append(error)
            finally:
                self.leave(backend.rank)

        threads = [threading.Thread(target=be_rank, args=(backend,), daemon=True) for backend in self.backends]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if bugs:
            raise bugs[0]
        self._gone.clear()
        return [results[rank] for rank in range(self.size)]

    def row(self) -> BackendRow:
        """This world as a row of the table of backends, for whoever opens backends by name."""
        return BackendRow(
            name="fake",
            device="cpu" if self.script.device is None else "cuda",
            summary="ranks as threads, with scripted time",
            missing=lambda: None,
            open=lambda world: self.backends[world.rank],
            traits=BackendTraits(cost_models="fake"),
            packages=(),
        )

    def leave(self, rank: int) -> None:
        """Rank ``rank`` is gone; nobody waits for it any more."""
        with self._changed:
            self._gone[rank] = None
            self._changed.notify_all()

    def group(self, ranks: Ranks) -> "Meeting[_Sent]":
        """Where the ranks of a group exchange data."""
        with self._changed:
            if ranks not in self._groups:
                self._groups[ranks] = Meeting(ranks, self._gone, self._changed, self._timeout_seconds)
            return self._groups[ranks]

    def put(self, source: int, to: int, message: "_Message") -> None:
        """A message is on its way."""
        with self._changed:
            self._messages.setdefault((source, to), deque()).append(message)
            self._changed.notify_all()

    def take(self, source: int, to: int) -> "_Message":
        """The next message. Raises BackendError when it will not come."""
        with self._changed:
            waiting = self._messages.setdefault((source, to), deque())
            self._changed.wait_for(lambda: waiting or source in self._gone, self._timeout_seconds)
            if not waiting:
                message = f"rank {to} waits in vain for a message of rank {source}"
                raise BackendError(message)
            return waiting.popleft()

    def speak(self, rank: int, text: str) -> dict[int, str]:
        """What all ranks have to say that still answer."""
        with self._changed:
            self._last_words[rank] = text
            self._changed.notify_all()
            self._changed.wait_for(
                lambda: len(self._last_words.keys() | self._gone.keys()) == self.size, self._timeout_seconds
            )
            return dict(self._last_words)


class FakeBackend:
    """One rank of a ``FakeWorld``. ``calls``, ``barriers`` and ``reductions`` count what was asked of it. ``stream`` is
    its device, where the script has one.
    """

    raises: tuple[type[Exception], ...] = (BackendError,)

    def __init__(self, world: FakeWorld, rank: int) -> None:
        self.rank = rank
        self.size = world.size
        self.calls = 0
        self.barriers = 0
        self.reductions = 0
        self._world = world
        self._ahead_ns = (world.script.offsets_ns or (0,) * world.size)[rank]
        self._pace = 1 + 1e-6 * (world.script.drifts_ppm or (0.0,) * world.size)[rank]
        self._sent = 0
        self._groups = {tuple(range(world.size))}
        self.clock = FakeClock(read_cost_ns=world.script.read_cost_ns)
        self._set_true(1_000_000_000)
        device_script = world.script.device
        self.stream = None if device_script is None else FakeDevice(device_script, self._true_ns, self._set_true)
        self.device: Device | None = self.stream

    def explain(self, error: Exception) -> str:
        """What it says."""
        return str(error)

    def refuse(self, op: Op, case: Case) -> str | None:
        """What the script says, and no to an operation that has no meaning here."""
        if op.computed and op.name not in MEANINGS:
            return f"the fake world does not know {op.name}"
        return self._world.script.refuse(op, case)

    def allocate(self, count: int, dtype: str) -> torch.Tensor:
        """A zeroed CPU tensor."""
        return torch.zeros(count, dtype=TORCH_DTYPES[dtype])

    def use_groups(self, groups: tuple[Ranks, ...]) -> None:
        """Remember the groups; ``bind`` refuses others, as a real library would."""
        self._groups |= set(groups)

    def bind(self, bound: Bound) -> Operation:
        """The op by its meaning, and as long as the script says."""
        op, case, group, me = OPS[bound.case.op], bound.case, bound.group, bound.me
        send, receive, traffic = bound.send, bound.receive, bound.traffic
        if op.members == "all" and not op.local and group not in self._groups:
            message = f"group {group} was never made; use_groups comes before bind"
            raise BackendError(message)
        meeting = self._world.group(group)
        means = meaning(op, Share(me, len(group), case.count, case.in_place, case.root or 0, traffic))
        numbers = itertools.count()

        def run(entered_ns: int) -> int:
            """Move the data; when it ends for this rank."""
            self.calls += 1
            all_sent = meeting.exchange(self.rank, _Sent(send.clone(), entered_ns))
            result = means(Exchange([sent.data for sent in all_sent], me, case.root or 0, case.redop, traffic))
            if result is not None:
                if self.stream is None:
                    receive.copy_(result)
                else:
                    self.stream.arrives(partial(receive.copy_, result))
            begins = max(sent.entered_ns for sent in all_sent) if op.synchronising else entered_ns
            return begins + self._world.script.durations(self.rank, next(numbers), case)

        if self.stream is not None:
            hand_over = partial(self.stream.hand_over, "call", run)
            return Operation(hand_over, partial(self.stream.post, run, self._world.script.post_ns))

        def finish(entered_ns: int) -> None:
            ends = run(entered_ns)
            # Never backwards, unless the script is of a broken clock: who comes to wait late finds it finished.
            self._set_true(ends if entered_ns == self._true_ns() else max(ends, self._true_ns()))

        def call() -> None:
            finish(self._true_ns())

        def post() -> Wait:
            entered_ns = self._true_ns()
            self._set_true(entered_ns + self._world.script.post_ns)
            return lambda: finish(entered_ns)

        def wrong() -> int:
            result = means(Exchange([send], 0))
            return 0 if result is None else int((receive != result).sum())

        return Operation(call, post, wrong=wrong if op.computed else None)

    def barrier(self) -> None:
        """All clocks are set to the last comer's, and a rank that the script makes late leaves later."""
        late = self._world.script.lateness(self.rank, self.barriers)
        self.barriers += 1
        last = max(self._world.barriers.exchange(self.rank, self._true_ns()))
        self._set_true(last + self._world.script.barrier_ns + late)

    def reduce(self, values: Vector, how: Literal["max", "sum"], *, wary: bool = False) -> Vector:  # noqa: ARG002
        """Element-wise over all ranks; takes no time. Nobody here waits for a rank that is gone, wary or not."""
        self.reductions += 1
        everyone = np.stack(self._world.reductions.exchange(self.rank, values))
        result: Vector = everyone.max(axis=0) if how == "max" else everyone.sum(axis=0)
        return result

    def send(self, to: int, values: Sequence[int]) -> None:
        """A message that takes as long as the script says; sending it takes no time."""
        arrives = self._true_ns() + self._world.script.latency_ns(self.rank, to, self._sent)
        self._sent += 1
        self._world.put(self.rank, to, _Message(tuple(values), arrives))

    def receive(self, source: int, count: int) -> Vector:
        """The next message, not before it has arrived."""
        message = self._world.take(source, self.rank)
        if len(message.values) != count:
            text = f"rank {self.rank} wants {count} values of rank {source}, which sent {len(message.values)}"
            raise BackendError(text)
        self._set_true(max(self._true_ns(), message.arrives_ns))
        return np.asarray(message.values, dtype=np.int64)

    def swap(self, to: int, source: int) -> None:
        """A message each way."""
        self.send(to, (0,))
        self.receive(source, 1)

    def share(self, text: str) -> list[str]:
        """Every rank's text; takes no time."""
        return list(self._world.texts.exchange(self.rank, text))

    def conditions(self) -> DeviceConditions | None:
        """As the device tells it, where there is one."""
        return None if self.device is None else self.device.conditions()

    def traffic_factor(self, op: Op) -> float:  # noqa: ARG002 - the same for every operation
        """The fake moves no more than it must."""
        return 1.0

    def fail(self, text: str) -> dict[int, str]:
        """What the ranks that are not gone say."""
        return self._world.speak(self.rank, text)

    def close(self) -> None:
        """Nothing to close; a rank is gone when its work has ended."""

    def _true_ns(self) -> int:
        return round((self.clock.ns - self._ahead_ns) / self._pace)

    def _set_true(self, ns: float) -> None:
        self.clock.ns = round(ns * self._pace) + self._ahead_ns


class FakeWork(ComputeLoad):
    """Computation that takes ``unit_ns`` of a fake clock and no time of the machine."""

    def __init__(self, clock: FakeClock, unit_ns: int = 100) -> None:
        super().__init__()
        self._clock = clock
        self._unit_ns = unit_ns

    def do(self, units: int) -> None:
        """Let the time pass."""
        self._clock.advance(units * self._unit_ns)
