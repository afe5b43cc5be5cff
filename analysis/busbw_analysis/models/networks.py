"""The networks that a schedule is simulated on: links with a rate each, and the links and delay of every message.

Rates are in bytes per second and one direction, delays in seconds. A message takes all links of its route at once, as a
stream that is cut through does; its delay is paid once, before its bytes flow.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal, Protocol, TypeAlias, get_args

import numpy as np
import numpy.typing as npt

from busbw.errors import UsageError

Whole: TypeAlias = npt.NDArray[np.int64]
Real: TypeAlias = npt.NDArray[np.float64]
NOWHERE: Final = -1
"""In the place of a link that a route does not have, where others have one."""

Order = Literal["block", "cyclic"]
Routing = Literal["hash", "destination"]


SLOWEST, FASTEST, LONGEST = 1e-6, 1e30, 1e9
"""Rates (B/s) and times (s) beyond which no network is, and numbers end."""


def _check_rate(name: str, rate: float) -> None:
    if not SLOWEST <= rate <= FASTEST:
        raise UsageError(f"{name} at {rate} B/s: want a rate of {SLOWEST:g} to {FASTEST:g} B/s")


def check_delay(name: str, delay: float) -> None:
    """Raise UsageError for what is no time."""
    if not 0 <= delay <= LONGEST:
        raise UsageError(f"{name} of {delay} s: want a time of 0 to {LONGEST:g} s")


def _check_ratio(name: str, ratio: float) -> None:
    if not (math.isfinite(ratio) and ratio > 0):
        raise UsageError(f"{name} {ratio}: want a finite ratio above 0; 1 is as much as the cards together")


_CHECKS: Final[dict[str, Callable[[str, float], None]]] = {
    **dict.fromkeys(("rate", "memory", "nic", "inner"), _check_rate),
    **dict.fromkeys(("delay", "inner_delay"), check_delay),
    **dict.fromkeys(("spine", "oversubscription"), _check_ratio),
}


@dataclass(frozen=True, slots=True)
class Link:
    """One direction of a cable, a port or a memory."""

    name: str
    bytes_per_second: float

    def __post_init__(self) -> None:
        _check_rate(self.name, self.bytes_per_second)


@dataclass(frozen=True, slots=True)
class Routes:
    """``links[m]`` are the numbers of the links of message m, or ``NOWHERE``; ``delays[m]`` in seconds."""

    links: Whole
    delays: Real


@dataclass(frozen=True, slots=True)
class Placement:
    """Which rank is on which host, as many on each: ``block`` puts neighbours together, ``cyclic`` deals ranks out."""

    ranks: int
    per_host: int = 1
    order: Order = "block"

    def __post_init__(self) -> None:
        if self.ranks < 2:
            raise UsageError(f"{self.ranks} rank(s): a collective of fewer than 2 moves nothing; want 2 or more")
        if self.per_host < 1 or self.ranks % self.per_host:
            message = f"{self.ranks} ranks with {self.per_host} on a host: want a number on each that divides the ranks"
            raise UsageError(message)
        _one_of("order", self.order, get_args(Order))

    @property
    def hosts(self) -> int:
        """How many there are."""
        return self.ranks // self.per_host

    def host_of(self, ranks: Whole) -> Whole:
        """The host of each rank."""
        return ranks // self.per_host if self.order == "block" else ranks % self.hosts

    def seat_of(self, ranks: Whole) -> Whole:
        """The number of each rank among those of its host."""
        return ranks % self.per_host if self.order == "block" else ranks // self.hosts

    def rank_at(self, hosts: Whole, seats: Whole) -> Whole:
        """The ranks that sit there."""
        return hosts * self.per_host + seats if self.order == "block" else seats * self.hosts + hosts


class Network(Protocol):
    """What can be simulated on."""

    @property
    def placement(self) -> Placement:
        """Which rank is where."""

    def links(self) -> tuple[Link, ...]:
        """All links, by number."""

    def routes(self, sources: Whole, targets: Whole) -> Routes:
        """What a message from ``sources[m]`` to ``targets[m]`` takes."""


class _Checked:
    """A network whose numbers are checked by their names when it is made."""

    __slots__ = ()
    placement: Placement

    def __post_init__(self) -> None:
        per_host = self.placement.per_host
        if per_host > 1 and getattr(self, "inner", 0.0) is None:
            raise UsageError(f"inner is missing: with {per_host} ranks on a host, want the rate between them")
        for name, check in _CHECKS.items():
            if (value := getattr(self, name, None)) is not None:
                check(name, value)


@dataclass(frozen=True, slots=True)
class Flat(_Checked):
    """Full bisection: every rank has a link of its own in each direction, and nothing else is ever full."""

    placement: Placement
    rate: float
    delay: float = 0.0

    def links(self) -> tuple[Link, ...]:
        """The ports of the ranks."""
        return _ports("rank", self.placement.ranks, self.rate)

    def routes(self, sources: Whole, targets: Whole) -> Routes:
        """Out of one rank and into the other."""
        return _routes([sources, self.placement.ranks + targets], np.full(len(sources), self.delay))


@dataclass(frozen=True, slots=True)
class SharedHost(_Checked):
    """One host: all messages go through its memory, which carries ``memory`` in all."""

    placement: Placement
    rate: float
    memory: float
    delay: float = 0.0

    def links(self) -> tuple[Link, ...]:
        """The ports of the ranks, and the memory."""
        return (*_ports("rank", self.placement.ranks, self.rate), Link("memory", self.memory))

    def routes(self, sources: Whole, targets: Whole) -> Routes:
        """Out of one rank, through the memory, into the other."""
        ranks = self.placement.ranks
        return _routes([sources, np.full_like(sources, 2 * ranks), ranks + targets], np.full(len(sources), self.delay))


@dataclass(frozen=True, slots=True)
class TwoLevel(_Checked):
    """Hosts with one network card each, which their ranks share; ``inner`` is what a rank has for itself in its host
    (only with one rank on each it may be left out).
    """

    placement: Placement
    nic: float
    inner: float | None = None
    delay: float = 0.0
    inner_delay: float = 0.0

    def links(self) -> tuple[Link, ...]:
        """The ports of the ranks, then those of the hosts."""
        inner = self.nic if self.inner is None else self.inner
        return (*_ports("rank", self.placement.ranks, inner), *_ports("host", self.placement.hosts, self.nic))

    def routes(self, sources: Whole, targets: Whole) -> Routes:
        """Through both cards where the hosts differ."""
        ranks, hosts = self.placement.ranks, self.placement.hosts
        here, there = self.placement.host_of(sources), self.placement.host_of(targets)
        far = here != there
        out, into = _only(far, 2 * ranks + here), _only(far, 2 * ranks + hosts + there)
        return _routes([sources, out, into, ranks + targets], np.where(far, self.delay, self.inner_delay))


@dataclass(frozen=True, slots=True)
class Rails(_Checked):
    """Every rank has a network card of its own, and rail r connects rank r of every host at full rate.

    A message to another rail goes through the host's inner network to the rank whose rail it is, or over a spine
    between the rails where there is one: ``spine`` is how many times less it carries than the cards of a rail together.
    """

    placement: Placement
    nic: float
    inner: float
    delay: float = 0.0
    inner_delay: float = 0.0
    spine: float | None = None

    def links(self) -> tuple[Link, ...]:
        """The ports of the ranks in their hosts, their cards, and the way of each rail to the spine and back."""
        placement = self.placement
        ranks = np.arange(placement.ranks)
        hosts, seats = placement.host_of(ranks), placement.seat_of(ranks)
        cards = [
            Link(f"host {host} rail {seat} {way}", self.nic)
            for way in ("out", "in")
            for host, seat in zip(hosts, seats, strict=True)
        ]
        ports = _ports("rank", placement.ranks, self.inner)
        if self.spine is None:
            return (*ports, *cards)
        up = placement.hosts * self.nic / self.spine
        spine = [Link(f"rail {rail} {way}", up) for way in ("up", "down") for rail in range(placement.per_host)]
        return (*ports, *cards, *spine)

    def routes(self, sources: Whole, targets: Whole) -> Routes:
        """Inside a host, along a rail, or from one rail to another."""
        placement, ranks = self.placement, self.placement.ranks
        here, there = placement.host_of(sources), placement.host_of(targets)
        rail, wanted = placement.seat_of(sources), placement.seat_of(targets)
        far, across = here != there, (here != there) & (rail != wanted)
        into = np.where(far, 3 * ranks + targets, ranks + targets)
        if self.spine is not None:
            up, down = 4 * ranks + rail, 4 * ranks + placement.per_host + wanted
            out = np.where(far, 2 * ranks + sources, sources)
            return _routes(
                [out, _only(across, up), _only(across, down), into], np.where(far, self.delay, self.inner_delay)
            )
        relay = placement.rank_at(here, wanted)
        return _routes(
            [
                _only(~far | across, sources),
                _only(across, ranks + relay),
                _only(far, 2 * ranks + relay),  # on the own rail the relay is the sender
                into,
            ],
            np.where(far, self.delay, self.inner_delay) + np.where(across, self.inner_delay, 0.0),
        )


@dataclass(frozen=True, slots=True)
class FatTree(_Checked):
    """Hosts with a card each, ``leaf`` of them below a leaf switch, and the leaves below ``spines`` spine switches.

    A leaf's way up carries 1/``oversubscription`` of its hosts' cards, in equal parts to every spine. A message takes
    one spine: by a hash of its two ranks and ``seed``, as ECMP does, so that some are taken twice and some not at all,
    or by the number of the host that it goes to. One spine is the ideal of bytes that are spread evenly.
    """

    placement: Placement
    nic: float
    leaf: int
    inner: float | None = None
    delay: float = 0.0
    inner_delay: float = 0.0
    spines: int = 1
    oversubscription: float = 1.0
    routing: Routing = "hash"
    seed: int = 0

    def __post_init__(self) -> None:
        _Checked.__post_init__(self)
        _one_of("routing", self.routing, get_args(Routing))
        if self.leaf < 1 or self.placement.hosts % self.leaf:
            message = f"leaf {self.leaf}: want a number of hosts below each leaf that divides {self.placement.hosts}"
            raise UsageError(message)
        if not 1 <= self.spines <= _MOST_SPINES or self.spines * self.leaves > _MOST_WAYS:
            message = f"spines {self.spines}: want 1 to {_MOST_SPINES} of them, and spines × leaves up to {_MOST_WAYS}"
            raise UsageError(message)

    @property
    def leaves(self) -> int:
        """How many there are."""
        return self.placement.hosts // self.leaf

    def links(self) -> tuple[Link, ...]:
        """The ports of the ranks and of the hosts, then every leaf's way up to each spine and down from it."""
        inner = self.nic if self.inner is None else self.inner
        up = self.leaf * self.nic / (self.spines * self.oversubscription)
        pairs = [(leaf, spine) for leaf in range(self.leaves) for spine in range(self.spines)]
        return (
            *_ports("rank", self.placement.ranks, inner),
            *_ports("host", self.placement.hosts, self.nic),
            *(Link(f"leaf {leaf} to spine {spine}", up) for leaf, spine in pairs),
            *(Link(f"spine {spine} to leaf {leaf}", up) for leaf, spine in pairs),
        )

    def routes(self, sources: Whole, targets: Whole) -> Routes:
        """Within a host, below a leaf, or over one of the spines."""
        ranks, hosts = self.placement.ranks, self.placement.hosts
        here, there = self.placement.host_of(sources), self.placement.host_of(targets)
        far, across = here != there, here // self.leaf != there // self.leaf
        spine = (_hashed(sources, targets, self.seed) if self.routing == "hash" else there) % self.spines
        first = 2 * ranks + 2 * hosts
        up = first + here // self.leaf * self.spines + spine
        down = first + self.leaves * self.spines + there // self.leaf * self.spines + spine
        return _routes(
            [
                sources,
                _only(far, 2 * ranks + here),
                _only(across, up),
                _only(across, down),
                _only(far, 2 * ranks + hosts + there),
                ranks + targets,
            ],
            np.where(far, self.delay, self.inner_delay),
        )


_MOST_SPINES: Final = 4096
_MOST_WAYS: Final = 1 << 16
"""Links up from all leaves; as many lead down."""


def _hashed(sources: Whole, targets: Whole, seed: int) -> Whole:
    """A whole number for each pair that looks random and is always the same (the finaliser of splitmix64)."""
    mixed = (sources.astype(np.uint64) << np.uint64(32)) ^ targets.astype(np.uint64)
    mixed += np.uint64((seed + 1) * 0x9E3779B97F4A7C15 % (1 << 64))
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return ((mixed ^ (mixed >> np.uint64(31))) >> np.uint64(1)).astype(np.int64)


def _ports(what: str, count: int, rate: float) -> tuple[Link, ...]:
    return tuple(Link(f"{what} {number} {way}", rate) for way in ("out", "in") for number in range(count))


def _only(where: npt.NDArray[np.bool_], links: Whole) -> Whole:
    return np.where(where, links, NOWHERE)


def _routes(links: list[Whole], delays: Real) -> Routes:
    return Routes(np.stack(links, axis=1), delays)


def _one_of(name: str, given: str, allowed: tuple[str, ...]) -> None:
    if given not in allowed:
        raise UsageError(f"{name} {given!r} is unknown; want {' or '.join(allowed)}")
