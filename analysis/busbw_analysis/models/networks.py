"""Networks for simulation: links with a rate each, and the links and delay of every message.

Rates are in bytes per second and per direction, delays in seconds. A message occupies all links of its route
concurrently (cut-through); its delay occurs once, before its bytes flow.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, replace
from fnmatch import fnmatchcase
from typing import Any, Final, Literal, Protocol, TypeAlias, get_args

import numpy as np
import numpy.typing as npt

from busbw.errors import UsageError
from busbw.key_values import Key, number, read_key_values, whole
from busbw.system.catalog import catalogue
from busbw.system.named import card_named, links_named
from busbw.units import format_rate, format_seconds, listed, parse_rate, parse_time

Whole: TypeAlias = npt.NDArray[np.int64]
Real: TypeAlias = npt.NDArray[np.float64]
NOWHERE: Final = -1
"""Marks an unused link of a route that is shorter than others."""

Order = Literal["block", "cyclic"]
Routing = Literal["hash", "destination"]
LinkPart = Literal["port", "card", "memory", "switch"]
"""Of a rank: its port inside the host; of a host: a network card, or the memory that all its messages share; of the
network: a cable between switches.
"""

SLOWEST, FASTEST, LONGEST = 1e-6, 1e30, 1e9
"""Limits of rates (B/s) and times (s), to avoid numerical overflow."""


def _check_rate(name: str, rate: float) -> None:
    if not SLOWEST <= rate <= FASTEST:
        raise UsageError(f"{name} at {rate} B/s: must be {SLOWEST:g} to {FASTEST:g} B/s")


def check_delay(name: str, delay: float) -> None:
    """Raise UsageError unless ``delay`` is a valid time in seconds."""
    if not 0 <= delay <= LONGEST:
        raise UsageError(f"{name} of {delay} s: must be 0 to {LONGEST:g} s")


def _check_ratio(name: str, ratio: float) -> None:
    if not (math.isfinite(ratio) and ratio > 0):
        raise UsageError(f"{name} {ratio}: must be a finite ratio above 0; 1 matches the total rate of the cards")


@dataclass(frozen=True, slots=True)
class Link:
    """One direction of a cable, a port or a memory.

    ``name`` is for people; ``part`` says what it does; ``kind`` is the name without numbers (``host # out``).
    """

    name: str
    bytes_per_second: float
    part: LinkPart
    kind: str

    def __post_init__(self) -> None:
        _check_rate(self.name, self.bytes_per_second)


@dataclass(frozen=True, slots=True)
class Routes:
    """``links[m]`` are the numbers of the links of message m, or ``NOWHERE``; ``delays[m]`` in seconds."""

    links: Whole
    delays: Real


@dataclass(frozen=True, slots=True)
class Placement:
    """The host of every rank, with ``per_host`` ranks on each.

    ``order``: ``block`` puts neighbouring ranks on one host, ``cyclic`` distributes them round-robin.
    """

    ranks: int
    per_host: int = 1
    order: Order = "block"

    def __post_init__(self) -> None:
        if self.ranks < 2:
            raise UsageError(f"{self.ranks} rank(s): fewer than 2 ranks send nothing; give 2 or more")
        if self.per_host < 1 or self.ranks % self.per_host:
            message = f"{self.ranks} ranks with {self.per_host} per host: give ranks per host that divide the ranks"
            raise UsageError(message)

    @property
    def hosts(self) -> int:
        """Number of hosts."""
        return self.ranks // self.per_host

    def host_of(self, ranks: Whole) -> Whole:
        """The host of each rank."""
        return ranks // self.per_host if self.order == "block" else ranks % self.hosts

    def local_rank_of(self, ranks: Whole) -> Whole:
        """The local number of each rank on its host."""
        return ranks % self.per_host if self.order == "block" else ranks // self.hosts

    def rank_at(self, hosts: Whole, local_ranks: Whole) -> Whole:
        """The rank with each local number on each host."""
        return hosts * self.per_host + local_ranks if self.order == "block" else local_ranks * self.hosts + hosts


class Network(Protocol):
    """A network for simulation."""

    @property
    def placement(self) -> Placement:
        """The host of every rank."""

    def links(self) -> tuple[Link, ...]:
        """All links, by number."""

    def routes(self, sources: Whole, targets: Whole) -> Routes:
        """The route of each message from ``sources[m]`` to ``targets[m]``."""


class _Checked:
    """A network that checks its numbers, by field name, when it is created."""

    __slots__ = ()
    placement: Placement

    def __post_init__(self) -> None:
        per_host = self.placement.per_host
        if per_host > 1 and getattr(self, "inner", 0.0) is None:
            raise UsageError(f"inner is missing: with {per_host} ranks per host, give the rate between them")
        for name, field in _FIELDS.items():
            if field.check is not None and (value := getattr(self, name, None)) is not None:
                field.check(name, value)


@dataclass(frozen=True, slots=True)
class Flat(_Checked):
    """Full bisection: every rank has its own link in each direction, and nothing else limits."""

    placement: Placement
    rate: float
    delay: float = 0.0

    def links(self) -> tuple[Link, ...]:
        """The ports of the ranks."""
        return _ports("rank", self.placement.ranks, self.rate)

    def routes(self, sources: Whole, targets: Whole) -> Routes:
        """Out of the source and into the target."""
        return _routes([sources, self.placement.ranks + targets], np.full(len(sources), self.delay))


@dataclass(frozen=True, slots=True)
class SharedHost(_Checked):
    """One host: all messages share its memory, with a total rate of ``memory``."""

    placement: Placement
    rate: float
    memory: float
    delay: float = 0.0

    def links(self) -> tuple[Link, ...]:
        """The ports of the ranks, and the memory."""
        return (*_ports("rank", self.placement.ranks, self.rate), Link("memory", self.memory, "memory", "memory"))

    def routes(self, sources: Whole, targets: Whole) -> Routes:
        """Out of the source, through the memory, into the target."""
        ranks = self.placement.ranks
        return _routes([sources, np.full_like(sources, 2 * ranks), ranks + targets], np.full(len(sources), self.delay))


@dataclass(frozen=True, slots=True)
class TwoLevel(_Checked):
    """Hosts with one network card each, which their ranks share. ``inner`` is the rate of each rank inside its host; it
    may be omitted with one rank per host.
    """

    placement: Placement
    nic: float
    inner: float | None = None
    delay: float = 0.0
    inner_delay: float = 0.0

    def links(self) -> tuple[Link, ...]:
        """The ports of the ranks, then those of the hosts."""
        return _ports_of_both(self)

    def routes(self, sources: Whole, targets: Whole) -> Routes:
        """Through both cards if the hosts differ."""
        return _routes_through_cards(self, sources, targets)


@dataclass(frozen=True, slots=True)
class Rails(_Checked):
    """Every rank has its own network card, and rail r connects local rank r of all hosts at full rate.

    A message to another rail first goes inside the host to the rank on that rail, or over a spine between the rails if
    there is one. ``spine``: total rate of the cards of a rail over the rate of its uplink to the spine. ``sharing``:
    ranks that are parts of one card, ``nic`` each; only plans of training distinguish them from cards of their own.
    """

    placement: Placement
    nic: float
    inner: float
    delay: float = 0.0
    inner_delay: float = 0.0
    spine: float | None = None
    sharing: int | None = None

    def links(self) -> tuple[Link, ...]:
        """The ports of the ranks inside their hosts, their cards, and the links of each rail to and from the spine."""
        placement = self.placement
        ranks = np.arange(placement.ranks)
        places = list(zip(placement.host_of(ranks), placement.local_rank_of(ranks), strict=True))
        cards = _links(self.nic, "card", places, "host {} rail {} out", "host {} rail {} in")
        inside = (*_ports("rank", placement.ranks, self.inner), *cards)
        if self.spine is None:
            return inside
        rails = [(rail,) for rail in range(placement.per_host)]
        up = placement.hosts * self.nic / self.spine
        return (*inside, *_links(up, "switch", rails, "rail {} up", "rail {} down"))

    def routes(self, sources: Whole, targets: Whole) -> Routes:
        """Inside a host, along a rail, or from one rail to another."""
        placement, ranks = self.placement, self.placement.ranks
        source_host, target_host = placement.host_of(sources), placement.host_of(targets)
        rail, target_rail = placement.local_rank_of(sources), placement.local_rank_of(targets)
        far, across = source_host != target_host, (source_host != target_host) & (rail != target_rail)
        into = np.where(far, 3 * ranks + targets, ranks + targets)
        if self.spine is not None:
            up, down = 4 * ranks + rail, 4 * ranks + placement.per_host + target_rail
            out = np.where(far, 2 * ranks + sources, sources)
            return _routes(
                [out, _only(across, up), _only(across, down), into], np.where(far, self.delay, self.inner_delay)
            )
        relay = placement.rank_at(source_host, target_rail)
        return _routes(
            [
                _only(~far | across, sources),
                _only(across, ranks + relay),
                _only(far, 2 * ranks + relay),  # on the sender's own rail, the relay is the sender
                into,
            ],
            np.where(far, self.delay, self.inner_delay) + np.where(across, self.inner_delay, 0.0),
        )


@dataclass(frozen=True, slots=True)
class FatTree(_Checked):
    """Hosts with one card each, ``leaf`` hosts per leaf switch, and all leaves connected to ``spines`` spine switches.

    The uplinks of a leaf carry 1/``oversubscription`` of the cards of its hosts, in equal parts to every spine. A
    message uses one spine, chosen by a hash of its two ranks and ``seed``, as in ECMP, so that some uplinks are used
    twice and others not at all; or by the number of the target host. One spine models ideally balanced load.
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
        if self.routing not in get_args(Routing):
            raise UsageError(f"routing {self.routing!r} is unknown; use {' or '.join(get_args(Routing))}")
        if self.leaf < 1 or self.placement.hosts % self.leaf:
            raise UsageError(f"leaf {self.leaf}: give a number of hosts per leaf that divides {self.placement.hosts}")
        if not 1 <= self.spines <= _MOST_SPINES or self.spines * self.leaves > _MOST_WAYS:
            message = f"spines {self.spines}: must be 1 to {_MOST_SPINES}, and spines × leaves at most {_MOST_WAYS}"
            raise UsageError(message)

    @property
    def leaves(self) -> int:
        """Number of leaf switches."""
        return self.placement.hosts // self.leaf

    def links(self) -> tuple[Link, ...]:
        """The ports of the ranks and of the hosts, then the links of every leaf to and from each spine."""
        up = self.leaf * self.nic / (self.spines * self.oversubscription)
        pairs = [(leaf, spine) for leaf in range(self.leaves) for spine in range(self.spines)]
        switches = _links(up, "switch", pairs, "leaf {0} to spine {1}", "spine {1} to leaf {0}")
        return (*_ports_of_both(self), *switches)

    def routes(self, sources: Whole, targets: Whole) -> Routes:
        """Within a host, below a leaf, or over one of the spines."""
        source_host, target_host = self.placement.host_of(sources), self.placement.host_of(targets)
        across = source_host // self.leaf != target_host // self.leaf
        spine = (_hashed(sources, targets, self.seed) if self.routing == "hash" else target_host) % self.spines
        first = 2 * self.placement.ranks + 2 * self.placement.hosts
        up = first + source_host // self.leaf * self.spines + spine
        down = first + self.leaves * self.spines + target_host // self.leaf * self.spines + spine
        return _routes_through_cards(self, sources, targets, _only(across, up), _only(across, down))


def _ports_of_both(network: TwoLevel | FatTree) -> tuple[Link, ...]:
    """The ports of the ranks, then those of the hosts."""
    place, inner = network.placement, network.nic if network.inner is None else network.inner
    return (*_ports("rank", place.ranks, inner), *_ports("host", place.hosts, network.nic))


def _routes_through_cards(network: TwoLevel | FatTree, sources: Whole, targets: Whole, *between: Whole) -> Routes:
    """Through both cards, and the links ``between`` them, if the hosts differ."""
    place, cards = network.placement, 2 * network.placement.ranks
    source_host, target_host = place.host_of(sources), place.host_of(targets)
    far = source_host != target_host
    out, into = _only(far, cards + source_host), _only(far, cards + place.hosts + target_host)
    delays = np.where(far, network.delay, network.inner_delay)
    return _routes([sources, out, *between, into, place.ranks + targets], delays)


_MOST_SPINES: Final = 4096
_MOST_WAYS: Final = 1 << 16
"""Limit on the uplinks of all leaves; there are as many downlinks."""


def _hashed(sources: Whole, targets: Whole, seed: int) -> Whole:
    """A reproducible pseudo-random integer for each pair (the finaliser of splitmix64)."""
    mixed = (sources.astype(np.uint64) << np.uint64(32)) ^ targets.astype(np.uint64)
    mixed += np.uint64((seed + 1) * 0x9E3779B97F4A7C15 % (1 << 64))
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return ((mixed ^ (mixed >> np.uint64(31))) >> np.uint64(1)).astype(np.int64)


def _links(bytes_per_second: float, part: LinkPart, places: Sequence[tuple[int, ...]], *names: str) -> tuple[Link, ...]:
    """A link at every place, of each of the ``names`` (``host {} out``)."""
    return tuple(
        Link(name.format(*place), bytes_per_second, part, name.format(*("#" for _ in place)))
        for name in names
        for place in places
    )


def _ports(what: Literal["rank", "host"], count: int, rate: float) -> tuple[Link, ...]:
    places = [(number,) for number in range(count)]
    return _links(rate, "port" if what == "rank" else "card", places, f"{what} {{}} out", f"{what} {{}} in")


def _only(where: npt.NDArray[np.bool_], links: Whole) -> Whole:
    return np.where(where, links, NOWHERE)


def _routes(links: list[Whole], delays: Real) -> Routes:
    return Routes(np.stack(links, axis=1), delays)


_Kind: TypeAlias = type[Flat | SharedHost | TwoLevel | Rails | FatTree]

NETWORKS: Final[dict[str, _Kind]] = {
    "flat": Flat,
    "shared": SharedHost,
    "two-level": TwoLevel,
    "rail": Rails,
    "fat-tree": FatTree,
}
"""The kind at the start of a specification → its class, whose fields are the keys."""


def _card(text: str) -> float:
    """The rate of a network card, given or by its name in ``busbw peaks``."""
    card = card_named(catalogue(), text, "nic")
    return card.practical or card.nominal


def _inner(text: str) -> float:
    """A rate, or all links of the GPU with this name in ``busbw peaks``."""
    if "/" in text:
        return parse_rate(text)
    links = links_named(catalogue(), text, "inner")
    return links.practical or links.nominal


@dataclass(frozen=True, slots=True)
class _Field:
    """How a field of a network is read from a specification, checked and written."""

    key: Key
    written: Callable[[Any], str]
    check: Callable[[str, float], None] | None = None


_FIELDS: Final[dict[str, _Field]] = {
    **dict.fromkeys(("rate", "memory"), _Field(Key(parse_rate), format_rate, _check_rate)),
    "nic": _Field(Key(_card), format_rate, _check_rate),
    "inner": _Field(Key(_inner), format_rate, _check_rate),
    **dict.fromkeys(("delay", "inner_delay"), _Field(Key(parse_time), format_seconds, check_delay)),
    **dict.fromkeys(("spine", "oversubscription"), _Field(Key(number), "{:g}".format, _check_ratio)),
    **dict.fromkeys(("leaf", "spines", "seed", "sharing"), _Field(Key(whole()), str)),
    "routing": _Field(Key(str), str),
}


@dataclass(frozen=True, slots=True)
class Specification:
    """A network without its ranks.

    text: as given. kind: a key of ``NETWORKS``. values: fields of its class.
    """

    text: str
    kind: str
    values: Mapping[str, Any]

    def on(self, placement: Placement) -> Network:
        """The network of these ranks. Raises UsageError if they do not fit."""
        try:
            return NETWORKS[self.kind](placement, **self.values)
        except UsageError as error:
            raise UsageError(f"network {self.text!r}: {error}") from error


def kind_of_network(text: str) -> str:
    """The kind at the start of ``text``; it may be unknown."""
    return text.strip().partition(":")[0]


def parse_network(text: str) -> Specification:
    """The network that ``text`` describes. Raises UsageError for an unknown, invalid or missing kind, key or value."""
    kind = kind_of_network(text)
    if kind not in NETWORKS:
        raise UsageError(
            f"network {kind!r} is unknown; use one of {', '.join(NETWORKS)}, with rates or names of busbw peaks as in "
            "rail:nic=4X NDR,inner=H100 SXM5 or two-level:nic=12.5GB/s"
        )
    allowed = {field.name: field for field in fields(NETWORKS[kind]) if field.name != "placement"}
    takes = ", ".join(f"{key}=…" if field.default is MISSING else f"[{key}=…]" for key, field in allowed.items())
    keys = {name: _FIELDS[name].key for name in allowed}
    values = read_key_values("network", text.partition(":")[2], keys, f"{kind} takes {takes}")
    missing = [name for name, field in allowed.items() if field.default is MISSING and name not in values]
    if missing:
        raise UsageError(f"network {text!r} lacks {', '.join(missing)}; {kind} takes {takes}")
    return Specification(text, kind, values)


def in_words(network: Network) -> str:
    """``two-level: nic 12.5 GB/s, delay 5 µs; 8 ranks on 2 hosts (block)``, followed by any changed links."""
    if isinstance(network, Changed):
        named = [f"{link.name} at {format_rate(link.bytes_per_second)}" for link in network.changed]
        return f"{in_words(network.whole)}; changed: {listed(named, _NAMED)}"
    kind, network_type = next(
        (name, network_type) for name, network_type in NETWORKS.items() if isinstance(network, network_type)
    )
    given = [
        f"{field.name} {_FIELDS[field.name].written(value)}"
        for field in fields(network_type)
        if field.name in _FIELDS and (value := getattr(network, field.name)) is not None
    ]
    place = network.placement
    spread = f" on {place.hosts} hosts ({place.order})" if place.per_host > 1 else ", one per host"
    where = " on one host" if kind == "shared" or place.hosts == 1 else spread
    return f"{kind}: {', '.join(given)}; {place.ranks} ranks{where}"


def cautions(network: Network) -> list[str]:
    """What the description of a network lacks or has in vain: a time of messages, and links that no message takes."""
    if isinstance(network, Changed):
        return cautions(network.whole)
    given = {name: getattr(network, name) for name in _FIELDS if getattr(network, name, None) is not None}
    delays = [value for name, value in given.items() if name in _DELAYS]
    sentences = []
    if not any(delays):
        sentences.append(
            "the delay is 0, so that a small message takes the time of its bytes only: add delay=5us to --network"
        )
    if network.placement.per_host == 1 and _INNER in given:
        sentences.append("inner has no effect with one rank per host: give --ranks-per-host")
    return sentences


_DELAYS: Final = {"delay", "inner_delay"}
_INNER: Final = "inner"
_NAMED: Final = 4
"""Number of changed links that are listed."""


@dataclass(frozen=True, slots=True)
class Changed:
    """``whole`` with other rates on some links, for example a slow cable or a port at a lower negotiated rate."""

    whole: Network
    changed: tuple[Link, ...]

    @property
    def placement(self) -> Placement:
        """The placement of the ranks."""
        return self.whole.placement

    def links(self) -> tuple[Link, ...]:
        """All links, changed ones with their new rate."""
        new = {link.name: link for link in self.changed}
        return tuple(new.get(link.name, link) for link in self.whole.links())

    def routes(self, sources: Whole, targets: Whole) -> Routes:
        """The routes of ``whole``: routing does not avoid slow links."""
        return self.whole.routes(sources, targets)


def change_links(network: Network, changes: tuple[str, ...]) -> Network:
    """``network`` with changes such as ``host 3 out=10%`` or ``host 3 *=1GB/s`` (``*`` matches anything). The last
    change of a link wins. Raises UsageError for an unknown link or an invalid rate or percentage.
    """
    new: dict[str, Link] = {}
    for text in changes:
        pattern, equals, value = (part.strip() for part in text.rpartition("="))
        if not equals:
            raise UsageError(
                f"link {text!r} lacks =SHARE, the new rate: write {text.strip()}=10% or {text.strip()}=1GB/s"
            )
        links = [link for link in network.links() if fnmatchcase(link.name, pattern)]
        if not links:
            kinds = dict.fromkeys(link.kind for link in network.links())
            message = f"link {text!r}: no link matches {pattern!r}; use NAME=SHARE with a name of {', '.join(kinds)}"
            raise UsageError(message)
        new |= {link.name: replace(link, bytes_per_second=_new_rate(text, value, link)) for link in links}
    return Changed(network, tuple(new.values())) if new else network


def _new_rate(text: str, value: str, link: Link) -> float:
    if not value.endswith("%"):
        try:
            return parse_rate(value)
        except UsageError as error:
            raise UsageError(f"link {text!r}: {error}; a percentage such as 10% is allowed too") from error
    share = number(value.removesuffix("%")) / 100
    if not 0 < share < _MOST_SHARE:
        message = (
            f"link {text!r}: use a percentage above 0% and below {_MOST_SHARE * 100:.0f}%, or a rate such as 1GB/s"
        )
        raise UsageError(message)
    return share * link.bytes_per_second


_MOST_SHARE: Final = 1e6
