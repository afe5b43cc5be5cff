"""What Gloo does for each collective, call by call of every rank as its sources have it, and a machine that runs it.

A message has to be asked for: it leaves when its sender has called ``send`` and the receiver's word that it is ready
has come, which takes one delay as the message does. Nothing else takes time here, so that times are numbers of delays.
Written after gloo/*.cc of pytorch/gloo 3bc6839.
"""

from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

Slots = tuple[int, ...]
SPOILT = -1
"""What is in a slot to which something was added twice."""


@dataclass(frozen=True, slots=True)
class Send:
    """``send``: what is in ``slots`` goes to rank ``to``."""

    to: int
    slots: Slots


@dataclass(frozen=True, slots=True)
class Receive:
    """``recv``: the next message of ``source`` may come."""

    source: int


@dataclass(frozen=True, slots=True)
class Arrived:
    """``waitRecv`` for the oldest message that was asked for, which goes to ``slots`` or is added there."""

    slots: Slots
    adds: bool = False


@dataclass(frozen=True, slots=True)
class Sent:
    """``waitSend`` for the oldest message."""


@dataclass(frozen=True, slots=True)
class Mark:
    """Here a clock is read."""


Step = Send | Receive | Arrived | Sent | Mark
Program = Sequence[Step]


@dataclass(slots=True)
class _Message:
    """From when on it may leave, by its sender and by its receiver, and what is in it."""

    offered: float | None = None
    asked: float | None = None
    content: tuple[int, ...] = ()

    @property
    def leaves(self) -> float | None:
        """When it does; None as long as that is open."""
        return None if self.offered is None or self.asked is None else max(self.offered, self.asked + 1)


@dataclass(slots=True)
class _Rank:
    """Where one rank is: its next step, its time in delays, what its slots hold, and what it waits for."""

    program: Program
    slots: dict[int, int]
    next: int = 0
    time: float = 0.0
    sending: deque[_Message] = field(default_factory=deque)
    receiving: deque[_Message] = field(default_factory=deque)
    marks: list[float] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Counted:
    """What a run took: ``delays`` until the last rank was through, the blocks through the busier direction of the
    busiest link, those that its busiest rank added up, and those that all sent; what every rank ended with, and what
    its clock showed at each ``Mark``.
    """

    delays: float
    sent: int
    added: int
    moved: int
    slots: tuple[dict[int, int], ...]
    marks: tuple[tuple[float, ...], ...]


def run(programs: Sequence[Program], begins: Sequence[Mapping[int, int]]) -> Counted:
    """All ranks begin together, each with these slots. Raises ValueError where one waits for ever, or sends what it
    has spoilt.
    """
    return _Machine(programs, begins).run()


class _Machine:
    def __init__(self, programs: Sequence[Program], begins: Sequence[Mapping[int, int]]) -> None:
        self._ranks = [_Rank(program, dict(slots)) for program, slots in zip(programs, begins, strict=True)]
        self._messages: dict[tuple[int, int, int], _Message] = defaultdict(_Message)
        self._posted: Counter[tuple[int, int, bool]] = Counter()
        self._through: Counter[tuple[int, bool]] = Counter()
        self._sums: Counter[int] = Counter()

    def run(self) -> Counted:
        moving = True
        while moving:
            moving = False
            for me, rank in enumerate(self._ranks):
                while rank.next < len(rank.program) and self._done(me, rank, rank.program[rank.next]):
                    rank.next, moving = rank.next + 1, True
        stuck = [me for me, rank in enumerate(self._ranks) if rank.next < len(rank.program)]
        if stuck:
            message = f"ranks {stuck} wait for ever"
            raise ValueError(message)
        return Counted(
            delays=max(rank.time for rank in self._ranks),
            sent=max(self._through.values(), default=0),
            added=max(self._sums.values(), default=0),
            moved=sum(count for (_, out), count in self._through.items() if out),
            slots=tuple(rank.slots for rank in self._ranks),
            marks=tuple(tuple(rank.marks) for rank in self._ranks),
        )

    def _done(self, me: int, rank: _Rank, step: Step) -> bool:
        """Take one step; False where it has to wait for what is not known yet."""
        match step:
            case Mark():
                rank.marks.append(rank.time)
            case Send():
                rank.sending.append(self._offered(me, rank, step))
            case Receive():
                message = self._next(step.source, me, sends=False)
                message.asked = rank.time
                rank.receiving.append(message)
            case Sent():
                return self._waited(rank, rank.sending, 0) is not None
            case Arrived():
                came = self._waited(rank, rank.receiving, 1)
                if came is None:
                    return False
                self._put(me, rank, step, came.content)
        return True

    def _next(self, source: int, to: int, *, sends: bool) -> _Message:
        number = self._posted[source, to, sends]
        self._posted[source, to, sends] += 1
        return self._messages[source, to, number]

    def _offered(self, me: int, rank: _Rank, step: Send) -> _Message:
        posted = self._next(me, step.to, sends=True)
        posted.offered, posted.content = rank.time, tuple(rank.slots[slot] for slot in step.slots)
        if SPOILT in posted.content:
            message = f"rank {me} sends what it has spoilt: slots {step.slots} to {step.to}"
            raise ValueError(message)
        self._through[me, True] += len(step.slots)
        self._through[step.to, False] += len(step.slots)
        return posted

    @staticmethod
    def _waited(rank: _Rank, waiting: deque[_Message], way: int) -> _Message | None:
        leaves = waiting[0].leaves
        if leaves is None:
            return None
        rank.time = max(rank.time, leaves + way)
        return waiting.popleft()

    def _put(self, me: int, rank: _Rank, step: Arrived, content: tuple[int, ...]) -> None:
        self._sums[me] += len(step.slots) if step.adds else 0
        for slot, came in zip(step.slots, content, strict=True):
            rank.slots[slot] = _sum(rank.slots[slot], came) if step.adds else came


def _sum(there: int, came: int) -> int:
    """Inputs of ranks are bits."""
    return SPOILT if there == SPOILT or there & came else there | came


# --- the programs: of ``rank``, one of ``ranks`` ------------------------------------------------------------------


def _window(steps: int, post: Callable[[int], Iterator[Step]], finish: Callable[[int], Iterator[Step]]) -> list[Step]:
    """A loop that begins step i when step i − 2 is through."""
    program: list[Step] = []
    for number in range(steps + 2):
        program += finish(number - 2) if number >= 2 else ()
        program += post(number) if number < steps else ()
    return program


def _around(rank: int, ranks: int, segments: int, steps: int, first: int, *, adds: bool) -> list[Step]:
    """Half of the ring of allreduce.cc, in ``steps`` steps: the block that is ``first`` after the own one goes to the
    rank before, then the one after that.
    """
    blocks, before, after = ranks * segments, (rank - 1) % ranks, (rank + 1) % ranks

    def slot(of: int, number: int) -> Slots:
        return (((of + first) * segments + number) % blocks,)

    return _window(
        steps,
        lambda number: iter((Receive(after), Send(before, slot(rank, number)))),
        lambda number: iter((Arrived(slot(rank + 1, number), adds), Sent())),
    )


def all_reduce(rank: int, ranks: int, segments: int) -> list[Step]:
    """allreduce.cc: around to add, around to hand out."""
    steps = (ranks - 1) * segments
    return [*_around(rank, ranks, segments, steps, 1, adds=True), *_around(rank, ranks, segments, steps, 0, adds=False)]


def reduce(rank: int, ranks: int, segments: int) -> list[Step]:
    """reduce.cc: around to add, with all segments but two, then the block of each rank to the root."""
    if ranks == 1:
        return []
    around = _around(rank, ranks, segments, ranks * segments - 2, 1, adds=True)
    return [*around, *_to_root(rank, ranks, segments)]


def _to_root(rank: int, ranks: int, segments: int) -> list[Step]:
    def block(of: int) -> Slots:
        return tuple(range(of * segments, (of + 1) * segments))

    if rank:
        return [Send(0, block(rank)), Sent()]
    return [*(Receive(other) for other in range(1, ranks)), *(Arrived(block(other)) for other in range(1, ranks))]


def gather(rank: int, ranks: int, segments: int) -> list[Step]:
    """gather.cc."""
    return _to_root(rank, ranks, segments)


def scatter(rank: int, ranks: int, _segments: int) -> list[Step]:
    """scatter.cc."""
    if rank:
        return [Receive(0), Arrived((rank,))]
    return [*(Send(other, (other,)) for other in range(1, ranks)), *[Sent()] * (ranks - 1)]


def all_gather(rank: int, ranks: int, _segments: int) -> list[Step]:
    """allgather.cc: around in two halves of each block."""

    def half(of: int, number: int) -> Slots:
        return (2 * ((of - number // 2) % ranks) + number % 2,)

    return _window(
        2 * (ranks - 1),
        lambda number: iter((Send((rank + 1) % ranks, half(rank, number)), Receive((rank - 1) % ranks))),
        lambda number: iter((Sent(), Arrived(half(rank - 1, number)))),
    )


def all_to_all(rank: int, ranks: int, _segments: int) -> list[Step]:
    """alltoall.cc: block b of rank r is in slot b, what comes from rank s goes to slot n + s."""
    others = range(1, ranks)
    posts: list[Step] = []
    for distance in others:
        to = (rank + distance) % ranks
        posts += [Send(to, (to,)), Receive((rank - distance) % ranks)]
    waits = [step for distance in others for step in (Sent(), Arrived((ranks + (rank - distance) % ranks,)))]
    return [*posts, *waits]


def broadcast(rank: int, ranks: int, _segments: int) -> list[Step]:
    """broadcast.cc: in round i those below 2^i send to the rank that is 2^i above them, and wait for it at the end."""
    program: list[Step] = []
    for level in range((ranks - 1).bit_length()):
        step = 1 << level
        if rank < step and rank + step < ranks:
            program.append(Send(rank + step, (0,)))
        elif step <= rank < 2 * step:
            program += [Receive(rank - step), Arrived((0,))]
    return [*program, *(Sent() for step in list(program) if isinstance(step, Send))]


def barrier(rank: int, ranks: int, _segments: int) -> list[Step]:
    """barrier.cc: a word to the rank that is 2^i above, one of the rank that is 2^i below."""
    program: list[Step] = []
    for level in range((ranks - 1).bit_length()):
        step = 1 << level
        program += [Receive((rank - step) % ranks), Send((rank + step) % ranks, ()), Arrived(()), Sent()]
    return program
