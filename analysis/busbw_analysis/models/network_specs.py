"""Network specifications as text, such as ``rail:nic=4X NDR,inner=450GB/s,delay=2us``, and changed links."""

from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, fields, replace
from fnmatch import fnmatchcase
from typing import Any, Final, TypeAlias

from busbw.errors import UsageError
from busbw.key_values import Key, number, read_key_values, whole
from busbw.system.catalog import catalogue
from busbw.system.named import card_named, links_named
from busbw.units import format_rate, format_seconds, listed, parse_rate, parse_time
from busbw_analysis.models.networks import FatTree, Flat, Link, Network, Placement, Rails, Routes, SharedHost, TwoLevel
from busbw_analysis.models.networks import Whole as _Whole

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


_READ: Final[dict[str, Key]] = {
    **dict.fromkeys(("rate", "memory"), Key(parse_rate)),
    "nic": Key(_card),
    "inner": Key(_inner),
    **dict.fromkeys(("delay", "inner_delay"), Key(parse_time)),
    **dict.fromkeys(("spine", "oversubscription"), Key(number)),
    **dict.fromkeys(("leaf", "spines", "seed"), Key(whole())),
    "routing": Key(str),
}
_WRITTEN: Final[dict[str, Callable[[Any], str]]] = {
    **dict.fromkeys(("rate", "memory", "nic", "inner"), format_rate),
    **dict.fromkeys(("delay", "inner_delay"), format_seconds),
    **dict.fromkeys(("spine", "oversubscription"), "{:g}".format),
    **dict.fromkeys(("leaf", "spines", "seed", "routing"), str),
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
    keys = {name: _READ[name] for name in allowed}
    values = read_key_values("network", text.partition(":")[2], keys, f"{kind} takes {takes}")
    missing = [name for name, field in allowed.items() if field.default is MISSING and name not in values]
    if missing:
        raise UsageError(f"network {text!r} lacks {', '.join(missing)}; {kind} takes {takes}")
    return Specification(text, kind, values)


def read_network(text: str, placement: Placement) -> Network:
    """The network that ``text`` describes, of these ranks."""
    return parse_network(text).on(placement)


def in_words(network: Network) -> str:
    """``two-level: nic 12.5 GB/s, delay 5 µs; 8 ranks on 2 hosts (block)``, followed by any changed links."""
    if isinstance(network, Changed):
        named = [f"{link.name} at {format_rate(link.bytes_per_second)}" for link in network.changed]
        return f"{in_words(network.whole)}; changed: {listed(named, _NAMED)}"
    kind, network_type = next(
        (name, network_type) for name, network_type in NETWORKS.items() if isinstance(network, network_type)
    )
    given = [
        f"{field.name} {_WRITTEN[field.name](value)}"
        for field in fields(network_type)
        if field.name in _WRITTEN and (value := getattr(network, field.name)) is not None
    ]
    place = network.placement
    spread = f" on {place.hosts} hosts ({place.order})" if place.per_host > 1 else ", one per host"
    where = " on one host" if kind == "shared" or place.hosts == 1 else spread
    return f"{kind}: {', '.join(given)}; {place.ranks} ranks{where}"


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

    def routes(self, sources: _Whole, targets: _Whole) -> Routes:
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
